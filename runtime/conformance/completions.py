"""Checks of text completions, embeddings and models, through the `openai` client."""

import math
from typing import Final

from branchpoint.runtime.conformance.check import Check, checks, equal, expect, refused
from branchpoint.runtime.conformance.server import Server, Skipped, need

__all__ = ["CHECKS"]


def _completion_has_openais_shape(server: Server) -> None:
    """A text completion has the fields that clients read."""
    whole = server.complete()
    equal(whole.object, "text_completion", "object")
    expect(isinstance(whole.choices[0].text, str) and whole.id and whole.created, f"came {whole.model_dump()}")
    expect(whole.choices[0].finish_reason in ("stop", "length"), f"finish_reason {whole.choices[0].finish_reason!r}")
    expect(whole.usage.completion_tokens <= 8, f"came {whole.usage}")


def _the_default_limit_is_16(server: Server) -> None:
    """Without max_tokens a completion has at most 16 tokens."""
    asked = {"model": server.model, "prompt": "Once", "extra_body": {"ignore_eos": True}}
    equal(server.openai.completions.create(**asked).usage.completion_tokens, 16, "completion_tokens")


def _prompts_and_samples_come_in_order(server: Server) -> None:
    """The index of a choice is place of the prompt · n + sample."""
    whole = server.complete(["Once", "Twice"], n=2, temperature=1, max_tokens=2)
    equal([choice.index for choice in whole.choices], [0, 1, 2, 3], "indices of choices")


def _prompts_may_be_token_ids(server: Server) -> None:
    """A prompt may be token ids, or a list of such lists."""
    equal(server.complete([100, 101, 102]).usage.prompt_tokens, 3, "prompt_tokens of ids")
    equal(server.complete([[100, 101], [102, 103, 104]]).usage.prompt_tokens, 5, "prompt_tokens of two lists")


def _a_streamed_completion_is_the_whole_one(server: Server) -> None:
    """The pieces of a streamed completion are its text; one of them has the reason."""
    chunks = list(server.complete(stream=True))
    equal("".join(chunk.choices[0].text for chunk in chunks), server.complete().choices[0].text, "text of the stream")
    equal(sum(chunk.choices[0].finish_reason is not None for chunk in chunks), 1, "finish reasons")


def _echo_with_logprobs_scores_the_prompt(server: Server) -> None:
    """echo with logprobs and max_tokens 0 scores the prompt alone; its first token has no probability (lm-eval)."""
    choice = server.complete("Once upon a time", echo=True, logprobs=1, max_tokens=0).choices[0]
    equal(choice.text, "Once upon a time", "text")
    scored = choice.logprobs.token_logprobs
    expect(scored[0] is None and all(value <= 0 for value in scored[1:]), f"came token_logprobs {scored}")


def _logprobs_are_aligned(server: Server) -> None:
    """Tokens, their log-probabilities, alternatives and offsets are lists of one length."""
    told = server.complete(logprobs=2).choices[0].logprobs
    lengths = {len(told.tokens), len(told.token_logprobs), len(told.top_logprobs), len(told.text_offset)}
    equal(len(lengths), 1, "different lengths")
    expect(told.text_offset == sorted(told.text_offset) and told.text_offset[0] == 0, f"text_offset {told.text_offset}")
    expect(all(len(best) >= 2 for best in told.top_logprobs), f"came top_logprobs {told.top_logprobs}")


def _what_cant_be_served_is_refused_by_name(server: Server) -> None:
    """`suffix` and `best_of` act or are a 400 that names them."""
    for name, value in (("suffix", "the end"), ("best_of", 3)):
        error = refused(need("openai").BadRequestError, name, server.complete, **{name: value})
        equal(getattr(error, "param", None), name, "param")


def _empty_prompts_are_refused(server: Server) -> None:
    """An empty prompt is a 400."""
    error = need("openai").BadRequestError
    refused(error, "an empty text", server.complete, "")
    refused(error, "an empty list", server.complete, [])


def _the_model_is_listed_and_retrieved(server: Server) -> None:
    """The model is in the list, and by its own name."""
    expect(server.model in [model.id for model in server.openai.models.list()], f"{server.model} isn't listed")
    one = server.openai.models.retrieve(server.model)
    equal((one.id, one.object), (server.model, "model"), "the model")
    refused(need("openai").NotFoundError, "a model that isn't there", server.openai.models.retrieve, "no-such-model")


def _adapters_are_models_of_their_own(server: Server) -> None:
    """A LoRA adapter is listed with the model it belongs to, and answers under its own name with text of its own."""
    listed = list(server.openai.models.list())
    expect(server.model in [model.id for model in listed], f"{server.model} isn't listed")
    found = [model for model in listed if getattr(model, "parent", None)]
    if not found:
        raise Skipped("the server lists no model with a parent")
    base = server.complete(model=found[0].parent, temperature=0, max_tokens=16)
    whole = server.complete(model=found[0].id, temperature=0, max_tokens=16)
    equal(whole.model, found[0].id, "model")
    expect(whole.choices[0].text != base.choices[0].text, "the adapter says what its model says")
    scored = server.complete(model=found[0].id, echo=True, logprobs=1, max_tokens=0).choices[0].logprobs.token_logprobs
    expect(scored[0] is None and all(value <= 0 for value in scored[1:]), f"came token_logprobs {scored}")


def _embeddings_are_the_same_in_either_encoding(server: Server) -> None:
    """Vectors come as numbers, or in base64, which the client asks for by itself."""
    plain = server.openai.embeddings.create(model=server.model, input="hello", encoding_format="float").data[0].embedding
    packed = server.openai.embeddings.create(model=server.model, input="hello").data[0].embedding
    expect(len(plain) == len(packed), f"lengths {len(plain)} and {len(packed)}")
    expect(all(math.isclose(one, other, abs_tol=1e-5) for one, other in zip(plain, packed, strict=True)), "values differ")


def _embeddings_come_in_order_of_length_1(server: Server) -> None:
    """A vector for each input, in order, of length 1, cut to `dimensions` where asked."""
    asked = {"model": server.model, "input": ["one", "two", "three"], "dimensions": 8}
    whole = server.openai.embeddings.create(**asked)
    equal([item.index for item in whole.data], [0, 1, 2], "indices")
    for item in whole.data:
        equal(len(item.embedding), 8, "dimensions")
        expect(math.isclose(math.hypot(*item.embedding), 1, abs_tol=1e-3), f"length {math.hypot(*item.embedding)}")
    expect(whole.usage.total_tokens >= 3, f"came {whole.usage}")


CHECKS: Final[tuple[Check, ...]] = checks(
    "openai",
    _completion_has_openais_shape,
    _the_default_limit_is_16,
    _prompts_and_samples_come_in_order,
    _prompts_may_be_token_ids,
    _a_streamed_completion_is_the_whole_one,
    _echo_with_logprobs_scores_the_prompt,
    _logprobs_are_aligned,
    _what_cant_be_served_is_refused_by_name,
    _empty_prompts_are_refused,
    _the_model_is_listed_and_retrieved,
    _adapters_are_models_of_their_own,
    _embeddings_are_the_same_in_either_encoding,
    _embeddings_come_in_order_of_length_1,
)
