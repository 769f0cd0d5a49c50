"""Between text and tokens, both ways, for whoever builds prompts (language, server) and for the engine.

Text from users never becomes a special token. Prompts come as segments; adjacent texts are cut as one, so that tokens don't
depend on how a program split its text. Thread-safe.
"""

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from branchpoint.constrained.vocabulary import Vocabulary, vocabulary_from_tokenizer_json
from branchpoint.errors import BranchpointError
from branchpoint.runtime.chat_template import ChatTemplate, Message
from branchpoint.runtime.errors import InvalidRequest, ModelError
from branchpoint.runtime.messages import Ids, Segment, Text
from branchpoint.runtime.tokenizer_files import TokenizerFiles, from_bytes, from_folder, from_gguf
from branchpoint.runtime.tokenizer_layout import SpecialToken, SpecialTokens, Stretch
from branchpoint.runtime.tokenizer_seams import Seams
from branchpoint.runtime.tokenizer_text import PlainText

__all__ = ["Prompt", "ScoredOptions", "Tokenizer", "load_tokenizer"]

_TAG = re.compile(r"[<\[]\S+[>\]]")  # `<think>`, `<tool_call>`, `[INST]`: control, though some tokenizers don't flag it


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, at least one. `heal` are bytes cut from the end, with which the output must begin (see `Call.heal`)."""

    tokens: tuple[int, ...]
    heal: bytes = b""


@dataclass(frozen=True, slots=True)
class ScoredOptions:
    """What `select` scores: `continuations[i]` after `prompt`; its first `skips[i]` tokens carry no byte of option i."""

    prompt: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    skips: tuple[int, ...]


def load_tokenizer(source: Path | None, vocabulary_size: int, eos_token_ids: Sequence[int]) -> "Tokenizer":
    """The tokenizer of a Hugging Face folder or a GGUF file, or one of bytes for dummy weights (None).

    `vocabulary_size` is the width of the model's logits. Raises ModelError where there is none, or it doesn't fit the model.
    """
    eos = tuple(eos_token_ids)
    if source is None:
        eos = eos or (vocabulary_size - 1,)
        return Tokenizer(from_bytes(vocabulary_size, eos), vocabulary_size, eos)
    try:
        files = from_folder(source) if source.is_dir() else from_gguf(source)
        return Tokenizer(files, vocabulary_size, eos)
    except BranchpointError:
        raise
    except Exception as error:  # the boundary to foreign files, for which `tokenizers` raises bare Exceptions
        raise ModelError(f"{source} should hold a tokenizer; loading it failed: {type(error).__name__}: {error}") from error


class Tokenizer:
    """Encodes segments, decodes ids, renders chats. `vocabulary_size` is the width of the logits, which may exceed the tokens."""

    def __init__(self, files: TokenizerFiles, vocabulary_size: int, eos_token_ids: tuple[int, ...]) -> None:
        layout = json.loads(files.json)
        added = [
            _special_token(entry) for entry in layout["added_tokens"] if entry["special"] or _TAG.fullmatch(entry["content"])
        ]
        flagged = {entry["id"] for entry in layout["added_tokens"] if entry["special"]}
        self._special = SpecialTokens(added)
        self._opening = files.opening
        names = {name: self._special.by_text[text].id for name, text in files.names.items() if text in self._special.by_text}
        self.eos_token_ids = eos_token_ids or tuple(names[name] for name in ("eos_token",) if name in names)
        self.bos_token_id = names.get("bos_token")
        self.special_ids = frozenset(flagged) | frozenset(self.eos_token_ids)
        self.vocabulary_size = vocabulary_size
        self._text = PlainText(layout, self._special)
        self._seams = Seams(self.token_bytes, self.special_ids)
        self._template = None
        if files.chat_template is not None:
            own = [token.text for token in added if token.id in flagged]
            self._template = ChatTemplate(files.chat_template, files.names, own, self._special.by_text)
        self.chat_template = files.chat_template
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._bytes: tuple[bytes, ...] = ()
        highest = max([*self._text.ids, *self.eos_token_ids], default=-1)
        if not self.eos_token_ids:
            raise ModelError("The model names no end token, neither in its configuration nor in its tokenizer; add eos_token_id.")
        if highest >= vocabulary_size:
            raise ModelError(
                f"The model has {vocabulary_size} token ids, its tokenizer goes up to id {highest}: they don't belong together."
            )

    @property
    def vocabulary(self) -> Vocabulary:
        """The bytes of every token, for grammars; built at first use."""
        return self._tables()[0]

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token in [0, vocabulary_size); a special token's are its text, an unused id has none."""
        return (self._bytes or self._tables()[1])[token]

    def _tables(self) -> tuple[Vocabulary, tuple[bytes, ...]]:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = vocabulary_from_tokenizer_json(
                    self._output_json(), self.eos_token_ids, self.vocabulary_size, self._text.encode_bytes
                )
                table = list(self._vocabulary.tokens)
                for token in self._special.by_text.values():
                    table[token.id] = token.text.encode()
                self._bytes = tuple(table)
            return self._vocabulary, self._bytes

    def _output_json(self) -> str:
        """The tokenizer as grammars see it: what it doesn't flag as special (many a `<tool_call>`) a model writes as text."""
        if all(token.id in self.special_ids for token in self._special.by_text.values()):
            return self._text.json
        layout = json.loads(self._text.json)
        for entry in layout["added_tokens"]:
            entry["special"] = entry["id"] in self.special_ids
        return json.dumps(layout, ensure_ascii=False)

    def writes_as_text(self, text: str) -> bool:
        """Whether grammars can match `text` in an output: where it is one special token they can't."""
        token = self._special.by_text.get(text)
        return token is None or bool(self.vocabulary.tokens[token.id])

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`, as a continuation (no leading space is dropped). Raises InvalidRequest for an id out of range."""
        chosen = list(ids)
        for token in chosen:
            if not 0 <= token < self.vocabulary_size:
                raise InvalidRequest(f"Token ids must be in [0, {self.vocabulary_size}), got {str(token)[:40]}.", param="tokens")
        shown = (self.token_bytes(token) for token in chosen if not (skip_special and token in self.special_ids))
        return b"".join(shown).decode("utf-8", "replace")

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The tokens of `text` alone, nothing added. Special tokens are parsed only where `special` says so."""
        return self._encode_parts((Text(text, special),))[0]

    def raw(self, text: str) -> tuple[Segment, ...]:
        """`text` as a prompt whose writer names special tokens in it: they are parsed. What follows the last can be healed."""
        span = self._special.span(text)
        if span is None:
            return (Text(text),)
        begin, end = span
        marked = (Text(text[:begin]), Text(text[begin:end], special=True), Text(text[end:]))
        opening = b"".join(map(self.token_bytes, self._opening)).decode("utf-8", "replace")
        return marked if begin or text.startswith(opening) else (Ids(self._opening), *marked)

    def encode_segments(self, segments: Sequence[Segment]) -> list[int]:
        """The tokens of a prompt. Where it begins with a user's text, those that the tokenizer puts before a text come first."""
        return self._encode_prompt(segments)[0]

    def prepare(self, segments: Sequence[Segment], *, heal: bool) -> Prompt:
        """A prompt for `Call`. With `heal`, tokens at the end of a user's text that a longer token could replace are cut.

        Raises InvalidRequest where no token is left to begin from.
        """
        tokens, tail = self._encode_prompt(segments)
        if not tokens:
            raise InvalidRequest("A prompt must have at least one token, got an empty one.", param="prompt")
        last = next(filter(_says_something, reversed(segments)), None)
        if not heal or not isinstance(last, Text) or last.special:
            return Prompt(tuple(tokens))
        kept = len(tokens) - min(self._healable(tokens[len(tokens) - tail :]), len(tokens) - 1)
        return Prompt(tuple(tokens[:kept]), b"".join(map(self.token_bytes, tokens[kept:])))

    def options(self, segments: Sequence[Segment], options: Sequence[str]) -> ScoredOptions:
        """The constant text before a `select` and each option, cut together. Raises InvalidRequest without options."""
        if not options:
            raise InvalidRequest("select needs at least one option, got none.", param="options")
        marked = (*segments, Text("\0"))  # so that the last part is a stretch: what precedes the options in one text
        tokens, tail = self._encode_prompt(marked)
        stretch = self._special.lay_out(marked, self._seams)[-1]
        assert isinstance(stretch, Stretch)
        settled, rest = self._text.settle(Stretch(stretch.text[:-1], stretch.after))
        head = [*tokens[: len(tokens) - tail], *settled]
        cut = list(self._text.continue_with(rest, options))
        joint = [ids for ids, _ in cut]
        carried = [count for _, count in cut]  # for each option, how many leading tokens carry constant text only
        common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*joint, strict=False)))
        shared = min(common, *carried)
        prompt = (*head, *joint[0][:shared]) or (self.beginning,)
        skips = tuple(count - shared for count in carried)
        return ScoredOptions(prompt, tuple(tuple(tokens[shared:]) for tokens in joint), skips)

    @property
    def beginning(self) -> int:
        """The token that stands for "nothing yet": the tokenizer's BOS, else its end token. Raises InvalidRequest without any."""
        if self.bos_token_id is not None:
            return self.bos_token_id
        if not self.eos_token_ids:
            raise InvalidRequest(
                "The prompt is empty and the tokenizer has no beginning token; start with some text.", param="prompt"
            )
        return self.eos_token_ids[0]

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        continue_final_message: bool = False,
        **template_kwargs: object,
    ) -> str:
        """The chat template's text. Raises InvalidRequest where the model has no template, or the template refuses."""
        return self._chat().render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            continue_final_message=continue_final_message,
            options=template_kwargs,
        )

    def writes_whole(self, contents: Sequence[str]) -> bool:
        """See `ChatTemplate`. Raises as `render`."""
        return self._chat().writes_whole(contents)

    def render_segments(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        continue_final_message: bool = False,
        **template_kwargs: object,
    ) -> tuple[Text, ...]:
        """As `render`, but special tokens inside messages stay plain text. Raises as `render`."""
        return self._chat().render_segments(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            continue_final_message=continue_final_message,
            options=template_kwargs,
        )

    def _chat(self) -> ChatTemplate:
        if self._template is None:
            raise InvalidRequest("The model has no chat template; send a plain prompt instead of messages.", param="messages")
        return self._template

    def _encode_prompt(self, segments: Sequence[Segment]) -> tuple[list[int], int]:
        """The tokens of a prompt, and how many of them are of its last part."""
        first = next(filter(_says_something, segments), None)
        opens = not (isinstance(first, Ids) or (first and first.special))
        tokens, tail = self._encode_parts(segments)
        return [*self._opening, *tokens] if opens else tokens, tail

    def _encode_parts(self, segments: Sequence[Segment]) -> tuple[list[int], int]:
        tokens: list[int] = []
        tail = 0
        for part in self._special.lay_out(segments, self._seams):
            ids = self._encode_stretch(part) if isinstance(part, Stretch) else part
            tokens.extend(ids)
            tail = len(ids)
        return tokens, tail

    def _encode_stretch(self, stretch: Stretch) -> Sequence[int]:
        ids: Sequence[int] = self._text.encode(stretch).ids
        left, kept = stretch.cut, len(ids)
        while left > 0 and kept:
            kept -= 1
            left -= len(self.token_bytes(ids[kept]))
        if left == 0:
            return ids[:kept]
        text = stretch.text.encode()[: -stretch.cut].decode()
        return self._text.encode(Stretch(text, stretch.after)).ids if text else ()

    def _healable(self, tokens: Sequence[int]) -> int:
        """How many tokens at the end could, as bytes, be the beginning of one longer token."""
        vocabulary = self.vocabulary
        tail, cut = b"", 0
        for count, token in enumerate(reversed(tokens), 1):
            tail = self.token_bytes(token) + tail
            if len(tail) >= vocabulary.longest:
                break
            if vocabulary.has_extension(tail) and tail[0] & 0xC0 != 0x80:  # never in the middle of a character
                cut = count
        return cut


def _says_something(segment: Segment) -> bool:
    return not isinstance(segment, Text) or bool(segment.text)


def _special_token(entry: Mapping[str, Any]) -> SpecialToken:
    return SpecialToken(entry["id"], entry["content"], entry["lstrip"], entry["rstrip"])
