"""What no server should take on, or can't keep, is refused at the door, by the request's own name for it."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.runtime.serving_site import BASE, BOTH, Site, open_site, refusal


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as ready:
        yield ready


async def test_native_values_out_of_range_are_named_as_the_request_has_them(site: Site) -> None:
    params = "sampling_params."
    for name, value in (
        ("max_new_tokens", -1),
        ("min_new_tokens", 6),
        ("top_k", -2),
        ("n", 0),
        ("sampling_seed", 2**64),
        ("stop", ["x"] * 65),
    ):
        response = await site.post("/generate", text="hi", sampling_params={"max_new_tokens": 5} | {name: value})
        assert refusal(response, param=params + name).startswith(params + name)
    for name, value in (("max_new_tokens", 127), ("min_new_tokens", 127)):
        refusal(await site.post("/generate", text="hi", sampling_params={name: value}), param=params + name)
    refusal(await site.post("/generate", text="x" * 129), param="text")
    refusal(await site.post("/generate", input_ids=[300]), param="input_ids")
    refusal(await site.post("/generate", text="hi", return_logprob=True, logprob_start_len=-2), param="logprob_start_len")
    refusal(await site.post("/generate", text="hi", return_logprob=True, top_logprobs_num=21), param="top_logprobs_num")
    assert not site.engine.calls


async def test_integers_beyond_64_bits_are_refused_wherever_they_stand(site: Site) -> None:
    for hints in ({"siblings": 2**70}, {"priority": -(2**70)}, {"path": [2**70]}):
        refusal(await site.post("/generate", text="hi", hints=hints))
        refusal(await site.post("/branchpoint/score", segments=[{"type": "text", "text": "x"}], options=["a"], hints=hints))
    refusal(await site.post("/generate", text="hi", sampling={"prompt_logprobs": 1, "prompt_logprobs_start": 2**70}))
    refusal(await site.post("/generate", text="hi", return_logprob=True, logprob_start_len=2**70))
    assert not site.engine.calls and site.gateway.num_open == 0


async def test_what_no_output_can_reach_is_refused_at_the_door(site: Site) -> None:
    refusal(await site.chat(min_tokens=128), param="min_tokens")
    refusal(await site.chat(max_completion_tokens=127), param="max_completion_tokens")
    refusal(await site.chat(max_completion_tokens=2**31), param="max_completion_tokens")
    refusal(await site.post("/generate", text="hi", sampling={"min_tokens": 127}), param="min_tokens")
    assert not site.engine.calls


async def test_a_request_that_can_never_fit_in_the_pool_is_refused_with_the_numbers(site: Site) -> None:
    site.engine.info = msgspec.structs.replace(site.engine.info, num_pages=2)
    for response in (
        await site.complete(max_tokens=31),
        await site.complete(prompt="x" * 33),
        await site.chat(max_tokens=31),
        await site.post("/generate", text="hi", sampling_params={"max_new_tokens": 31}),
    ):
        message = refusal(response, param=response.json()["error"]["param"])
        assert "128 tokens" in message and "KV pool holds 32" in message
    assert (await site.complete(max_tokens=30)).status_code == 200


async def test_one_request_cant_be_thousands(site: Site) -> None:
    refusal(await site.complete(prompt=["a"] * 2048, n=3, max_tokens=1), param="n")
    refusal(await site.complete(prompt=["a"] * 2048, stop=["x" * 10_000], max_tokens=1))
    refusal(await site.complete(prompt=["a"] * 2048, regex="x" * 10_000, max_tokens=1))
    refusal(await site.complete(stop_token_ids=[1] * (2**18 + 1)), param="stop_token_ids")
    refusal(await site.complete(logit_bias={str(one): 1 for one in range(2**18 + 1)}), param="logit_bias")
    refusal(await site.post("/detokenize", tokens=[1] * (2**20 + 1)), param="tokens")
    refusal(await site.post("/tokenize", prompt="x" * 10_000, add_special_tokens=False), param="prompt")
    assert not site.engine.calls


CONSTRAINTS: dict[str, dict[str, object]] = {
    "response_format": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}},
    "structured_outputs.regex": {"structured_outputs": {"regex": "a"}},
    "structured_outputs.choice": {"structured_outputs": {"choice": ["a"]}},
    "regex": {"regex": "a"},
    "ebnf": {"ebnf": "a"},
    "json_schema": {"json_schema": "{}"},
    "guided_json": {"guided_json": {}},
    "guided_choice": {"guided_choice": ["a"]},
}


async def test_a_refused_grammar_is_blamed_on_the_field_that_asked_for_it(site: Site) -> None:
    site.engine.failure = ("invalid_request", "no such grammar")
    for field, body in CONSTRAINTS.items():
        for path in BOTH:
            for stream in (False, True):
                refusal(await site.post(path, **(BASE[path] | body | {"stream": stream})), param=field)
    refusal(await site.post("/generate", text="hi", sampling_params={"regex": "a"}), param="sampling_params.regex")
    refusal(await site.post("/generate", text="hi", constraint={"type": "regex", "pattern": "a"}), param="constraint")
    refusal(await site.complete(guided_choice=[""]), param="guided_choice")
    refusal(await site.complete(structured_outputs={"choice": [""]}), param="structured_outputs.choice")
