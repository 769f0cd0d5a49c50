"""The server that is asked, and the clients of it. Clients are untyped here: they are no requirements of this package."""

import importlib
import os
from functools import cached_property
from types import ModuleType
from typing import Any

from branchpoint.errors import BranchpointError

__all__ = ["KEYLESS", "Server", "Skipped", "need"]

KEYLESS = "none"
"""What is sent as key where there is none: clients refuse to do without."""

_QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_TELEMETRY": "true"}
"""Settings by which clients look nothing up elsewhere."""


class Skipped(BranchpointError, RuntimeError):
    """A check can't be made here: the client isn't installed, or the server serves nothing to ask for."""


class Server:
    """A server at `url` (with or without `/v1`), asked for `model` with `api_key`, for at most `seconds` a request."""

    def __init__(self, url: str, model: str, api_key: str = "", seconds: float = 120.0) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model
        self.api_key = api_key
        self.seconds = seconds

    @property
    def base(self) -> str:
        """Where OpenAI's API begins."""
        return f"{self.url}/v1"

    @property
    def key(self) -> str:
        """What clients send as key."""
        return self.api_key or KEYLESS

    @cached_property
    def openai(self) -> Any:
        """An `openai.OpenAI`, which doesn't ask twice. Raises Skipped without it."""
        return need("openai").OpenAI(base_url=self.base, api_key=self.key, max_retries=0, timeout=self.seconds)

    def chat(self, content: str = "Say hello.", **fields: Any) -> Any:
        """A chat completion, or its stream, greedy and short unless `fields` say otherwise."""
        asked = {"model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": 16, "temperature": 0}
        return self.openai.chat.completions.create(**asked | fields)

    def complete(self, prompt: object = "Once upon a time", **fields: Any) -> Any:
        """A text completion, or its stream, greedy and short unless `fields` say otherwise."""
        asked = {"model": self.model, "prompt": prompt, "max_tokens": 8, "temperature": 0}
        return self.openai.completions.create(**asked | fields)

    def close(self) -> None:
        """Close what was opened."""
        if "openai" in self.__dict__:
            self.openai.close()


def need(module: str) -> ModuleType:
    """The client's module. Raises Skipped where it isn't installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Skipped(f"{module} isn't installed: pip install 'branchpoint[clients]'") from error
