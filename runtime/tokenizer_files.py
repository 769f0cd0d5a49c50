"""Where a tokenizer comes from: a Hugging Face folder, a GGUF file, or, for dummy weights, nothing but bytes.

Each loader answers with the same plain value, from which `tokenizer.py` builds its own. Nothing here asks a network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.weights.gguf_header import read_header

__all__ = ["TokenizerFiles", "from_bytes", "from_folder", "from_gguf"]

_CONTROL, _USER_DEFINED = 3, 4  # GGUF's token types

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "default": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "qwen2": (_LLAMA3.replace("{1,3}", ""),),
    "deepseek-r1-qwen": (_LLAMA3.replace("{1,3}", ""),),
}
"""How byte-level vocabularies cut text before merging, by GGUF's `tokenizer.ggml.pre`: patterns, applied one after another."""

_LLAMA3_NAMES = frozenset({"llama-bpe", "llama3", "llama-v3"})  # they begin with BOS, and take a whole word before any merge

_BYTES_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer as text: its `tokenizer.json`, what it puts before a fresh prompt, its chat template and named tokens."""

    json: str
    opening: tuple[int, ...] = ()
    chat_template: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)


def from_folder(folder: Path) -> TokenizerFiles:
    """The tokenizer of a Hugging Face folder; `transformers` raises where it can't read one."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    return _from_transformers(loaded, str(folder))


def _from_transformers(loaded: Any, where: str) -> TokenizerFiles:
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"The tokenizer of {where} has no fast form; put the model's tokenizer.json beside it.")
    bare, full = (list(loaded.encode("a", add_special_tokens=special)) for special in (False, True))
    start = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), 0)
    template = loaded.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    names = {name: str(token) for name, token in loaded.special_tokens_map.items() if isinstance(token, str)}
    return TokenizerFiles(backend.to_str(), tuple(full[:start]), template, names)


class _Metadata:
    """The `tokenizer.*` entries of a GGUF file."""

    def __init__(self, file: Path) -> None:
        self._entries = read_header(file, everything=True).metadata

    def get(self, key: str) -> Any:
        return self._entries.get(f"tokenizer.{key}")


def from_gguf(file: Path) -> TokenizerFiles:
    """The tokenizer inside a GGUF file: byte-level BPE (`gpt2`) or SentencePiece (`llama`). Raises ModelError for any other."""
    metadata = _Metadata(file)
    kind = metadata.get("ggml.model")
    if kind == "gpt2":
        return _byte_level(file, metadata)
    if kind == "llama":
        return _sentencepiece(file, metadata)
    raise ModelError(
        f"{file.name}: its tokenizer should be 'gpt2' or 'llama', it is {kind!r}; use the model's Hugging Face folder."
    )


def _byte_level(file: Path, metadata: _Metadata) -> TokenizerFiles:
    pre = metadata.get("ggml.pre") or "default"
    if pre not in _SPLITS:
        known = ", ".join(_SPLITS)
        raise ModelError(f"{file.name}: its pre-tokenizer should be one of {known}, it is {pre!r}; use the Hugging Face folder.")
    tokens, vocabulary = _vocabulary(file, metadata)
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("ggml.merges") or ()]
    if not all(
        len(pair) == 2 and pair[0] in vocabulary and pair[1] in vocabulary and "".join(pair) in vocabulary for pair in merges
    ):
        raise ModelError(f"{file.name}: expected merges of tokens that make tokens; the list is damaged.")
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _LLAMA3_NAMES))
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in _SPLITS[pre]]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    return _with_names(backend, tokens, metadata, begins=pre in _LLAMA3_NAMES)


def _sentencepiece(file: Path, metadata: _Metadata) -> TokenizerFiles:
    """SentencePiece merges what makes the best-scored token: as BPE merges, all cuts of all tokens, the best score first."""
    tokens, vocabulary = _vocabulary(file, metadata)
    scores: Sequence[float] = metadata.get("ggml.scores") or [-float(index) for index in range(len(tokens))]
    merges = [
        (-scores[index], vocabulary[token[:at]], vocabulary[token[at:]])
        for token, index in vocabulary.items()
        for at in range(1, len(token))
        if token[:at] in vocabulary and token[at:] in vocabulary
    ]
    pairs = [(tokens[left], tokens[right]) for _, left, right in sorted(merges)]
    unknown = tokens[metadata.get("ggml.unknown_token_id") or 0]
    backend = Backend(models.BPE(vocab=vocabulary, merges=pairs, byte_fallback=True, fuse_unk=True, unk_token=unknown))
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", "\u2581")]
    if metadata.get("ggml.add_space_prefix") is not False:
        spaces.insert(0, normalizers.Prepend("\u2581"))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _with_names(backend, tokens, metadata, begins=True)


def _vocabulary(file: Path, metadata: _Metadata) -> tuple[list[str], dict[str, int]]:
    tokens = list(metadata.get("ggml.tokens") or ())
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not tokens or len(vocabulary) != len(tokens):
        raise ModelError(
            f"{file.name}: expected {len(tokens) or 'some'} distinct tokens, got {len(vocabulary)}; the list is damaged."
        )
    return tokens, vocabulary


def _with_names(backend: Backend, tokens: list[str], metadata: _Metadata, *, begins: bool) -> TokenizerFiles:
    """Add the tokens that are matched whole, and what else the file says; where it is silent, `begins` says if BOS is added."""
    kinds: Sequence[int] = metadata.get("ggml.token_type") or [1] * len(tokens)
    template, adds = metadata.get("chat_template"), metadata.get("ggml.add_bos_token")
    if len(kinds) != len(tokens) or not isinstance(template, str | None) or not isinstance(adds, bool | None):
        raise ModelError(
            "Expected a token_type for each token, add_bos_token true or false and a chat_template that is text; "
            f"got {len(kinds)} types for {len(tokens)} tokens, {adds!r:.40}, and {type(template).__name__}."
        )
    for wanted, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        named = [token for token, kind in zip(tokens, kinds, strict=True) if kind == wanted]
        backend.add_tokens([AddedToken(token, normalized=False, special=special) for token in named])
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.get(f"ggml.{key}_token_id") for name, key in keys.items()}
    names = {name: tokens[index] for name, index in ids.items() if index is not None and 0 <= index < len(tokens)}
    opens = "bos_token" in names and (begins if adds is None else adds)
    return TokenizerFiles(backend.to_str(), (ids["bos_token"],) if opens else (), template, names)


def from_bytes(size: int, eos_token_ids: tuple[int, ...]) -> TokenizerFiles:
    """A tokenizer for random weights: text is cut into bytes; ids beyond them decode to made-up words, so that output is text.

    End tokens keep the ids given. Raises ModelError where `size` has no room for the 256 bytes.
    """
    ends = {index: f"<|end_{place}|>" if place else "<|end|>" for place, index in enumerate(eos_token_ids)}
    free = [index for index in range(size) if index not in ends]
    if len(free) < 256 or any(not 0 <= index < size for index in ends):
        raise ModelError(f"Dummy weights need a vocabulary of at least {256 + len(ends)} tokens (bytes, ends), got {size}.")
    spellings = [*_byte_spellings(), *(_word(number) for number in range(len(free) - 256))]
    vocabulary = dict(zip(spellings, free, strict=True)) | {text: index for index, text in ends.items()}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in ends.values()])
    return TokenizerFiles(backend.to_str(), (), _BYTES_TEMPLATE, {"eos_token": "<|end|>"} if ends else {})


def _byte_spellings() -> list[str]:
    """How byte-level vocabularies spell each of the 256 bytes: as itself where it is printable, else from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _word(number: int) -> str:
    letters = ""
    while number >= 0:
        letters = chr(ord("a") + number % 26) + letters
        number = number // 26 - 1
    return "\u0120" + letters  # a space, as a byte-level vocabulary spells it
