"""Whatever the bodies are, no route answers with a 5xx, or otherwise than its OpenAPI says: by chance, and by schemathesis."""

import json
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.serving_site import open_site
from tests.server.told import as_told, document
from tests.system.served import served

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
    "/branchpoint/end_program",
    "/v1/load_lora_adapter",
)
WORDS = (
    "model messages prompt text input input_ids query documents items segments options n stop seed tools tool_choice max_tokens "
    "logprobs top_logprobs echo stream stream_options temperature top_p top_k logit_bias response_format structured_outputs "
    "type content role system text_1 text_2 label_token_ids tokens rid sampling_params sampling hints constraint regex "
    "encoding_format dimensions pooling priority cache_salt function name parameters json_schema schema arguments "
    "prompt_logprobs lora_name lora_path load_inplace program"
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


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)


ASKED = st.tuples(
    st.sampled_from(POSTS), st.dictionaries(NAMES, VALUES, max_size=6), st.sets(st.sampled_from(sorted(GOOD)), max_size=3)
)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=st.lists(ASKED, min_size=12, max_size=12))
async def test_no_body_makes_a_route_fail(asked: list[tuple[str, dict[str, object], set[str]]]) -> None:
    async with open_site(context=512, strict=False) as site:
        told = await document(site)
        for path, body, good in asked:
            answer = await site.http.post(path, json=body | {name: GOOD[name] for name in good})
            assert answer.status_code < 500, (path, answer.status_code, answer.text)
            as_told(told, "post", path, answer)
            if answer.status_code >= 400:
                assert len(answer.content) < 5000 and "message" in json.dumps(answer.json())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_schemathesis_finds_no_fault_and_no_lie_of_the_openapi_document() -> None:
    program = shutil.which("schemathesis")
    if program is None:
        pytest.skip("schemathesis isn't installed")
    with served("--num-pages", "256", "--threads", "1", "--api-key", "secret", model="dummy:llama") as server:
        asked = [program, "run", f"{server.ready().url}/openapi.json", "--header", "Authorization: Bearer secret"]
        asked += ["--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--max-examples", "10", "--request-timeout", "60"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-6000:]
