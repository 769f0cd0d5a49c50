"""POST /v1/embeddings: a vector of each text, from the model's last hidden states, in OpenAI's shape.

A vector is the mean of the states of a text's tokens, or the last token's, cut to the `dimensions` asked for, of length 1.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from branchpoint.runtime.messages import ScoreCall
from branchpoint.runtime.serving.answer import Answer
from branchpoint.runtime.serving.completion import prompts_of
from branchpoint.runtime.serving.errors import bad_request
from branchpoint.runtime.serving.fields import INERT, hints_of, salt_of
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.request_ids import request_id
from branchpoint.runtime.serving.scored_view import ScoredView
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["EMBEDDING_RULES", "EmbeddingRequest", "answer_embeddings"]

EMBEDDING_RULES = Rules(refused={"truncate_prompt_tokens": (), "add_special_tokens": (True,), "messages": ()}, inert=INERT)


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /v1/embeddings. `input` is a text, token ids, or a list of either; names of special tokens in a text are such."""

    input: str | list[object]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    pooling: Literal["mean", "last"] = "mean"
    normalize: bool = True
    request_id: str | None = None
    rid: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    lora_path: str | None = None


async def answer_embeddings(gateway: Gateway, body: Json, headers: Mapping[str, str]) -> Answer:
    """The answer to an embedding request. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, EmbeddingRequest, EMBEDDING_RULES)
    name = gateway.check_model(fields.model)
    size = gateway.loaded.info.hidden_size
    if fields.dimensions is not None and not 1 <= fields.dimensions <= size:
        raise bad_request(f"dimensions must be in [1, {size}], got {str(fields.dimensions)[:40]}.", "dimensions")
    own = request_id("embd-", fields.request_id or fields.rid, headers)
    space, hints = salt_of(fields.cache_salt), hints_of(fields.priority)
    calls = list[ScoreCall]()
    for place, segment in enumerate(prompts_of(fields.input, "input")):
        prompt = await gateway.prepare([segment], heal=False, param="input", raw=True)
        calls.append(ScoreCall(f"{own}-{place}", tuple(prompt.tokens), (), space, hints, fields.pooling))
    return Answer(gateway, own, tuple(calls), _EmbeddingView(own, name, fields))


class _EmbeddingView(ScoredView):
    """OpenAI's list of embeddings."""

    def __init__(self, own: str, model: str, fields: EmbeddingRequest) -> None:
        super().__init__(own, model)
        self._fields = fields

    def whole(self) -> object:
        """All vectors in one body."""
        data = [
            {"object": "embedding", "index": index, "embedding": self._shown(scored.vector)}
            for index, scored in enumerate(self.ordered())
        ]
        return self.head | {"object": "list", "data": data, "usage": self.usage()}

    def _shown(self, vector: Sequence[float]) -> Sequence[float] | str:
        kept = vector[: self._fields.dimensions]
        if self._fields.normalize:
            length = math.sqrt(sum(value * value for value in kept)) or 1.0
            kept = [value / length for value in kept]
        if self._fields.encoding_format == "base64":
            return base64.b64encode(np.asarray(kept, dtype="<f4").tobytes()).decode()
        return kept
