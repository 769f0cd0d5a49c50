"""POST /v1/programs: runs a graph with arguments next to the scheduler, one request for a program of many calls.

Given to the server by the command line as one more route. Each call goes through the gateway as a request's does, under the
caller's limits; what a program may be is bounded before it runs, what it may spend while it does.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from branchpoint.lang.backends.engine import EngineBackend
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.nodes import Graph, graph_from_json
from branchpoint.lang.options import RunConfig, SamplingOptions, option_names, sampling_params
from branchpoint.lang.play import Called, play
from branchpoint.lang.run import Run
from branchpoint.lang.runner import Job, run_streaming
from branchpoint.lang.serve_answer import ProgramAnswer
from branchpoint.lang.serve_client import PROGRAMS_PATH, GatewayClient
from branchpoint.lang.spec import GraphLimits, verify
from branchpoint.lang.state import State
from branchpoint.lang.stream import Replay
from branchpoint.runtime.serving.adapters import adapter_of
from branchpoint.runtime.serving.app import Endpoint
from branchpoint.runtime.serving.deadlines import deadlines_of
from branchpoint.runtime.serving.errors import ApiError, bad_request, clip
from branchpoint.runtime.serving.fields import salt_of
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.keys import caller_of
from branchpoint.runtime.serving.logs import fields as log_fields
from branchpoint.runtime.serving.request_ids import request_id
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["ProgramRequest", "programs_endpoint"]

logger = logging.getLogger("branchpoint.serving")

_RULES = Rules()
Number = TypeVar("Number", int, float)


class ProgramRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /v1/programs. `program` is a graph's JSON (`Compiled.to_json`), `options` are sampling options of the whole run.

    `max_total_tokens` and `deadline` (seconds) are the run's budget, within the server's own. `recording` asks for what
    `run_remote` makes a run of.
    """

    program: Json
    arguments: Json = {}
    options: Json = {}
    model: str | None = None
    seed: int | None = None
    max_total_tokens: int | None = None
    deadline: float | None = None
    cache_salt: str | None = None
    stream: bool = False
    recording: bool = False


class _Programs:
    """The programs of one server. Belongs to its event loop; each runs in a thread of its own, at most so many at once."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._client: GatewayClient | None = None
        self._backend: EngineBackend | None = None
        self._running = 0

    def start(self, graph: Graph, fields: ProgramRequest, told: Json, scope: Scope, called: Replay[Called]) -> Run[object]:
        """Begin a run, which leaves a line in the log when it is over, with `told`. Raises ApiError 503, InvalidRequest."""
        settings = self._gateway.settings
        if self._running >= settings.max_programs:
            raise ApiError(503, f"{self._running} programs run, as many as max_programs allows.", retry_after=1)
        if self._client is None or self._backend is None:
            self._client = GatewayClient(self._gateway)
            self._backend = EngineBackend(self._client, self._gateway.loaded.tokenizer)
        space = self._client.enter(caller_of(scope), salt_of(fields.cache_salt), adapter_of(scope))
        try:
            config = RunConfig(
                namespace=space,
                max_total_tokens=_least(fields.max_total_tokens, settings.max_program_tokens),
                deadline=fields.deadline,
            )
            job = Job(graph.program, lambda s: _played(graph, s, fields.arguments, called), False, _options(fields), config)
            run = run_streaming(job, self._backend)
        except BaseException:  # whatever it is, it goes on up
            self._client.leave(space)
            raise
        self._running += 1
        loop, client, ended = asyncio.get_running_loop(), self._client, self._gateway.program()

        def over(outcome: Future[object]) -> None:  # in the run's thread
            how: Literal["done", "failed"] = "done" if outcome.exception() is None else "failed"
            ended(how)
            _log(run, told | {"finish": how})
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(self._leave, client, space)

        run.outcome.add_done_callback(over)
        return run

    def _leave(self, client: GatewayClient, space: str) -> None:
        self._running -= 1
        client.leave(space)


def _played(graph: Graph, s: State, arguments: Mapping[str, object], called: Replay[Called]) -> object:
    try:
        return play(graph, s, arguments, {}, called)
    finally:
        called.end()


def _log(run: Run[object], told: Json) -> None:
    """One line for each program that ran, as `record` leaves one for each other request."""
    report = run.report()
    cost = report.total
    told = told | {
        "calls": cost.calls,
        "prompt_tokens": cost.prefilled + cost.reused,
        "cached_tokens": cost.reused,
        "completion_tokens": cost.decoded + cost.forced + cost.accepted,
        "seconds": round(report.seconds, 3),
    }
    names = ("program", "model", "calls", "prompt_tokens", "cached_tokens", "completion_tokens", "finish", "seconds")
    shown = " ".join(f"{name}={ascii(str(told[name]))[1:-1]}" for name in names)
    logger.info("%s: %s", told["request_id"], shown, extra=log_fields(told))


def _least(asked: Number | None, most: Number) -> Number:
    return most if asked is None else min(asked, most)


def _options(fields: ProgramRequest) -> SamplingOptions:
    for name in fields.options.keys() - option_names():
        raise bad_request(f"options has no {clip(name, 40)}; known are {', '.join(sorted(option_names()))}.", "options")
    try:
        options = msgspec.convert(fields.options, SamplingOptions, strict=False)
        sampling_params(options)
    except (msgspec.ValidationError, ProgramMistake) as error:
        raise bad_request(f"options: {error}", "options") from error
    return options if fields.seed is None else {**options, "seed": fields.seed}


def _graph(fields: ProgramRequest, nodes: int) -> Graph:
    """The graph, held to the spec and to the server's limits. Raises InvalidRequest."""
    try:
        graph = verify(graph_from_json(msgspec.json.encode(fields.program)), GraphLimits(nodes=nodes, states=nodes))
    except (ProgramMistake, RecursionError) as error:
        raise bad_request(f"program: {error}", "program") from error
    if set(graph.parameters) != fields.arguments.keys():
        wanted = ", ".join(graph.parameters) or "none"
        raise bad_request(
            f"arguments must be those of the program ({wanted}), got {', '.join(fields.arguments)[:200]}.", "arguments"
        )
    return graph


def programs_endpoint() -> Endpoint:
    """The route, for `build_app`."""
    known: dict[Gateway, _Programs] = {}

    async def parse(gateway: Gateway, body: Json, request: Request) -> Response:
        fields = as_request(body, ProgramRequest, _RULES)
        settings, scope, name = gateway.settings, request.scope, gateway.check_model(fields.model)
        own, timeout = request_id("program-", None, request.headers), deadlines_of(scope, settings).whole
        limit = _least(fields.deadline, settings.max_program_seconds)
        if timeout is not None and timeout > limit:
            timeout = None
        fields = msgspec.structs.replace(fields, deadline=limit if timeout is None else timeout)
        graph = await gateway.aside(lambda: _graph(fields, settings.max_program_nodes))
        called = Replay[Called]()
        told: Json = {"request_id": own, "path": PROGRAMS_PATH, "key": caller_of(scope).name, "model": adapter_of(scope) or name}
        told |= {"stream": fields.stream, "program": graph.program}
        run = known.setdefault(gateway, _Programs(gateway)).start(graph, fields, told, scope, called)
        heard = called if fields.stream else None
        return ProgramAnswer(run, own, name, settings, heard, recording=fields.recording, timeout=timeout)

    return Endpoint((PROGRAMS_PATH,), ProgramRequest, _RULES, parse)
