"""POST /tokenize and /detokenize, in the shapes of vLLM and SGLang at once."""

import msgspec

from branchpoint.runtime.messages import Segment, Text
from branchpoint.runtime.serving.chat_messages import template_messages
from branchpoint.runtime.serving.errors import bad_request
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.limits import check_ids
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["DetokenizeRequest", "TokenizeRequest", "detokenize", "tokenize"]

MAX_TOKENS = 2**20


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /tokenize: a `prompt` or chat `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Json] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /detokenize."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool = False


async def tokenize(gateway: Gateway, body: Json) -> Json:
    """`{tokens, count, max_model_len, token_strs}` of a prompt, as a completion would see it."""
    fields = as_request(body, TokenizeRequest, Rules())
    gateway.check_model(fields.model)
    tokenizer = gateway.loaded.tokenizer
    if (fields.prompt is None) == (fields.messages is None):
        raise bad_request("Exactly one of prompt and messages must be given.", "prompt")
    segments: tuple[Segment, ...] = (Text(fields.prompt or ""),)
    raw = fields.messages is None
    if fields.messages is not None:
        messages, add = template_messages(fields.messages), fields.add_generation_prompt
        segments = await gateway.aside(lambda: tokenizer.render_segments(messages, add_generation_prompt=add))
    if fields.prompt is not None and not fields.add_special_tokens:
        prompt = fields.prompt
        gateway.check_size(segments, "prompt")
        tokens = await gateway.aside(lambda: list(tokenizer.encode(prompt, special=True)))
    else:
        tokens = list((await gateway.prepare(segments, heal=False, param="prompt" if raw else "messages", raw=raw)).tokens)
    strings = [tokenizer.decode((token,), skip_special=False) for token in tokens] if fields.return_token_strs else None
    return {"tokens": tokens, "count": len(tokens), "max_model_len": gateway.loaded.info.context_length, "token_strs": strings}


async def detokenize(gateway: Gateway, body: Json) -> Json:
    """The text of `tokens`, as `prompt` (vLLM) and `text` (SGLang)."""
    fields = as_request(body, DetokenizeRequest, Rules())
    gateway.check_model(fields.model)
    loaded = gateway.loaded
    if len(fields.tokens) > MAX_TOKENS:
        raise bad_request(f"tokens holds {len(fields.tokens)} ids; at most {MAX_TOKENS} can be sent at once.", "tokens")
    check_ids(fields.tokens, loaded.info.vocabulary_size, "tokens")
    text = await gateway.aside(lambda: loaded.tokenizer.decode(fields.tokens, skip_special=fields.skip_special_tokens))
    return {"prompt": text, "text": text}
