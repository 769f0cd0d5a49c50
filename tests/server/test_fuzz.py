"""Whatever the bodies are, no route answers with a 5xx: by chance, and by schemathesis from our own OpenAPI."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.serving_site import open_site

POSTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/generate",
    "/branchpoint/score",
    "/branchpoint/render",
    "/tokenize",
    "/detokenize",
    "/abort_request",
)
WORDS = (
    "model messages prompt text input input_ids query documents items segments options n stop seed tools tool_choice max_tokens "
    "logprobs top_logprobs echo stream stream_options temperature top_p top_k logit_bias response_format structured_outputs "
    "type content role system text_1 text_2 label_token_ids tokens rid sampling_params sampling hints constraint regex "
    "encoding_format dimensions pooling priority cache_salt function name parameters json_schema schema arguments prompt_logprobs"
)
NAMES = st.sampled_from(WORDS.split())
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    NAMES,
)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12)
GOOD: dict[str, object] = {
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "text": "hi",
    "max_tokens": 3,
}


ASKED = st.tuples(
    st.sampled_from(POSTS), st.dictionaries(NAMES, VALUES, max_size=6), st.sets(st.sampled_from(sorted(GOOD)), max_size=3)
)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=st.lists(ASKED, min_size=12, max_size=12))
async def test_no_body_makes_a_route_fail(asked: list[tuple[str, dict[str, object], set[str]]]) -> None:
    async with open_site(context=512, strict=False) as site:
        for path, body, good in asked:
            answer = await site.http.post(path, json=body | {name: GOOD[name] for name in good})
            assert answer.status_code < 500, (path, answer.status_code, answer.text)
            if answer.status_code >= 400:
                assert len(answer.content) < 5000 and "message" in json.dumps(answer.json())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_schemathesis_finds_no_failure_of_the_server() -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis isn't installed")
    from branchpoint.runtime.serving.app import build_app
    from branchpoint.runtime.serving.gateway import Gateway, Loaded
    from branchpoint.runtime.serving.options import ServerOptions
    from tests.runtime.serving_fake import FakeEngine
    from tests.runtime.serving_site import tokenizer

    asked = ServerOptions()
    gateway = Gateway(asked)
    gateway.attach(Loaded(FakeEngine(), tokenizer(), ("fake",), 8))
    schema = schemathesis.openapi.from_asgi("/openapi.json", build_app(gateway, asked)).exclude(
        path="/cache"
    )  # which the fake engine has not

    for test in schema.get_all_operations():
        operation = test.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
        def one(case: Any) -> None:
            assert case.call().status_code < 500, case

        one()
    gateway.close()
