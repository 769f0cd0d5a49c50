"""From the command line's options to a running server: takes the port, makes the engine processes, runs `Server`."""

import asyncio
import contextlib
import multiprocessing
import threading
from collections.abc import Sequence
from functools import partial

from rich.console import Console

from branchpoint.runtime.division import check_division
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.process import EngineProcess, tokenizer_of
from branchpoint.runtime.serving.app import Endpoint
from branchpoint.runtime.serving.gateway import Loaded
from branchpoint.runtime.serving.life import Loading
from branchpoint.runtime.serving.logs import set_up_logs
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.served import ServedModel
from branchpoint.runtime.serving.server import Server, bind
from branchpoint.runtime.serving.traces import Traces

__all__ = ["launch"]

LEAST_PAGES = 2


def launch(models: Sequence[ServedModel], options: ServerOptions, more: Sequence[Endpoint] = ()) -> int:
    """Serve until told to stop, `more` routes too; the process's exit status. Raises BranchpointError where it can't begin."""
    for model in models:
        if model.config.num_pages is not None and model.config.num_pages < LEAST_PAGES:
            raise InvalidRequest(
                f"num_pages must be at least {LEAST_PAGES}, for a prompt and what follows it, got {model.config.num_pages}.",
                param="num_pages",
            )
    if len(models) > 1:
        check_division([model.config for model in models])
    console = Console(soft_wrap=True, highlight=False, markup=False)
    set_up_logs(options.log_format)
    traces = Traces.to(options.otlp_endpoint, models[0].names[0] if models[0].names else "branchpoint")
    listener = bind(options.host, options.port)
    engines = _Engines()
    loading = [Loading(partial(engines.load, model), engines.give_up, model.names) for model in models]

    async def run() -> int:
        return await Server(options, loading, console.print, more).run(listener, traces)

    return asyncio.run(run())


class _Engines:
    """Makes the engine processes, one at a time, and knows which of them serve: giving up on one that loads ends no other."""

    def __init__(self) -> None:
        self._serving = set[int]()
        self._loaded_or_not = threading.Event()

    def load(self, model: ServedModel) -> Loaded:
        """A model ready to serve. Raises what loading raises."""
        self._loaded_or_not.clear()
        with contextlib.ExitStack() as always, contextlib.ExitStack() as undo:
            always.callback(self._loaded_or_not.set)
            engine = EngineProcess(model.config)
            undo.callback(engine.close)
            self._serving.add(engine.pid)
            tokenizer = tokenizer_of(engine.info)
            names, longest = model.names or (engine.info.name,), tokenizer.vocabulary.longest
            loaded = Loaded(engine, tokenizer, names, longest, model.config.adapters)
            undo.pop_all()
        return loaded

    def give_up(self) -> None:
        """Make the loading that is under way fail soon."""
        threading.Thread(target=self._end_loading, name="give-up", daemon=True).start()

    def _end_loading(self) -> None:
        while not self._loaded_or_not.wait(0.05):  # the process may be about to start
            for child in multiprocessing.active_children():
                if child.pid not in self._serving:
                    child.kill()  # it ignores SIGTERM
