"""One HTTP server, asked in JSON: sends, retries where its `Retry` rule says so, and turns what fails into BackendError.

Used by `http.py` and by the backends of other servers' APIs; belongs to the event loop that uses it first.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypedDict, TypeVar, Unpack

import httpx
import msgspec

from branchpoint.lang.backends.retry import Retry, when_told
from branchpoint.lang.errors import BackendError, ProgramMistake
from branchpoint.runtime.errors import InvalidRequest

__all__ = ["Connection", "LinkOptions", "bearer", "find_service"]

T = TypeVar("T")

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 8.0
_KEEP_SECONDS = 2.0  # shorter than servers keep idle connections, so that none is used while it is being closed
_LOCAL = ("localhost", "127.0.0.1", "::1")
_QUOTED = 2000


def bearer(api_key: str | None, header: str = "Authorization", prefix: str = "Bearer ") -> dict[str, str]:
    """The header that carries a key, if there is one. Raises InvalidRequest for what no header holds."""
    if api_key and not (api_key.isascii() and api_key.isprintable()):
        raise InvalidRequest("api_key must be printable ASCII, to be sent in a header; got other characters.", param="api_key")
    return {header: prefix + api_key} if api_key else {}


def find_service(name: str, home: str, api_key: str | None, base_url: str | None) -> tuple[str, str | None]:
    """Address and key of a service, from NAME_BASE_URL and NAME_API_KEY where they aren't given. Raises InvalidRequest.

    At `home` it can't be without a key.
    """
    url = base_url or os.environ.get(f"{name.upper()}_BASE_URL") or home
    key = api_key if api_key is not None else os.environ.get(f"{name.upper()}_API_KEY")
    if not key and url.startswith(home):
        raise InvalidRequest(f"{name} needs a key: give api_key=, or set {name.upper()}_API_KEY.", param="api_key")
    return url, key


class LinkOptions(TypedDict, total=False):
    """How a server is reached.

    `timeout` is how many seconds of silence a request bears (600; None: any), `connect_timeout` how many a connection may take
    (10). `retries` is how often a request is sent again (3), `transport` is httpx's.
    """

    timeout: float | None
    connect_timeout: float
    retries: int
    transport: httpx.AsyncBaseTransport | None


class Connection:
    """Requests to the server at `url`, each with `headers`.

    A request is sent again where the connection was refused, and where `retry` says so of an answer. `hint` is added to the
    message of a 404. Raises TypeError for an unknown option.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        retry: Retry = when_told,
        hint: str = "",
        **options: Unpack[LinkOptions],
    ) -> None:
        if unknown := options.keys() - LinkOptions.__annotations__.keys():
            known = ", ".join(LinkOptions.__annotations__)
            raise ProgramMistake(f"A backend's connection has no option {min(unknown)}; it has {known}.")
        parsed = _parsed(url)
        self.url = str(parsed).rstrip("/")
        self._local = parsed.host in _LOCAL
        self._headers = dict(headers)
        self._timeouts = httpx.Timeout(options.get("timeout", 600.0), connect=options.get("connect_timeout", 10.0), pool=None)
        self._retries = options.get("retries", 3)
        self._retry = retry
        self._transport = options.get("transport")
        self._hint = hint
        self._client: httpx.AsyncClient | None = None

    async def ask(self, method: str, path: str, form: type[T], body: object = None) -> T:
        """The answer, as a `form`. Raises BackendError."""
        async with self.open(method, path, body) as response:
            raw = await response.aread()
        try:
            return msgspec.json.decode(raw, type=form)
        except msgspec.DecodeError as error:
            told = _quoted(raw)
            raise BackendError(
                f"{self.url}{path} answered in another form than it should ({error}): {told[:200]}", status=200, body=told
            ) from error

    @asynccontextmanager
    async def open(self, method: str, path: str, body: object = None) -> AsyncIterator[httpx.Response]:
        """A good answer, its body still to be read; leaving closes it. Raises BackendError, also for what fails inside."""
        response = await self._send(method, path, _encoded(body))
        try:
            yield response
        except httpx.HTTPError as error:
            raise BackendError(f"The answer of {self.url}{path} broke off: {_named(error)}.", status=200) from error
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _send(self, method: str, path: str, content: bytes | None) -> httpx.Response:
        for attempt in itertools.count():
            pause = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE)
            try:
                response = await self._sent(method, path, content)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # nothing was sent
                failure = BackendError(f"Can't reach the server at {self.url}: {_named(error)}. Is it running?")
                failure.__cause__ = error
            except httpx.HTTPError as error:
                raise BackendError(f"{method} {self.url}{path} got no answer: {_named(error)}.") from error
            else:
                if response.status_code == HTTPStatus.OK:
                    return response
                failure = await self._refusal(response, f"{method} {self.url}{path}")
                wait = self._retry(response, failure.body, pause)
                if wait is None:
                    raise failure
                pause = wait
            if attempt >= self._retries:
                raise failure
            await asyncio.sleep(pause)
        raise AssertionError("the loop ends by itself")

    async def _sent(self, method: str, path: str, content: bytes | None) -> httpx.Response:
        if self._client is None:
            self._client = httpx.AsyncClient(
                headers=self._headers,
                timeout=self._timeouts,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=_KEEP_SECONDS),
                transport=self._transport,
                trust_env=not self._local,  # no proxy stands between us and this machine
            )
        headers = {"Content-Type": "application/json"} if content is not None else {}
        request = self._client.build_request(method, self.url + path, content=content, headers=headers)
        return await self._client.send(request, stream=True)

    async def _refusal(self, response: httpx.Response, asked: str) -> BackendError:
        """The error that an answer other than 200 is."""
        try:
            raw = await response.aread()
        except httpx.HTTPError as error:
            raw = f"(its body broke off: {_named(error)})".encode()
        finally:
            await response.aclose()
        status, told = response.status_code, _quoted(raw)
        hint = self._hint if status == HTTPStatus.NOT_FOUND else ""
        message = f"{asked} answered {status} {response.reason_phrase}: {_message(raw) or told[:300] or 'an empty body'}{hint}"
        return BackendError(message, status=status, body=told)


class _Error(msgspec.Struct, frozen=True):
    message: str


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Error


def _message(raw: bytes) -> str | None:
    """What OpenAI's error body says, None where it is another."""
    try:
        return msgspec.json.decode(raw, type=_ErrorBody).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _parsed(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise InvalidRequest(f"url must be the server's address, such as http://127.0.0.1:8000, got {url!r:.80}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidRequest(f"url must be the server's address, such as http://127.0.0.1:8000, got {url!r:.80}.", param="url")
    return parsed


def _encoded(body: object) -> bytes | None:
    try:
        return None if body is None else msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidRequest("Text must be valid Unicode; it holds half of a surrogate pair.", param="prompt") from error


def _quoted(raw: bytes) -> str:
    return raw[:_QUOTED].decode("utf-8", "replace")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
