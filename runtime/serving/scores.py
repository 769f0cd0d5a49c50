"""POST /v1/score and /v1/rerank: how likely a text is behind another, by the model's own log-probabilities.

A score is the geometric mean of the probabilities of a text's tokens, in (0, 1]. Documents are ranked by how likely they make
the query (Ponte and Croft 1998; Sachan et al. 2022), so that a plain language model can do it.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from branchpoint.runtime.messages import Ids, ScoreCall, Segment, Text
from branchpoint.runtime.serving.answer import Answer
from branchpoint.runtime.serving.completion import MAX_PROMPTS
from branchpoint.runtime.serving.errors import bad_request, shown
from branchpoint.runtime.serving.fields import INERT, salt_of
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.limits import check_ids
from branchpoint.runtime.serving.request_ids import request_id
from branchpoint.runtime.serving.scored_view import ScoredView
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["RERANK_RULES", "SCORE_RULES", "RerankRequest", "TextScoreRequest", "answer_rerank", "answer_text_score"]

SCORE_RULES = Rules(refused={"truncate_prompt_tokens": (), "activation": (), "encoding_format": ("float",)}, inert=INERT)
RERANK_RULES = Rules(
    refused={"truncate_prompt_tokens": (), "activation": (), "instruct": (), "max_chunks_per_doc": ()}, inert=INERT
)
MAX_LABELS = 4096
_LIKELIHOOD_FIELDS, _LABEL_FIELDS = ("text_1", "text_2"), ("label_token_ids", "apply_softmax", "item_first")

_DOCUMENT, _QUERY = "Document: ", "\n\nA search that this document answers: "


class TextScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /v1/score, in one of two shapes.

    `text_1` and `text_2` (vLLM's): each text or list of them; a single one goes with all of the other. Or `query`, `items` and
    `label_token_ids` (SGLang's): the probabilities of these tokens as the next one behind query and item.
    """

    model: str | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    query: str | list[int] | None = None
    items: str | list[object] | None = None
    label_token_ids: list[int] | None = None
    apply_softmax: bool = False
    item_first: bool = False
    request_id: str | None = None
    rid: str | None = None
    cache_salt: str | None = None


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /v1/rerank. A document is a text, or an object with one; the best `top_n` are told (0: all)."""

    query: str
    documents: list[object]
    model: str | None = None
    top_n: int = 0
    return_documents: bool = True
    request_id: str | None = None
    rid: str | None = None
    cache_salt: str | None = None


async def answer_text_score(gateway: Gateway, body: Json, headers: Mapping[str, str]) -> Answer:
    """The answer to a score request. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, TextScoreRequest, SCORE_RULES)
    name = gateway.check_model(fields.model)
    own = request_id("score-", fields.request_id or fields.rid, headers)
    labels = fields.query is not None or fields.items is not None
    for other in _LIKELIHOOD_FIELDS if labels else _LABEL_FIELDS:
        if getattr(fields, other) not in (None, False):
            told = "query and items" if labels else "text_1 and text_2"
            raise bad_request(f"{other} means nothing beside {told}; leave it out.", other)
    if labels:
        calls = await _label_calls(gateway, fields, own)
        return Answer(gateway, own, calls, _LabelView(own, name, softmax=fields.apply_softmax))
    pairs = _pairs(gateway, fields)
    texts = [((Text(first),), second) for first, second in pairs]
    calls, skips = await _likelihoods(gateway, texts, own, salt_of(fields.cache_salt), ("text_1", "text_2"))
    return Answer(gateway, own, calls, _ScoreView(own, name, skips))


async def answer_rerank(gateway: Gateway, body: Json, headers: Mapping[str, str]) -> Answer:
    """The answer to a rerank request. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, RerankRequest, RERANK_RULES)
    name = gateway.check_model(fields.model)
    if not fields.query.strip():
        raise bad_request("query must not be empty.", "query")
    if fields.top_n < 0:
        raise bad_request(f"top_n must be at least 0, got {str(fields.top_n)[:40]}.", "top_n")
    documents = [_document(value, place) for place, value in enumerate(_some(fields.documents, "documents"))]
    _check_spread(gateway, fields.query, documents, "query")
    own = request_id("rerank-", fields.request_id or fields.rid, headers)
    texts = [((Text(_DOCUMENT + document + _QUERY),), fields.query) for document in documents]
    calls, skips = await _likelihoods(gateway, texts, own, salt_of(fields.cache_salt), ("documents", "query"))
    view = _RerankView(own, name, skips, documents if fields.return_documents else None, fields.top_n or len(documents))
    return Answer(gateway, own, calls, view)


def _some(values: Sequence[object], param: str) -> Sequence[object]:
    if not 0 < len(values) <= MAX_PROMPTS:
        raise bad_request(f"{param} must hold 1 to {MAX_PROMPTS} entries, got {len(values)}.", param)
    return values


def _document(value: object, place: int) -> str:
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise bad_request(f"documents[{place}] must be a text, or an object with one, got {shown(value)}.", f"documents[{place}]")
    return text


def _check_spread(gateway: Gateway, shared: object, others: Sequence[object], param: str) -> None:
    """What goes with each of `others` counts that often, as if it were written out: a short body must not become a huge one."""
    written = len(msgspec.json.encode(shared)) * len(others) + len(msgspec.json.encode(others))
    most = gateway.settings.max_body_bytes
    if written > most:
        raise bad_request(
            f"{param} goes with {len(others)} others, which makes {written} bytes; at most {most} can be had. Split it.", param
        )


def _pairs(gateway: Gateway, fields: TextScoreRequest) -> list[tuple[str, str]]:
    if fields.text_1 is None or fields.text_2 is None:
        raise bad_request("text_1 and text_2 must be given, or query, items and label_token_ids.", "text_1")
    firsts, seconds = ([each] if isinstance(each, str) else each for each in (fields.text_1, fields.text_2))
    _some(firsts, "text_1")
    _some(seconds, "text_2")
    if len(firsts) != len(seconds) and 1 not in (len(firsts), len(seconds)):
        raise bad_request(
            f"text_1 and text_2 must be of one length, or one of them single; got {len(firsts)} and {len(seconds)}."
        )
    shared, others, param = (firsts[0], seconds, "text_1") if len(firsts) == 1 else (seconds[0], firsts, "text_2")
    if len(firsts) != len(seconds):
        _check_spread(gateway, shared, others, param)
    count = max(len(firsts), len(seconds))
    pairs = [(firsts[place % len(firsts)], seconds[place % len(seconds)]) for place in range(count)]
    for first, second in pairs:
        if not first or not second:
            raise bad_request("A text to be scored, and the one before it, must not be empty.", "text_2" if first else "text_1")
    return pairs


async def _likelihoods(
    gateway: Gateway, texts: Sequence[tuple[tuple[Segment, ...], str]], own: str, space: str, params: tuple[str, str]
) -> tuple[tuple[ScoreCall, ...], tuple[int, ...]]:
    """A call for each text behind its segments, and for each how many tokens carry no byte of the text."""
    calls, skips = list[ScoreCall](), list[int]()
    for place, (segments, text) in enumerate(texts):
        ready = await gateway.options(segments, (text,), params)
        calls.append(ScoreCall(f"{own}-{place}", ready.prompt, ready.continuations, space))
        skips.append(ready.skips[0])
    return tuple(calls), tuple(skips)


async def _label_calls(gateway: Gateway, fields: TextScoreRequest, own: str) -> tuple[ScoreCall, ...]:
    if fields.query is None or fields.items is None or not fields.label_token_ids:
        raise bad_request("query, items and label_token_ids go together; the last must not be empty.", "label_token_ids")
    labels = fields.label_token_ids
    if len(labels) > MAX_LABELS:
        raise bad_request(f"label_token_ids may hold {MAX_LABELS} ids, got {len(labels)}.", "label_token_ids")
    check_ids(labels, gateway.loaded.info.vocabulary_size, "label_token_ids")
    items = _some([fields.items] if isinstance(fields.items, str) else fields.items, "items")
    _check_spread(gateway, fields.query, items, "query")
    space, continuations = salt_of(fields.cache_salt), tuple((label,) for label in labels)
    calls = list[ScoreCall]()
    for place, item in enumerate(items):
        parts = [_segment(fields.query, "query"), _segment(item, f"items[{place}]")]
        prompt = await gateway.prepare(parts[::-1] if fields.item_first else parts, heal=False, param="items", raw=True)
        gateway.check_length(len(prompt.tokens) + 1, "items")
        calls.append(ScoreCall(f"{own}-{place}", tuple(prompt.tokens), continuations, space))
    return tuple(calls)


def _segment(value: object, param: str) -> Segment:
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, list) and all(type(token) is int for token in value):
        return Ids(tuple(value))
    raise bad_request(f"{param} must be a text or a list of token ids, got {shown(value)}.", param)


def _usage(view: ScoredView) -> Json:
    return view.usage() | {"completion_tokens": 0}


class _LabelView(ScoredView):
    """SGLang's `{scores}`: a list of probabilities for each item."""

    def __init__(self, own: str, model: str, *, softmax: bool) -> None:
        super().__init__(own, model)
        self._softmax = softmax

    def whole(self) -> object:
        """The scores."""
        scores = [[math.exp(logprobs[0]) for logprobs in scored.logprobs] for scored in self.ordered()]
        if self._softmax:
            scores = [[each / (sum(row) or 1.0) for each in row] for row in scores]
        return self.head | {"object": "scoring", "scores": scores, "usage": _usage(self)}


class _ScoreView(ScoredView):
    """vLLM's `{data: [{index, score}]}`."""

    def __init__(self, own: str, model: str, skips: tuple[int, ...]) -> None:
        super().__init__(own, model)
        self._skips = skips

    def _means(self) -> list[float]:
        """The geometric means of the tokens' probabilities."""
        kept = [scored.logprobs[0][skip:] for scored, skip in zip(self.ordered(), self._skips, strict=True)]
        return [math.exp(sum(logprobs) / len(logprobs)) for logprobs in kept]

    def whole(self) -> object:
        """The scores."""
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(self._means())]
        return self.head | {"object": "list", "data": data, "usage": _usage(self)}


class _RerankView(_ScoreView):
    """vLLM's and Jina's `{results: [{index, document, relevance_score}]}`, the best first."""

    def __init__(self, own: str, model: str, skips: tuple[int, ...], documents: Sequence[str] | None, most: int) -> None:
        super().__init__(own, model, skips)
        self._documents = documents
        self._most = most

    def whole(self) -> object:
        """The best documents."""
        ranked = sorted(enumerate(self._means()), key=lambda each: -each[1])[: self._most]
        results = list[Json]()
        for index, score in ranked:
            document: Json = {"document": {"text": self._documents[index]}} if self._documents is not None else {}
            results.append({"index": index, **document, "relevance_score": score})
        return self.head | {"results": results, "usage": _usage(self)}
