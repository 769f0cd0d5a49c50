"""Checks of what is refused and how, through the `openai` client."""

from typing import Any, Final

from branchpoint.runtime.conformance.check import Check, checks, equal, expect, refused
from branchpoint.runtime.conformance.server import Server, Skipped, need

__all__ = ["CHECKS"]

_WRONG: Final[tuple[tuple[str, Any], ...]] = (
    ("temperature", 9),
    ("temperature", -1),
    ("top_p", 0),
    ("top_p", 1.5),
    ("n", 0),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("top_logprobs", 5),
    ("logit_bias", {"999999999": 1}),
)


def _an_unknown_model_is_not_found(server: Server) -> None:
    """Another model's name is a 404 about `model`, not another model's answer."""
    error: Any = refused(need("openai").NotFoundError, "an unknown model", server.chat, model="no-such-model")
    equal(error.param, "model", "param")


def _values_out_of_range_are_named(server: Server) -> None:
    """A value out of range is a 400 whose `param` is the field."""
    for name, value in _WRONG:
        error: Any = refused(need("openai").BadRequestError, f"{name}={value}", server.chat, **{name: value})
        equal(error.param, name, f"param for {name}={value}")


def _an_error_has_openais_body(server: Server) -> None:
    """An error has message, type, param, and the status as integer code."""
    error: Any = refused(need("openai").BadRequestError, "temperature 9", server.chat, temperature=9)
    equal(set(error.body), {"message", "type", "param", "code"}, "fields of the error")
    equal(error.body["code"], error.status_code, "code")


def _a_stream_is_refused_before_its_first_byte(server: Server) -> None:
    """A stream that can't be served is refused with a status, like any other request."""
    openai = need("openai")
    refused(openai.BadRequestError, "temperature 9, streamed", server.chat, stream=True, temperature=9)
    refused(openai.NotFoundError, "an unknown model, streamed", server.chat, stream=True, model="no-such-model")


def _a_prompt_beyond_the_context_says_so(server: Server) -> None:
    """A prompt beyond the context is a 400 whose message says `maximum context length`, which frameworks look for."""
    error = refused(need("openai").BadRequestError, "a prompt beyond the context", server.chat, "word " * 300_000)
    expect("maximum context length" in str(error), f"came {error}")


def _more_tokens_than_the_context_are_refused(server: Server) -> None:
    """A max_tokens beyond the context is a 400 about it."""
    error: Any = refused(need("openai").BadRequestError, "max_tokens of 10 million", server.chat, max_tokens=10**7)
    equal(error.param, "max_tokens", "param")


def _ids_that_arent_the_models_are_refused(server: Server) -> None:
    """Token ids out of the vocabulary are a 400, wherever they stand."""
    error = need("openai").BadRequestError
    for wrong in (10**9, -1):
        refused(error, f"prompt of token {wrong}", server.complete, [wrong])
        stop = {"stop_token_ids": [wrong]}
        refused(error, f"stop token {wrong}", server.complete, extra_body=stop)


def _integers_of_any_size_are_refused(server: Server) -> None:
    """Integers that no machine word holds are a 400, not a fault."""
    for name in ("top_k", "seed", "max_tokens", "n", "min_tokens"):
        body = {name: 2**70}
        refused(need("openai").BadRequestError, f"{name} of 2**70", server.chat, extra_body=body)


def _broken_conversations_are_refused(server: Server) -> None:
    """Empty messages, unknown roles and missing contents are a 400."""
    for messages in ([], [{"role": "nobody", "content": "x"}], [{"role": "user"}], [{"content": "x"}]):
        refused(need("openai").BadRequestError, f"messages {messages}", server.chat, messages=messages)


def _unknown_fields_are_not_dropped_in_silence(server: Server) -> None:
    """A field that the server doesn't know is a 400 that names it, or is told of in a header."""
    asked = {"model": server.model, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2}
    try:
        answer = server.openai.chat.completions.with_raw_response.create(**asked, extra_body={"no_such_field": 1})
    except need("openai").BadRequestError as error:
        expect("no_such_field" in str(error), f"the field isn't named: {error}")
    else:
        expect("no_such_field" in answer.headers.get("x-ignored-fields", ""), "the field was dropped in silence")


def _what_an_error_echoes_is_bounded(server: Server) -> None:
    """An error is short, however long the request was."""
    error: Any = refused(need("openai").NotFoundError, "a long name", server.chat, model="x" * 100_000)
    expect(len(error.response.content) < 4096, f"the error has {len(error.response.content)} bytes")


def _unknown_paths_and_methods_are_told(server: Server) -> None:
    """An unknown path is a 404, a wrong method a 405, with a body that clients read."""
    openai = need("openai")
    refused(openai.NotFoundError, "an unknown path", server.openai.post, "/no/such/path", cast_to=object, body={})
    error: Any = refused(openai.APIStatusError, "a GET of a chat", server.openai.get, "/chat/completions", cast_to=object)
    equal((error.status_code, error.body["code"]), (405, 405), "status and code")


def _a_refusal_has_a_request_id(server: Server) -> None:
    """A refused request has an id too: it is what the server's log calls it."""
    error: Any = refused(need("openai").BadRequestError, "temperature 9", server.chat, temperature=9)
    expect(error.request_id, "expected the header x-request-id")


def _a_wrong_key_is_refused(server: Server) -> None:
    """Where keys are needed, a wrong one is a 401 on every route."""
    if not server.api_key:
        raise Skipped("the server was given no key: --api-key")
    openai = need("openai")
    stranger = server.openai.with_options(api_key="wrong")
    asked: dict[str, Any] = {"model": server.model, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2}
    refused(openai.AuthenticationError, "a wrong key", stranger.chat.completions.create, **asked)
    refused(openai.AuthenticationError, "a wrong key for models", stranger.models.list)
    refused(openai.AuthenticationError, "embeddings", stranger.embeddings.create, model=server.model, input="x")


CHECKS: Final[tuple[Check, ...]] = checks(
    "openai",
    _an_unknown_model_is_not_found,
    _values_out_of_range_are_named,
    _an_error_has_openais_body,
    _a_stream_is_refused_before_its_first_byte,
    _a_prompt_beyond_the_context_says_so,
    _more_tokens_than_the_context_are_refused,
    _ids_that_arent_the_models_are_refused,
    _integers_of_any_size_are_refused,
    _broken_conversations_are_refused,
    _unknown_fields_are_not_dropped_in_silence,
    _what_an_error_echoes_is_bounded,
    _unknown_paths_and_methods_are_told,
    _a_refusal_has_a_request_id,
    _a_wrong_key_is_refused,
)
