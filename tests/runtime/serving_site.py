"""A whole HTTP side around the fake engine, for the serving tests."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache

import httpx
import msgspec
from starlette.types import ASGIApp

from branchpoint.runtime.serving.app import Endpoint, build_app
from branchpoint.runtime.serving.gateway import Gateway, Loaded
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.tokenizer import Tokenizer, load_tokenizer
from branchpoint.runtime.tokenizer_files import from_bytes
from tests.runtime.serving_fake import EOS, VOCABULARY, FakeEngine

__all__ = ["BASE", "BOTH", "Site", "open_site", "refusal", "tokenizer"]

BOTH = ("/v1/chat/completions", "/v1/completions")
BASE: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/generate": {"text": "hi"},
}


@dataclass
class Site:
    http: httpx.AsyncClient
    engine: FakeEngine
    gateway: Gateway
    app: ASGIApp

    async def post(self, path: str, **body: object) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def chat(self, **body: object) -> httpx.Response:
        return await self.post("/v1/chat/completions", **({"messages": [{"role": "user", "content": "hi"}]} | body))

    async def complete(self, **body: object) -> httpx.Response:
        return await self.post("/v1/completions", **({"prompt": "hi"} | body))


@cache
def tokenizer(template: str | None = None) -> Tokenizer:
    """One of bytes; ids from 256 on are made-up words. `template` is its chat template, instead of a plain one."""
    if template is None:
        return load_tokenizer(None, VOCABULARY, (EOS,))
    return Tokenizer(replace(from_bytes(VOCABULARY, (EOS,)), chat_template=template), VOCABULARY, (EOS,))


@asynccontextmanager
async def open_site(
    *,
    loaded: bool = True,
    template: str | None = None,
    context: int | None = None,
    adapters: Sequence[str] = (),
    more: Sequence[Endpoint] = (),
    **options: object,
) -> AsyncIterator[Site]:
    asked = ServerOptions(**options)
    models, engine = Models(asked), FakeEngine()
    engine.adapters = {name: f"/begun/{name}" for name in adapters}
    gateway = models.first
    if context is not None:
        engine.info = msgspec.structs.replace(engine.info, context_length=context, num_pages=context)
    if loaded:
        gateway.attach(Loaded(engine, tokenizer(template), ("fake", "alias"), 8, dict(engine.adapters)))
    app = build_app(models, more)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        yield Site(http, engine, gateway, app)
    assert gateway.num_open == 0, "a request was left open"
    models.shared.close()


def refusal(response: httpx.Response, status: int = 400, param: str | None = None) -> str:
    """The message of a well-formed error body."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status and isinstance(error["code"], int)
    assert error["param"] == param, error
    assert len(response.content) < 2000
    return error["message"]
