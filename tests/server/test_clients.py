"""The conformance kit against servers of our own: each of its checks is a test, and a server that is wrong fails them.

Through the `openai` client on a model of random weights in the gate; through all clients (the group `clients` of pyproject.toml
installs them) on a real model otherwise. A check is skipped where its client isn't there.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from typer.testing import CliRunner

from branchpoint.cli import app
from branchpoint.runtime.conformance.catalogue import CHECKS
from branchpoint.runtime.conformance.check import Check
from branchpoint.runtime.conformance.report import Result, summary
from branchpoint.runtime.conformance.server import Server, Skipped
from branchpoint.runtime.weights.dummy import dummy_config
from tests.runtime.adapters import write_adapter
from tests.system.served import ROOT, served

KEY = "secret"
NAMES = ("--served-model-name", "small", "--served-model-name", "gpt-4o-mini")  # dspy sends schemas to models it knows only

pytestmark = pytest.mark.filterwarnings("ignore")  # the clients' own deprecations


def opened(*options: str, model: str) -> Iterator[Server]:
    with served(*NAMES, "--api-key", KEY, "--threads", "1", *options, model=model) as running:
        server = Server(running.ready().url, "small", KEY)
        yield server
        server.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    adapter = write_adapter(tmp_path_factory.mktemp("adapter"), dummy_config("llama"))
    yield from opened("--num-pages", "256", "--lora-modules", f"tuned={adapter}", model="dummy:llama")


@pytest.fixture(scope="module")
def real() -> Iterator[Server]:
    yield from opened("--num-pages", "256", "--context-length", "2048", "--cpu-weights", "int4", model="smollm2")


def made(check: Check, server: Server) -> None:
    try:
        check.run(server)
    except Skipped as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("check", [check for check in CHECKS if check.client == "openai"], ids=lambda check: check.name)
def test_openais_client_finds_what_it_expects(small: Server, check: Check) -> None:
    made(check, small)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_client_finds_what_it_expects_of_a_real_model(real: Server, check: Check) -> None:
    made(check, real)


def test_there_are_more_than_sixty_checks_each_named_after_what_it_holds() -> None:
    assert len(CHECKS) > 60 and len({check.name for check in CHECKS}) == len(CHECKS)
    assert {"openai", "anthropic", "langchain-openai", "instructor", "litellm", "pydantic-ai", "dspy"} == {
        c.client for c in CHECKS
    }
    assert all(check.holds.endswith(".") and "\n" not in check.holds for check in CHECKS)
    assert f"{len(CHECKS)} checks" in (ROOT / "docs" / "operators.md").read_text()


class Nonsense(BaseHTTPRequestHandler):
    """Says yes to everything."""

    def do_POST(self) -> None:
        body = b'{"data": [], "choices": []}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_DELETE = do_POST

    def log_message(self, format: str, *args: object) -> None:
        return


def test_a_server_that_says_yes_to_everything_passes_no_check() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Nonsense) as wrong:
        threading.Thread(target=wrong.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{wrong.server_port}/v1"
        answer = CliRunner().invoke(
            app, ["conformance", url, "--model", "small", "--client", "openai", "--api-key", KEY, "--json"]
        )
        wrong.shutdown()
    results = msgspec.json.decode(answer.output, type=list[Result])
    assert answer.exit_code == 1 and len(results) > 60
    assert [result.name for result in results if result.outcome != "failed" or not result.told] == []
    assert f"0 passed, {len(results)} failed" in summary(results) and results[0].holds in results[0].line
