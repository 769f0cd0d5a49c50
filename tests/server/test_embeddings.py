"""Embeddings in OpenAI's shape: lists and ids, floats and base64, cut and of length 1; what can't be meant is named."""

import base64
from collections.abc import AsyncIterator

import numpy as np
import pytest

from branchpoint.runtime.messages import ScoreCall
from tests.runtime.serving_site import Site, open_site, refusal


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as ready:
        yield ready


async def test_vectors_come_in_order_of_length_1(site: Site) -> None:
    answer = (await site.post("/v1/embeddings", input=["hi", "xyz"], model="alias", user="me", cache_salt="s")).json()
    assert answer["object"] == "list" and answer["model"] == "fake"
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}
    for place, (each, first) in enumerate(zip(answer["data"], "hx", strict=True)):
        expected = np.array([3.0, 4.0, 0.0, ord(first)])
        assert (each["object"], each["index"]) == ("embedding", place)
        assert each["embedding"] == pytest.approx((expected / np.linalg.norm(expected)).tolist())
    call = site.engine.calls[0]
    assert isinstance(call, ScoreCall) and (call.pooling, call.namespace, call.continuations) == ("mean", "s", ())


async def test_cut_vectors_are_normalised_again_and_base64_is_float32(site: Site) -> None:
    cut = (await site.post("/v1/embeddings", input="hi", dimensions=2)).json()["data"][0]["embedding"]
    assert cut == pytest.approx([0.6, 0.8])
    raw = (await site.post("/v1/embeddings", input=[7, 8], normalize=False, encoding_format="base64", pooling="last")).json()
    assert np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4").tolist() == [3.0, 4.0, 0.0, 7.0]
    call = site.engine.calls[-1]
    assert isinstance(call, ScoreCall) and call.pooling == "last" and call.prompt == (7, 8)
    both = (await site.post("/v1/embeddings", input=[[7], [8, 9]], encoding_format="float")).json()["data"]
    assert len(both) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", 3]}, "input[1]"),
        ({"input": [300]}, "input"),
        ({"input": "a" * 200}, "input"),
        ({"input": "a", "dimensions": 5}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "stream": True}, "stream"),
    ],
)
async def test_what_cant_be_embedded_is_named(site: Site, fields: dict[str, object], param: str) -> None:
    refusal(await site.post("/v1/embeddings", **fields), 400, param)
    assert not site.engine.calls
