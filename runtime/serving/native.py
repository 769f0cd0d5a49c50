"""POST /branchpoint/score, /branchpoint/render and /branchpoint/end_program: what the language asks beyond generating.

Scores are log-probabilities of given options; rendering is the model's own chat template, as text. A program's end lets
its cached prefixes go first.
"""

from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from branchpoint.runtime.messages import Hints, ScoreCall, Scored, Segment
from branchpoint.runtime.serving.answer import Answer, EventBatch
from branchpoint.runtime.serving.errors import bad_request
from branchpoint.runtime.serving.fields import salt_of
from branchpoint.runtime.serving.framing import EVENTS
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.keys import caller_of
from branchpoint.runtime.serving.limits import check_program_names
from branchpoint.runtime.serving.logprobs import LOWEST
from branchpoint.runtime.serving.request_ids import request_id
from branchpoint.runtime.serving.wire import Json, Rules, as_request, json_response

__all__ = ["EndProgramRequest", "RenderRequest", "ScoreRequest", "answer_score", "end_program", "render"]

MAX_OPTIONS = 4096


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /branchpoint/score; fields as in the language's own score request."""

    segments: list[Segment]
    options: list[str]
    with_end: bool = False
    unconditional: bool = False
    hints: Hints = Hints()
    model: str | None = None
    rid: str | None = None
    cache_salt: str | None = None


class RenderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /branchpoint/render."""

    messages: list[Json]
    model: str | None = None
    add_generation_prompt: bool = True


class EndProgramRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /branchpoint/end_program: what the calls' `hints.program` and `cache_salt` were."""

    program: str
    cache_salt: str | None = None
    model: str | None = None


async def answer_score(gateway: Gateway, body: Json, headers: Mapping[str, str]) -> Answer:
    """The log-probabilities of `options` after `segments`. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, ScoreRequest, Rules())
    gateway.check_model(fields.model)
    if not 0 < len(fields.options) <= MAX_OPTIONS or not all(fields.options):
        raise bad_request(f"options must hold 1 to {MAX_OPTIONS} non-empty texts.", "options")
    options = await gateway.options(fields.segments, fields.options)
    prompt, continuations, skips = options.prompt, options.continuations, options.skips
    tokenizer = gateway.loaded.tokenizer
    if fields.unconditional:
        prompt = (tokenizer.beginning,)
        continuations = tuple(tokens[skip:] for tokens, skip in zip(continuations, skips, strict=True))
        skips = (0,) * len(continuations)
    if fields.with_end:
        if not tokenizer.eos_token_ids:
            raise bad_request("with_end needs a model with an end token; this one has none.", "with_end")
        continuations = tuple((*tokens, tokenizer.eos_token_ids[0]) for tokens in continuations)
    own = request_id("score-", fields.rid, headers)
    call = ScoreCall(own, prompt, continuations, salt_of(fields.cache_salt), fields.hints)
    return Answer(gateway, own, (call,), _ScoreView(skips))


async def render(gateway: Gateway, body: Json) -> Json:
    """The chat template's text for `messages`, which go to the template as they are."""
    fields = as_request(body, RenderRequest, Rules())
    gateway.check_model(fields.model)
    if not fields.messages:
        raise bad_request("messages must not be empty.", "messages")
    tokenizer = gateway.loaded.tokenizer
    text = await gateway.aside(lambda: tokenizer.render(fields.messages, add_generation_prompt=fields.add_generation_prompt))
    return {"prompt": text}


async def end_program(gateway: Gateway, body: Json, request: Request) -> Response:
    """No more calls of this program of the caller's will come; one that is unknown, or has ended, is fine too."""
    fields = as_request(body, EndProgramRequest, Rules())
    gateway.check_model(fields.model)
    check_program_names(fields.program)
    gateway.loaded.engine.end_program(fields.program, caller_of(request.scope).space(salt_of(fields.cache_salt)))
    return json_response({"program": fields.program})


class _ScoreView:
    """`{logprobs, usage}`, aligned with the options."""

    stream = False
    framing = EVENTS

    def __init__(self, skips: tuple[int, ...]) -> None:
        self._skips = skips  # leading tokens that carry no byte of the option
        self._scored: Scored | None = None

    def chunks(self, batch: EventBatch) -> list[object]:
        """Keep the scores."""
        self._scored = next((event for _, event in batch if isinstance(event, Scored)), self._scored)
        return []

    def tail(self) -> list[object]:
        """Nothing: scores aren't streamed."""
        return []

    def whole(self) -> object:
        """The scores."""
        assert self._scored is not None, "a score call ends with its scores"
        logprobs = [
            [max(one, LOWEST) for one in scores[skip:]] for scores, skip in zip(self._scored.logprobs, self._skips, strict=True)
        ]
        return {"type": "scored", "id": self._scored.id, "logprobs": logprobs, "usage": self._scored.usage}
