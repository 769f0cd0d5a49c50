"""Scores and ranks are the model's own likelihoods, in the shapes of vLLM and SGLang; prompts' log-probabilities by number."""

import math
from collections.abc import AsyncIterator

import pytest

from branchpoint.runtime.messages import ScoreCall
from tests.runtime.serving_site import Site, open_site, refusal


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as ready:
        yield ready


def calls(site: Site) -> list[ScoreCall]:
    found = [call for call in site.engine.calls if isinstance(call, ScoreCall)]
    assert len(found) == len(site.engine.calls)
    return found


async def test_a_score_is_the_mean_likelihood_of_a_text_behind_another(site: Site) -> None:
    for path in ("/v1/score", "/score"):
        answer = (await site.post(path, model="alias", text_1="ab", text_2=["c", "de", "fgh"])).json()
    assert answer["object"] == "list" and answer["model"] == "fake"
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    assert [each["score"] for each in answer["data"]] == pytest.approx([math.exp(-1), math.exp(-1.5), math.exp(-2)])
    assert answer["usage"]["prompt_tokens"] == 6 and answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert [(bytes(call.prompt), tuple(map(bytes, call.continuations))) for call in calls(site)[3:]] == [
        (b"ab", (b"c",)),
        (b"ab", (b"de",)),
        (b"ab", (b"fgh",)),
    ]
    both = (await site.post("/v1/score", text_1=["a", "b"], text_2=["c", "d"])).json()
    assert [bytes(call.prompt) for call in calls(site)[6:]] == [b"a", b"b"] and len(both["data"]) == 2


async def test_probabilities_of_labels_are_sglangs(site: Site) -> None:
    body = {"query": "Is it? ", "items": ["yes", "no"], "label_token_ids": [65, 66], "cache_salt": "s"}
    answer = (await site.post("/v1/score", **body)).json()
    assert answer["object"] == "scoring" and answer["scores"] == [[pytest.approx(math.exp(-1))] * 2] * 2
    assert calls(site)[1].prompt == tuple(b"Is it? no") and calls(site)[1].continuations == ((65,), (66,))
    assert calls(site)[1].namespace == "s"
    answer = (await site.post("/v1/score", **body, apply_softmax=True, item_first=True)).json()
    assert answer["scores"] == [[0.5, 0.5]] * 2 and calls(site)[2].prompt == tuple(b"yesIs it? ")
    await site.post("/v1/score", **(body | {"query": [73], "items": [[74, 75]]}))
    assert calls(site)[-1].prompt == (73, 74, 75)


async def test_documents_come_the_best_first(site: Site) -> None:
    body = {"query": "q?", "documents": ["one", {"text": "two"}, "three"]}
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        answer = (await site.post(path, **body)).json()
        assert [each["index"] for each in answer["results"]] == [0, 1, 2] and answer["id"].startswith("rerank-")
        assert answer["results"][1]["document"] == {"text": "two"}
    few = (await site.post("/v1/rerank", **body, top_n=1, return_documents=False)).json()["results"]
    assert few == [{"index": 0, "relevance_score": pytest.approx(math.exp(-1.5))}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/score", {}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": ""}, "text_2"),
        ("/v1/score", {"text_1": "", "text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": [], "text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, None),
        ("/v1/score", {"query": "a", "items": ["b"]}, "label_token_ids"),
        ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [3], "text_2": "c"}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "apply_softmax": True}, "apply_softmax"),
        ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [300]}, "label_token_ids"),
        ("/v1/score", {"query": "a", "items": [7], "label_token_ids": [3]}, "items[0]"),
        ("/v1/score", {"text_1": "a" * 200, "text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": ["a"] * 3000, "text_2": "b"}, "text_1"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": " ", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "instruct": "c"}, "instruct"),
    ],
)
async def test_what_cant_be_scored_is_named(site: Site, path: str, body: dict[str, object], param: str | None) -> None:
    refusal(await site.post(path, **body), 400, param)
    assert not site.engine.calls


@pytest.mark.parametrize(
    ("path", "shared", "others", "more"),
    [
        ("/v1/rerank", "query", "documents", {}),
        ("/v1/score", "text_1", "text_2", {}),
        ("/v1/score", "text_2", "text_1", {}),
        ("/v1/score", "query", "items", {"label_token_ids": [65]}),
    ],
)
async def test_a_short_body_doesnt_become_a_huge_one(path: str, shared: str, others: str, more: dict[str, object]) -> None:
    async with open_site(max_body_bytes=2000) as site:
        assert (await site.post(path, **{shared: "a" * 60, others: ["b"] * 10}, **more)).status_code == 200
        site.engine.calls.clear()
        refusal(await site.post(path, **{shared: "a" * 60, others: ["b"] * 100}, **more), 400, shared)
        assert not site.engine.calls


async def test_the_prompts_own_logprobs_come_by_id(site: Site) -> None:
    told = (await site.complete(prompt=["hi", "x"], prompt_logprobs=1)).json()["choices"]
    assert told[0]["prompt_logprobs"] == [None, {"105": {"logprob": -1.0, "rank": None, "decoded_token": "i"}}]
    assert told[1]["prompt_logprobs"] == [None] and told[0]["logprobs"] is None
    chat = (await site.chat(prompt_logprobs=0)).json()
    assert chat["prompt_logprobs"][0] is None and len(chat["prompt_logprobs"]) == len(site.engine.calls[-1].prompt)
    assert "prompt_logprobs" not in (await site.chat()).json()
    refusal(await site.chat(prompt_logprobs=1, stream=True), 400, "prompt_logprobs")
    refusal(await site.complete(prompt_logprobs=-1), 400, "prompt_logprobs")
    refusal(await site.complete(prompt_logprobs=21), 400, "prompt_logprobs")
    refusal(await site.complete(prompt_logprobs=1, echo=True, logprobs=1), 400, "prompt_logprobs")
