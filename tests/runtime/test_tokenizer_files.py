"""Tokenizers of other kinds than the demo model's: Hugging Face folders, SentencePiece, and files that can't be used."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from gguf import GGUFWriter
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from branchpoint.runtime.errors import InvalidRequest, ModelError
from branchpoint.runtime.messages import Ids, Text
from branchpoint.runtime.tokenizer import Tokenizer, load_tokenizer

NORMAL, CONTROL, USER, BYTE = 1, 3, 4, 6
SPACE = "\u2581"


def write_gguf(file: Path, tokens: Sequence[str], kinds: Sequence[int], model: str, **fields: object) -> Path:
    writer = GGUFWriter(str(file), "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(kinds))
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    pieces = ["l", "h", "e", "o", SPACE, f"{SPACE}h", "el", "lo", f"{SPACE}he", "llo", f"{SPACE}hello"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "[INST]"]
    kinds = [2, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), USER]
    scores = [0.0] * 259 + [-10.0 + place for place in range(len(pieces))] + [0.0]
    file = tmp_path_factory.mktemp("gguf") / "spm.gguf"
    write_gguf(file, tokens, kinds, "llama", token_scores=scores, bos_token_id=1, eos_token_id=2, unk_token_id=0)
    return load_tokenizer(file, len(tokens), (2,))


def spelled(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[bytes]:
    return [tokenizer.token_bytes(token) for token in tokens]


def test_sentencepiece_merges_the_best_scored_first(sentencepiece: Tokenizer) -> None:
    assert spelled(sentencepiece, sentencepiece.encode("hello")) == [b" hello"]
    assert spelled(sentencepiece, sentencepiece.encode("helo \u00e9")) == [b" he", b"lo", b" ", b"\xc3", b"\xa9"]


def test_a_fresh_prompt_begins_with_bos_and_the_space_that_the_model_knows(sentencepiece: Tokenizer) -> None:
    assert spelled(sentencepiece, sentencepiece.encode_segments([Text("hello")])) == [b"<s>", b" hello"]
    assert sentencepiece.encode_segments([Text("<s>", special=True), Text("hello")]) == sentencepiece.encode_segments(
        [Text("hello")]
    )
    assert sentencepiece.encode_segments([Ids((5,)), Text("hello")])[0] == 5


def test_no_space_is_made_up_after_generated_tokens(sentencepiece: Tokenizer) -> None:
    tokens = sentencepiece.encode_segments([Text("hello"), Ids((259,)), Text("hello")])
    assert sentencepiece.decode(tokens) == " hellolhello"


def test_a_raw_prompt_may_name_special_tokens_and_begins_as_any_other(sentencepiece: Tokenizer) -> None:
    def tokens(text: str) -> list[bytes]:
        return spelled(sentencepiece, sentencepiece.encode_segments(sentencepiece.raw(text)))

    assert tokens("hello") == tokens("<s>hello") == [b"<s>", b" hello"]
    assert tokens("[INST]hello")[:2] == [b"<s>", b"[INST]"]
    assert tokens("hello[INST]") == [b"<s>", b" hello", b"[INST]"]
    assert sentencepiece.raw("a</s>b") == (Text("a"), Text("</s>", special=True), Text("b"))


def test_options_count_from_their_own_bytes_in_sentencepiece_too(sentencepiece: Tokenizer) -> None:
    scored = sentencepiece.options([Text("he")], ["llo", "lo"])
    assert spelled(sentencepiece, scored.prompt) == [b"<s>"]
    assert [spelled(sentencepiece, tokens) for tokens in scored.continuations] == [[b" hello"], [b" he", b"lo"]]
    assert scored.skips == (0, 1)


def test_a_tag_of_the_template_is_a_token_there_only(sentencepiece: Tokenizer) -> None:
    tag = sentencepiece.encode("[INST]", special=True)
    assert spelled(sentencepiece, tag) == [b"[INST]"]
    assert tag[0] not in sentencepiece.encode("[INST]")
    assert tag[0] not in sentencepiece.special_ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder in the manner of Llama 3: bytes, BOS added, a template, tags that aren't flagged as special."""
    path = tmp_path_factory.mktemp("model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: place for place, piece in enumerate([*alphabet, "he", "\u0120h", "\u0120he"])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[("h", "e"), ("\u0120", "he")]))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<|begin|>", "<|end|>")])
    backend.add_tokens([AddedToken("<think>", special=False, rstrip=True), AddedToken("</think>", special=False)])
    begin = backend.token_to_id("<|begin|>")
    backend.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    backend.save(str(path / "tokenizer.json"))
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
        "{% if fail %}{{ raise_exception('not so') }}{% endif %}{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% if add_generation_prompt %}<think>{% endif %}"
    )
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(kind | {"chat_template": template}))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    return path


@pytest.fixture(scope="module")
def hugging_face(folder: Path) -> Tokenizer:
    return load_tokenizer(folder, 300, ())


def test_a_folder_brings_bos_end_and_template(hugging_face: Tokenizer) -> None:
    assert hugging_face.eos_token_ids == (hugging_face.encode("<|end|>", special=True)[0],)
    assert hugging_face.encode_segments([Text("he")]) == [hugging_face.bos_token_id, *hugging_face.encode("he")]
    segments = hugging_face.render_segments([{"role": "user", "content": "he"}], add_generation_prompt=False)
    tokens = hugging_face.encode_segments(segments)
    assert hugging_face.decode(tokens, skip_special=False) == "<|begin|>user:he<|end|>"
    assert tokens.count(hugging_face.bos_token_id or 0) == 1


def test_tags_are_forged_by_nobody_and_kept_in_answers(hugging_face: Tokenizer) -> None:
    think = hugging_face.encode("<think>", special=True)[0]
    said = [{"role": "user", "content": "<think>a"}, {"role": "assistant", "content": "<think>b<|end|>"}]
    tokens = hugging_face.encode_segments(hugging_face.render_segments(said, add_generation_prompt=True))
    assert tokens.count(think) == 2
    assert tokens.count(hugging_face.eos_token_ids[0]) == 2
    assert hugging_face.decode(tokens).startswith("user:<think>aassistant:<think>b<|end|>")


def test_grammars_match_tags_that_arent_flagged_as_special(hugging_face: Tokenizer) -> None:
    for text, plain in {"<think>": True, "</think>": True, "<tool_call>": True, "<|end|>": False, "<|begin|>": False}.items():
        assert hugging_face.writes_as_text(text) is plain, text
    (think,) = hugging_face.encode("<think>", special=True)
    assert hugging_face.vocabulary.tokens[think] == b"<think>"


def test_white_space_beside_a_token_goes_where_the_tokenizer_says(hugging_face: Tokenizer) -> None:
    assert hugging_face.decode(hugging_face.encode("a <think> \n b", special=True)) == "a <think>b"


def test_tools_options_and_refusals_reach_the_template(hugging_face: Tokenizer) -> None:
    messages = [{"role": "user", "content": "he"}]
    tool = {"type": "function", "function": {"name": "f<|end|>", "parameters": {}}}
    assert '"name": "f<|end|>"' in hugging_face.render(messages, add_generation_prompt=False, tools=[tool])
    segments = hugging_face.render_segments(messages, add_generation_prompt=False, tools=[tool])
    assert hugging_face.encode_segments(segments).count(hugging_face.eos_token_ids[0]) == 1
    with pytest.raises(InvalidRequest, match="not so"):
        hugging_face.render(messages, add_generation_prompt=False, fail=True)
    opened = [*messages, {"role": "assistant", "content": "so"}]
    assert hugging_face.render(opened, add_generation_prompt=False, continue_final_message=True).endswith("assistant:so")


def test_a_model_without_a_template_says_so(sentencepiece: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        sentencepiece.render([], add_generation_prompt=True)


def test_what_cannot_be_used_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has 200 token ids, its tokenizer goes up to"):
        load_tokenizer(folder, 200, ())
    with pytest.raises(ModelError, match="should hold a tokenizer"):
        load_tokenizer(tmp_path, 300, ())
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00")
    with pytest.raises(ModelError, match="truncated"):
        load_tokenizer(broken, 300, (2,))
    letters = [chr(97 + place) for place in range(20)]
    odd = write_gguf(tmp_path / "odd.gguf", letters, [NORMAL] * 20, "gpt2", tokenizer_pre="klingon", token_merges=["a b"])
    with pytest.raises(ModelError, match="'klingon'"):
        load_tokenizer(odd, 20, (2,))
    other = write_gguf(tmp_path / "bert.gguf", letters, [NORMAL] * 20, "bert")
    with pytest.raises(ModelError, match="'bert'"):
        load_tokenizer(other, 20, (2,))
    twice = write_gguf(tmp_path / "twice.gguf", [*letters, "a"], [NORMAL] * 21, "llama")
    with pytest.raises(ModelError, match="expected 21 distinct tokens, got 20"):
        load_tokenizer(twice, 21, (2,))
    unmergeable = write_gguf(tmp_path / "merge.gguf", letters, [NORMAL] * 20, "gpt2", token_merges=["a b"])
    with pytest.raises(ModelError, match="merges of tokens"):
        load_tokenizer(unmergeable, 20, (2,))
