"""Programs: a Python function whose first parameter is the state, made by `@function`.

`run` and its kin split what they are given into the program's arguments and the run's options, and hand a `Job` to the runner.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, cast, overload

from typing_extensions import ParamSpec, TypeVar

from branchpoint.lang.backends.base import Backend
from branchpoint.lang.backends.source import BackendLike
from branchpoint.lang.defaults import find_backend
from branchpoint.lang.errors import Origin, ProgramMistake
from branchpoint.lang.options import RunConfig, SamplingOptions, merge, merged_params, option_names
from branchpoint.lang.placeholder import TRACED
from branchpoint.lang.run import Run
from branchpoint.lang.runner import Job, current_backend, run_async, run_here, run_streaming
from branchpoint.lang.state import State

if TYPE_CHECKING:
    from branchpoint.lang.graph import Compiled
    from branchpoint.lang.lint import Finding

__all__ = ["Program", "function"]

P = ParamSpec("P")
R = TypeVar("R", default=Any)
Arguments = Mapping[str, object] | Sequence[object]


@dataclass(frozen=True, slots=True)
class _Split:
    """What a call of `run` was given, told apart."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    config: RunConfig
    options: SamplingOptions
    backend: BackendLike | None
    stream: bool

    def find_backend(self) -> Backend:
        """The backend to run on. Raises ProgramMistake where there is none."""
        return find_backend(self.backend or self.config.backend)


class Program(Generic[R]):
    """A program. Immutable; `run` it, or call it inside another program with that one's state first."""

    def __init__(self, function: Callable[..., object], defaults: Mapping[str, object] | None = None) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if not parameters or parameters[0].kind not in positional:
            name = getattr(function, "__name__", "it")
            raise ProgramMistake(f"A program is a function whose first parameter is its state; write def {name}(s, ...).")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ProgramMistake(
                "A program returns its value, this one yields; run(..., stream=True) reads what comes as it comes."
            )
        functools.update_wrapper(self, function)
        self._function = function
        self._defaults = dict(defaults or {})
        self._first = parameters[0].name
        self._signature = inspect.Signature(parameters[1:])
        self.asynchronous = inspect.iscoroutinefunction(function)
        self.name: str = getattr(function, "__name__", "program")

    def __get__(self, instance: object, owner: type | None = None) -> "Program[R]":
        """A method is a program of its object, as with functions. What isn't one, but lies in a class, stays what it is."""
        if instance is None or self._first != "self":
            return self
        return Program(types.MethodType(self._function, instance), self._defaults)

    def __reduce__(self) -> str:
        """Pickled by name, as functions are."""
        return getattr(self._function, "__qualname__", self.name)

    @property
    def origin(self) -> Origin:
        """Where the function is written."""
        code = getattr(inspect.unwrap(self._function), "__code__", None)
        return Origin(code.co_filename, code.co_firstlineno) if code is not None else Origin(self.name)

    def __repr__(self) -> str:
        return f"<Program {self.name}{self._signature}>"

    @overload
    def __call__(self, s: State, /, *args: object, **kwargs: Any) -> R: ...
    @overload
    def __call__(self, /, *args: object, **given: Any) -> Run[R]: ...
    def __call__(self, /, *args: object, **given: Any) -> R | Run[R]:
        """Run inline on a state of another program, which comes first, and give the value (of an `async def` program: something
        to await). Outside of programs, without a state, it is `run`. Raises ProgramMistake where a program forgot its state.
        """
        if args and isinstance(args[0], State):
            bound = self._bind(args[1:], {**self._defaults, **given})
            return cast(R, self._function(args[0], *bound.args, **bound.kwargs))
        if current_backend() is not None:
            raise ProgramMistake(f"Inside a program call {self.name}(s, ...) with its state first, or {self.name}.run(...).")
        return self.run(*args, **given)

    def bind(self, **defaults: object) -> "Program[R]":
        """The same program with these arguments as defaults; what a call gives wins."""
        for name in defaults:
            if not self._takes(name):
                raise ProgramMistake(f"Program {self.name} has no parameter {name!r}; it is {self.name}{self._signature}.")
        return Program(self._function, {**self._defaults, **defaults})

    def compile(self, **given: object) -> "Compiled":
        """The program as a graph of calls, which can be shown, saved and run. It runs the function once, without any call.

        `given` are arguments that the graph has as constants; a parameter that is neither given nor has a default stays one of
        the graph. What isn't a graph (Python decides by a generated value) says so, with the line, and is interpreted.
        """
        from branchpoint.lang.graph import compile_program

        return compile_program(self, given)

    def check(self, **given: Any) -> "tuple[Finding, ...]":
        """What is wrong with the program, or costs for nothing, found before any token is spent; it runs the function twice.

        `given` as for `compile`. With `backend=` prompts are held against the model's context, where the backend can measure.
        """
        from branchpoint.lang.lint import lint

        backend = given.pop("backend", None) if not self._takes("backend") else None
        return lint(self, given, find_backend(backend) if backend is not None else None)

    def prepare(
        self, given: Mapping[str, object], placeholder: Callable[[str], object]
    ) -> tuple[Callable[[State], object], tuple[str, ...]]:
        """The function with arguments bound, and the names of those that were neither given nor have a default: placeholders."""
        known = {**self._defaults, **given}
        empty = inspect.Parameter.empty
        open_names = tuple(
            name
            for name, parameter in self._signature.parameters.items()
            if self._takes(name) and name not in known and parameter.default is empty
        )
        bound, function = self._bind((), known | {name: placeholder(name) for name in open_names}), self._function
        return lambda state: function(state, *bound.args, **bound.kwargs), open_names

    def apart(
        self, args: tuple[object, ...], given: Mapping[str, object]
    ) -> tuple[dict[str, object], RunConfig, SamplingOptions]:
        """What a call of `run` would be given, told apart: the arguments by name, the config, and all sampling options."""
        split = self._split(args, given)
        bound = self._bind(split.args, {**self._defaults, **split.kwargs})
        return dict(bound.arguments), split.config, split.options

    def run(self, *args: object, **given: Any) -> Run[R]:
        """Run the program and give the finished run; what failed is raised.

        `given` are the program's arguments, then `backend=`, `config=RunConfig(...)`, `stream=` and sampling options: where a
        parameter of the program has such a name, it is the program's, and the option goes into `config`. With `stream=True` the
        run is given at once, while the function runs in a thread. Raises ProgramError, and whatever the function raises.
        """
        split = self._split(args, given)
        job, backend = self._job(split, split.args, split.kwargs), split.find_backend()
        return run_streaming(job, backend) if split.stream else run_here(job, backend)

    def stream(self, *args: object, **given: Any) -> Run[R]:
        """`run(..., stream=True)`."""
        split = self._split(args, given)
        return run_streaming(self._job(split, split.args, split.kwargs), split.find_backend())

    async def arun(self, *args: object, **given: Any) -> Run[R]:
        """As `run`, in the caller's event loop. A program that isn't `async def` runs in a thread meanwhile."""
        split = self._split(args, given)
        job, backend = self._job(split, split.args, split.kwargs), split.find_backend()
        return run_streaming(job, backend) if split.stream else await run_async(job, backend)

    @overload
    def run_batch(
        self,
        batch: Iterable[Arguments],
        *,
        num_threads: int | Literal["auto"] = "auto",
        on_error: Literal["raise"] = "raise",
        progress_bar: bool = False,
        **given: Any,
    ) -> list[Run[R]]: ...
    @overload
    def run_batch(
        self,
        batch: Iterable[Arguments],
        *,
        num_threads: int | Literal["auto"] = "auto",
        on_error: Literal["return"],
        progress_bar: bool = False,
        **given: Any,
    ) -> list[Run[R] | Exception]: ...
    def run_batch(
        self,
        batch: Iterable[Arguments],
        *,
        num_threads: int | Literal["auto"] = "auto",
        on_error: Literal["raise", "return"] = "raise",
        progress_bar: bool = False,
        **given: Any,
    ) -> list[Run[R]] | list[Run[R] | Exception]:
        """Run the program once for each of `batch` (dicts of arguments, or tuples of them), and give the runs in order.

        User code runs in at most `num_threads` threads ("auto": 64), `RunConfig(max_concurrency=)` calls at most are in flight.
        A failed program leaves the others alone: its exception takes its place (`on_error="return"`), or is raised after all
        are done. `given` are a backend, a config and sampling options.
        """
        from branchpoint.lang.batch import collect

        jobs, backend = self._jobs(batch, given)
        return collect(jobs, backend, num_threads=num_threads, on_error=on_error, progress_bar=progress_bar)

    def iter_batch(
        self, batch: Iterable[Arguments], *, num_threads: int | Literal["auto"] = "auto", progress_bar: bool = False, **given: Any
    ) -> Iterator[tuple[int, Run[R] | Exception]]:
        """As `run_batch(on_error="return")`, giving `(index, run)` as each is done. Closing the iterator aborts the rest."""
        from branchpoint.lang.batch import as_completed

        jobs, backend = self._jobs(batch, given)
        return as_completed(jobs, backend, num_threads=num_threads, progress_bar=progress_bar)

    def _takes(self, name: str) -> bool:
        keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameter = self._signature.parameters.get(name)
        return parameter is not None and parameter.kind in keyword

    def _split(self, args: tuple[object, ...], given: Mapping[str, object]) -> _Split:
        if (traced := TRACED.get()) is not None:
            traced.refuse(f"it runs another program, {self.name}")
        kwargs = {name: value for name, value in given.items() if self._takes(name)}
        rest = {name: value for name, value in given.items() if name not in kwargs}
        config = rest.pop("config", None)
        config = RunConfig() if config is None else config
        backend, stream = rest.pop("backend", None), bool(rest.pop("stream", False))
        if not isinstance(config, RunConfig):
            raise ProgramMistake(f"config must be a RunConfig, got {type(config).__name__}.")
        options = {name: rest.pop(name) for name in option_names() & rest.keys()}
        if rest and not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self._signature.parameters.values()):
            raise ProgramMistake(
                f"{next(iter(rest))!r} is neither a parameter of {self.name}{self._signature} nor an option of a run; "
                f"options are backend, config, stream, {', '.join(sorted(option_names()))}."
            )
        merged = merge(config.options, cast(SamplingOptions, options))
        merged_params(merged)
        return _Split(args, kwargs | rest, config, merged, cast(BackendLike | None, backend), stream)

    def _job(self, split: _Split, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Job:
        bound = self._bind(args, {**self._defaults, **kwargs})
        function = self._function

        def body(state: State) -> object:
            return function(state, *bound.args, **bound.kwargs)

        return Job(self.name, body, self.asynchronous, split.options, split.config)

    def _jobs(self, batch: Iterable[Arguments], given: Mapping[str, object]) -> tuple[list[Job], Backend]:
        split = self._split((), given)
        jobs = list[Job]()
        for item in batch:
            if isinstance(item, Mapping):
                jobs.append(self._job(split, (), {**split.kwargs, **item}))
            elif isinstance(item, Sequence) and not isinstance(item, str):
                jobs.append(self._job(split, tuple(item), split.kwargs))
            else:
                raise ProgramMistake(f"run_batch takes a dict or a tuple of arguments for each run, got {item!r:.80}.")
        return jobs, split.find_backend()

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> inspect.BoundArguments:
        taken = list(self._signature.parameters)[: len(args)]
        given = {name: value for name, value in kwargs.items() if not (name in taken and name in self._defaults)}
        try:
            return self._signature.bind(*args, **given)
        except TypeError as error:
            raise ProgramMistake(f"Program {self.name}{self._signature}: {error}.") from None


@overload
def function(function: Callable[Concatenate[State, P], R]) -> Program[R]: ...
@overload
def function(*, num_api_spec_tokens: int | None = None) -> Callable[[Callable[Concatenate[State, P], R]], Program[R]]: ...
def function(
    function: Callable[..., R] | None = None, *, num_api_spec_tokens: int | None = None
) -> Program[R] | Callable[[Callable[..., R]], Program[R]]:
    """Make a program of a function whose first parameter is its state; it may be `async def`. Use it as a decorator.

    `num_api_spec_tokens` is SGLang's, for APIs that are asked for several gens at once: here it raises ProgramMistake.
    """
    if num_api_spec_tokens is not None:
        raise ProgramMistake(
            "num_api_spec_tokens must be left out: no answer is cut into several gens here. An engine, or a server of ours, "
            "goes on from the KV of the gens before; for a chat API, put each gen into a turn of its own."
        )
    return Program(function) if function is not None else lambda decorated: Program(decorated)
