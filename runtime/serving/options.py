"""How the HTTP side is set up, beside `EngineConfig`, which says how the engine is."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.sampling import MAX_CHOICES, MAX_LOGPROBS
from branchpoint.runtime.serving.logs import LogFormat

__all__ = ["ServerOptions"]

_LEAST = {
    "max_body_bytes": 1,
    "max_queued_tokens": 1,
    "max_prompt_tokens": 1,
    "max_n": 1,
    "max_logprobs": 0,
    "max_schema_bytes": 1,
    "max_stored_responses": 0,
    "restarts": 0,
}
_SECONDS = ("max_request_seconds", "queue_seconds", "stall_seconds", "stuck_seconds", "keep_alive_seconds")


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the API process. Raises InvalidRequest naming the option.

    Without keys every request is served. `model_names` are what clients may call the model (its own name where empty).
    """

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(description="Port to listen on; 0 takes a free one.")] = 8000
    api_keys: Annotated[tuple[str, ...], Meta(description="A key that requests must carry; may be given several times.")] = ()
    api_key_file: Annotated[str | None, Meta(description="TOML file of keys, with limits for each (docs/server.md).")] = None
    guard_metrics: Annotated[bool, Meta(description="Ask for a key at /metrics too.")] = False
    model_names: Annotated[tuple[str, ...], Meta(description="The model's name to clients; may be given several times.")] = ()
    lora_dirs: Annotated[
        tuple[str, ...], Meta(description="Folder from which adapters may be loaded while it runs; may be given several times.")
    ] = ()
    models_file: Annotated[str | None, Meta(description="TOML file of models, with names and options for each.")] = None
    strict: Annotated[bool, Meta(description="Refuse unknown fields; otherwise a response header lists them.")] = True
    max_body_bytes: Annotated[int, Meta(description="Longest request body.")] = 64 * 2**20
    max_prompt_tokens: Annotated[int | None, Meta(description="Longest prompt in tokens; the context where left out.")] = None
    max_n: Annotated[int, Meta(description="Most samples of one prompt.")] = MAX_CHOICES
    max_logprobs: Annotated[int, Meta(description="Most alternatives reported for a token.")] = MAX_LOGPROBS
    max_schema_bytes: Annotated[int, Meta(description="Longest constraint (schema, pattern, grammar) of a request.")] = 2**20
    max_queued_tokens: Annotated[int | None, Meta(description="Tokens of prompts that may wait; beyond, 429.")] = None
    max_stored_responses: Annotated[int, Meta(description="Responses kept in memory for /v1/responses; 0: none.")] = 1000
    max_programs: Annotated[int, Meta(description="Programs that run at once; beyond, 503.")] = 64
    max_program_nodes: Annotated[int, Meta(description="Most nodes of a program, and most states.")] = 1000
    max_program_tokens: Annotated[int, Meta(description="Most tokens that a program may compute, over all its calls.")] = 2**18
    max_program_seconds: Annotated[float, Meta(description="Longest that a program may take.")] = 600.0
    queue_seconds: Annotated[float | None, Meta(description="Longest wait for a first token; beyond, 503.")] = None
    max_request_seconds: Annotated[float | None, Meta(description="Longest that a request or a stream may take.")] = None
    stall_seconds: Annotated[float, Meta(description="How long a reader may take nothing before it is cut off.")] = 60.0
    keep_alive_seconds: Annotated[float | None, Meta(description="Silence after which a stream sends a comment.")] = None
    stuck_seconds: Annotated[float, Meta(description="Silence of the engine after which /health answers 503.")] = 120.0
    restarts: Annotated[int, Meta(description="How often the engine is started again where it dies; then the server ends.")] = 1
    shutdown_timeout: Annotated[float, Meta(description="Seconds that running requests get after SIGTERM.")] = 30.0
    log_format: Annotated[LogFormat, Meta(description="Log lines as text, or as one JSON object each.")] = "text"
    log_prompts: Annotated[bool, Meta(description="Log prompts too, with --log-format json; they may be private.")] = False
    otlp_endpoint: Annotated[str | None, Meta(description="OTLP/HTTP collector of traces, as http://HOST:4318/v1/traces.")] = None
    ssl_certfile: Annotated[str | None, Meta(description="Certificate (PEM, with its chain): serve HTTPS.")] = None
    ssl_keyfile: Annotated[str | None, Meta(description="Private key of the certificate (PEM).")] = None
    ssl_ca_certs: Annotated[str | None, Meta(description="Ask clients for a certificate that one of these signed.")] = None

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise InvalidRequest(f"port must be in [0, 65535] (0 takes a free one), got {self.port}.", param="port")
        if not self.host:
            raise InvalidRequest("host must not be empty; 0.0.0.0 listens on every address.", param="host")
        if not self.shutdown_timeout >= 0:  # also what is no number
            raise InvalidRequest(f"shutdown_timeout must be at least 0, got {self.shutdown_timeout}.", param="shutdown_timeout")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidRequest(f"{name} must be at least {least}, got {value}.", param=name)
        for name in _SECONDS:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidRequest(f"{name} must be above 0, got {value}; leave it out for the default.", param=name)
        for name, most in (("max_n", MAX_CHOICES), ("max_logprobs", MAX_LOGPROBS)):
            if getattr(self, name) > most:
                raise InvalidRequest(f"{name} can be at most {most}, got {getattr(self, name)}.", param=name)
        if not all(key.strip() for key in self.api_keys):
            raise InvalidRequest("An API key must not be empty.", param="api_keys")
        if not all(self.model_names):
            raise InvalidRequest("A served name must not be empty.", param="model_names")
        for folder in self.lora_dirs:
            if not folder or not Path(folder).is_dir():
                raise InvalidRequest(f"lora_dirs must be folders that are there, got {folder!r:.200}.", param="lora_dirs")
        if self.log_prompts and self.log_format != "json":
            raise InvalidRequest("log_prompts needs log_format json, whose lines have fields.", param="log_prompts")
        if self.ssl_certfile is None and (self.ssl_keyfile is not None or self.ssl_ca_certs is not None):
            raise InvalidRequest("ssl_keyfile and ssl_ca_certs need ssl_certfile.", param="ssl_certfile")
