"""What SECURITY.md claims, where no other test holds it."""

import ast
import asyncio
import contextlib
import re
import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import httpx
import msgspec
import pytest

from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.process import _private_folder
from branchpoint.runtime.serving.gateway import Loaded
from branchpoint.runtime.serving.life import Loading
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.server import Server, bind
from tests.runtime.serving_fake import FakeEngine
from tests.runtime.serving_site import open_site, refusal, tokenizer

ROOT = Path(__file__).parents[2]
ROOMS = ("lang", "runtime", "radix", "kernels", "constrained", "src/branchpoint")
UNSAFE = {"pickle", "shelve", "marshal", "dill", "cloudpickle"}


def test_nothing_is_unpickled_but_what_the_grammar_sandbox_is_started_with() -> None:
    found = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                if UNSAFE & {name.split(".")[0] for name in names}:
                    found.add(str(path.relative_to(ROOT)))
            assert "trust_remote_code=True" not in text and "weights_only=False" not in text, path
    assert {Path(one).name for one in found} <= {"sandbox.py", "trial.py"}, found


def test_the_engines_sockets_lie_in_a_folder_of_the_servers_user_alone() -> None:
    folder = Path(_private_folder())
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        shutil.rmtree(folder)


async def test_no_request_names_a_file_a_template_or_code() -> None:
    async with open_site() as site:
        for field, value in (
            ("chat_template", "{{ 1 }}"),
            ("custom_logit_processor", "x"),
            ("logits_processors", ["os.system"]),
            ("documents", [{"path": "/etc/passwd"}]),
        ):
            refusal(await site.chat(**{field: value}), 400, field)
        refusal(await site.chat(lora_path="/etc"), 404, "lora_path")  # the name of an adapter, never a place
        image = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
        refusal(await site.chat(messages=[{"role": "user", "content": [image]}]), 400, "messages[0].content[0].type")


def test_a_server_listens_to_its_own_machine_unless_told_otherwise() -> None:
    assert ServerOptions().host == "127.0.0.1"


async def test_no_origin_is_let_in() -> None:
    async with open_site() as site:
        for method in ("GET", "OPTIONS"):
            answer = await site.http.request(method, "/v1/models", headers={"origin": "http://evil.example"})
            assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_logs_hold_neither_prompts_nor_outputs_nor_keys(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "branchpoint")
    async with open_site(api_keys=("secret-key",)) as site:
        site.engine.say = "secret-output"
        for headers in ({"authorization": "Bearer secret-key"}, {"authorization": "Bearer secret-wrong"}):
            for body in ({"prompt": "secret-prompt"}, {"prompt": "secret-prompt", "best_of": "secret-field"}):
                await site.http.post("/v1/completions", json=body, headers=headers)
        assert "branchpoint" in {record.name.split(".")[0] for record in caplog.records}
        assert "secret" not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("branchpoint"))


def test_the_options_that_security_md_and_the_docs_name_exist() -> None:
    names = {"--" + field.name.replace("_", "-") for field in msgspec.structs.fields(ServerOptions)}
    for file in ("SECURITY.md",):
        for option in re.findall(r"`(--[a-z-]+)", (ROOT / file).read_text()):
            assert option in names, option


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, isn't installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return cert, key


async def test_https_with_and_without_a_clients_certificate(certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    for ca in (None, cert):
        options = ServerOptions(ssl_certfile=cert, ssl_keyfile=key, ssl_ca_certs=ca)
        told = list[str]()
        server = Server(options, [Loading(lambda: Loaded(FakeEngine(), tokenizer(), ("fake",), 8), lambda: None)], told.append)
        listener = bind("127.0.0.1", 0)
        port = listener.getsockname()[1]
        running = asyncio.create_task(server.run(listener))
        while not any("https://" in line for line in told):
            await asyncio.sleep(0.005)
        trust = ssl.create_default_context(cafile=cert)
        anonymous = httpx.AsyncClient(verify=ssl.create_default_context(cafile=cert), base_url=f"https://127.0.0.1:{port}")
        if ca is not None:
            trust.load_cert_chain(cert, key)
        async with httpx.AsyncClient(verify=trust, base_url=f"https://127.0.0.1:{port}") as known, anonymous:
            assert (await known.post("/v1/completions", json={"prompt": "hi"})).status_code == 200
            if ca is None:
                assert (await anonymous.get("/health")).status_code == 200
            else:
                with pytest.raises(httpx.TransportError):
                    await anonymous.get("/health")
        server._signalled()
        with contextlib.suppress(asyncio.CancelledError):
            assert await running == 0


async def test_a_certificate_that_cant_be_used_is_refused(tmp_path: Path) -> None:
    for options in ({"ssl_certfile": str(tmp_path / "none.pem")}, {"ssl_certfile": __file__}):
        listener = bind("127.0.0.1", 0)
        loading = Loading(lambda: Loaded(FakeEngine(), tokenizer(), ("fake",), 8), lambda: None)
        with pytest.raises(InvalidRequest, match="certificate"):
            await Server(ServerOptions(**options), [loading], lambda _line: None).run(listener)
        listener.close()
