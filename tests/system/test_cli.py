"""The command line: light, one option for each field, refusals of one line."""

import subprocess
import sys

import msgspec
import pytest

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.serving.options import ServerOptions


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "branchpoint", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={"COLUMNS": "200", "PYTHONPATH": ":".join(sys.path)} | variables
    )


def test_help_and_version() -> None:
    assert "serve" in run("--help").stdout
    assert run("version").stdout.startswith("branchpoint ")


def test_serve_has_an_option_for_each_field() -> None:
    told = run("serve", "--help").stdout
    renamed = {
        "api_keys": "--api-key",
        "model_names": "--served-model-name",
        "drafters": "--drafter",
        "model": "model",
        "served_name": "--served-model-name",
        "adapters": "--lora-modules",
    }
    for struct in (EngineConfig, ServerOptions):
        for field in msgspec.structs.fields(struct):
            assert renamed.get(field.name, "--" + field.name.replace("_", "-")) in told, field.name


def test_the_command_line_loads_nothing_heavy() -> None:
    code = "import sys, branchpoint.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"torch", "transformers", "zmq", "fastapi", "uvicorn", "llguidance"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("serve", "x", "--page-size", "0"), "page_size must be in [1, 128], got 0"),
        (("serve", "x", "--port", "70000"), "port must be in"),
        (("serve", "x", "--api-key", ""), "must not be empty"),
        (("serve", "x", "--host", ""), "host must not be empty"),
        (("serve", "x", "--num-pages", "1"), "num_pages must be at least 2"),
        (("serve", "x", "--num-pages", "0"), "num_pages must be above 0"),
        (("serve", "x", "--kv-memory-gib", "nan"), "kv_memory_gib must be above 0"),
        (("serve", "x", "--max-model-len", "0"), "context_length must be above 0"),
        (("serve", "x", "--gpu-memory-utilization", "2"), "gpu_memory_utilization must be above 0 and at most 1"),
        (("serve", "x", "--max-body-bytes", "0"), "max_body_bytes must be at least 1"),
        (("serve", "x", "--shutdown-timeout", "nan"), "shutdown_timeout must be at least 0"),
        (("serve", "x", "--shutdown-timeout", "-1"), "shutdown_timeout"),
        (("serve", "x", "--lora-modules", "sql"), "--lora-modules takes NAME=VALUE, each name once, got 'sql'"),
    ],
)
def test_refusals_are_one_line_and_status_2(arguments: tuple[str, ...], told: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("branchpoint: ") and told in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout


@pytest.mark.parametrize(
    "arguments", [("serve",), ("serve", "x", "--heat", "1"), ("serve", "x", "--policy", "luck"), ("nonsense",)]
)
def test_what_isnt_an_option_is_refused(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_a_key_that_is_set_but_empty_doesnt_open_the_server() -> None:
    done = run("serve", "x", BRANCHPOINT_API_KEY="")
    assert done.returncode == 2 and "BRANCHPOINT_API_KEY is set but holds no key" in done.stderr
