"""What each sampling option means to a whole engine: stops, ends, biases, penalties, seeds, healing, special tokens, edges."""

from collections.abc import Iterator
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.generation import Generation
from branchpoint.runtime.errors import CapacityError, InvalidRequest
from branchpoint.runtime.messages import Text
from branchpoint.runtime.sampling import SamplingParams

PROMPT = "Once upon a time"
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20}


@pytest.fixture(scope="module")
def engine() -> Iterator[bp.Engine]:
    with bp.Engine("smollm2", cpu_weights="float32", threads=1, num_pages=192, context_length=256) as engine:
        yield engine
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.compiling, stats.pages_held, stats.failed_calls) == (0, 0, 0, 0, 0)


def ask(engine: bp.Engine, prompt: Any = PROMPT, **options: Any) -> Generation:
    """Options by the runtime's own names, greedy unless they say otherwise."""
    generation = engine.generate(prompt, SamplingParams(**{**GREEDY, **options}))
    assert isinstance(generation, Generation)
    return generation


@pytest.fixture(scope="module")
def plain(engine: bp.Engine) -> Generation:
    return ask(engine)


def id_of(engine: bp.Engine, text: str) -> int:
    (token,) = engine.tokenizer.encode(text)
    return token


@pytest.mark.parametrize("cold", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-300}], ids=str)
def test_whatever_leaves_one_token_is_greedy(engine: bp.Engine, plain: Generation, cold: dict[str, Any]) -> None:
    assert ask(engine, **{"temperature": 1.3, "seed": 9, **cold}).tokens == plain.tokens


def test_the_earliest_stop_wins_and_text_tokens_and_reason_end_before_it(engine: bp.Engine, plain: Generation) -> None:
    stops = (plain.text[9:14], plain.text[12:18], plain.text[30:42])
    cut = ask(engine, stop=stops)
    assert (cut.text, cut.finish_reason, cut.stop) == (plain.text[:9], "stop", stops[0])
    assert plain.tokens[: len(cut.tokens)] == cut.tokens and plain.text.startswith(engine.tokenizer.decode(cut.tokens))
    shown = ask(engine, stop=stops, include_stop=True)
    assert shown.text == plain.text[:14]


def test_a_stop_across_token_edges_is_never_streamed(engine: bp.Engine, plain: Generation) -> None:
    stop = plain.text[20:31]
    pieces = list(engine.stream(PROMPT, **GREEDY, stop=stop))
    assert "".join(pieces) == plain.text[:20] and len(pieces) > 2


def test_a_stop_token_ends_before_itself_or_with_it(engine: bp.Engine, plain: Generation) -> None:
    token = plain.tokens[6]
    first = plain.tokens.index(token)
    cut, shown = ask(engine, stop_token_ids=(token,)), ask(engine, stop_token_ids=(token,), include_stop=True)
    assert (cut.tokens, cut.finish_reason, cut.stop) == (plain.tokens[:first], "stop", token)
    assert shown.tokens == plain.tokens[: first + 1]
    assert ask(engine, stop_token_ids=tuple(range(engine.info.vocabulary_size))).tokens == ()


def test_nothing_stops_below_min_tokens(engine: bp.Engine, plain: Generation) -> None:
    assert ask(engine, stop=(plain.text[2:4],), min_tokens=10).tokens[:10] == plain.tokens[:10]
    end = engine.info.eos_token_ids[0]
    forced = ask(engine, logit_bias=((end, 100.0),), min_tokens=4)
    assert (forced.tokens, forced.finish_reason, forced.stop) == (plain.tokens[:4], "stop", None)
    assert plain.tokens[5] not in ask(engine, stop_token_ids=(plain.tokens[5],), min_tokens=20).tokens


def test_ends_are_ignored_hidden_or_shown_as_asked(engine: bp.Engine) -> None:
    end = engine.info.eos_token_ids[0]
    text = engine.tokenizer.decode([end], skip_special=False)
    forced: dict[str, Any] = {"logit_bias": ((end, 100.0),), "max_tokens": 3}
    assert ask(engine, **forced).tokens == ()
    ignored = ask(engine, **forced, ignore_eos=True)
    assert (ignored.tokens, ignored.text, ignored.finish_reason) == ((end,) * 3, "", "length")
    assert ask(engine, **forced, ignore_eos=True, skip_special_tokens=False).text == text * 3
    assert ask(engine, **forced, include_stop=True).tokens == (end,)
    assert ask(engine, **forced, include_stop=True, skip_special_tokens=False).text == text
    stopped = ask(engine, **forced, ignore_eos=True, stop=(text,))
    assert (stopped.text, stopped.tokens, stopped.stop) == ("", (), text)


def test_a_bias_bans_and_forces(engine: bp.Engine, plain: Generation) -> None:
    banned = ask(engine, logit_bias=tuple((token, -100.0) for token in set(plain.tokens)))
    assert not set(banned.tokens) & set(plain.tokens)
    cat = id_of(engine, " cat")
    assert ask(engine, logit_bias=((cat, 100.0),)).tokens == (cat,) * 20
    assert ask(engine, logit_bias=((cat, 50.0), (cat, 50.0)), max_tokens=2).tokens == (cat,) * 2


def test_penalties_act_on_what_was_said(engine: bp.Engine) -> None:
    cat = id_of(engine, " cat")
    loved: dict[str, Any] = {"logit_bias": ((cat, 20.0),), "max_tokens": 24}
    counts = [
        ask(engine, **loved, **options).tokens.count(cat)
        for options in ({}, {"frequency_penalty": 2.0}, {"repetition_penalty": 100.0}, {"presence_penalty": -2.0})
    ]
    assert counts[0] == counts[3] == 24 and counts[1] < 24 and counts[2] < 24
    rare = ask(engine, frequency_penalty=2.0, presence_penalty=2.0, repetition_penalty=2.0, ignore_eos=True).tokens
    assert len(set(rare)) == 20 > len(set(ask(engine, ignore_eos=True).tokens))


def test_samples_differ_and_come_again_with_their_seed(engine: bp.Engine) -> None:
    options: dict[str, Any] = {"n": 8, "seed": 5, "temperature": 1.0, "max_tokens": 8}
    first, again = ask(engine, **options), ask(engine, **options)
    tokens = [sample.tokens for sample in first.samples]
    assert tokens == [sample.tokens for sample in again.samples] and len(set(tokens)) == 8
    assert ask(engine, **{**options, "n": 1}).tokens == tokens[0]
    assert [sample.tokens for sample in ask(engine, **{**options, "n": 3}).samples] == tokens[:3]
    assert ask(engine, **{**options, "seed": 6}).tokens != tokens[0]
    assert ask(engine, n=3).samples[2].tokens == ask(engine).tokens
    assert ask(engine, temperature=1.0).tokens != ask(engine, temperature=1.0).tokens


@pytest.mark.parametrize("seed", [0, -(2**63), 2**64 - 1, 2**63])
def test_any_seed_of_64_bits_is_one(engine: bp.Engine, seed: int) -> None:
    options: dict[str, Any] = {"seed": seed, "temperature": 1.0, "max_tokens": 5}
    assert ask(engine, **options).tokens == ask(engine, **options).tokens


def test_no_tokens_are_made_where_none_are_asked(engine: bp.Engine) -> None:
    for options in ({}, {"n": 3}, {"logprobs": 1}, {"prompt_logprobs": 0}):
        none = ask(engine, max_tokens=0, **options)
        assert [(one.text, one.tokens, one.finish_reason) for one in none.samples] == [("", (), "length")] * options.get("n", 1)
        assert none.usage.completion_tokens == 0
    assert len(none.prompt_logprobs) == len(engine.tokenizer.encode(PROMPT))


def test_output_ends_with_the_context(engine: bp.Engine) -> None:
    most = engine.info.context_length
    for length in (most - 3, most - 1):
        ended = ask(engine, [5] * length, max_tokens=None, ignore_eos=True)
        assert (len(ended.tokens), ended.finish_reason) == (most - length, "length")
    assert ask(engine, [5] * most, max_tokens=0).tokens == ()
    with pytest.raises(CapacityError, match=f"{most} tokens and needs room for one more; the context holds {most}"):
        ask(engine, [5] * most)


def test_healing_lets_the_model_finish_a_word(engine: bp.Engine) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6}
    healed = engine.generate("The capital of Fra", **options, heal=True)
    whole = engine.generate("The capital of France", **options)
    assert healed.text.startswith("nce") and not engine.generate("The capital of Fra", **options).text.startswith("nce")
    assert whole.text.startswith(healed.text[3:])
    for prompt in ("T", "Hello ", "Hello 🙂", "Hello 🙂\u200d", "中", " ", "\n\n", "a\0", "é", "e\u0301"):
        sample = engine.generate(prompt, **options, heal=True)
        assert sample.usage.completion_tokens <= 6 and isinstance(sample.text, str)
        on = [*engine.tokenizer.prepare([Text(prompt)], heal=True).tokens, *sample.tokens]
        assert engine.tokenizer.decode(on).rstrip("\ufffd") == (prompt + sample.text).rstrip("\ufffd")


def test_characters_spread_over_tokens_are_streamed_whole(engine: bp.Engine) -> None:
    emoji = "🙂🙃🧑\u200d🚀"
    bias = dict.fromkeys(engine.tokenizer.encode("🙃")[:1], 100.0)
    prompt = f"Say {emoji}: {emoji} {emoji} {emoji} 🙂"
    pieces = list(engine.stream(prompt, temperature=0.0, max_tokens=16))
    assert "".join(pieces) == ask(engine, prompt, max_tokens=16).text
    assert all("\ufffd" not in piece for piece in pieces[:-1])
    half = engine.generate("x", temperature=0.0, max_tokens=2, logit_bias=bias)
    assert "\ufffd" in half.text  # an unfinished character is said to be one, at the end only
    assert engine.tokenizer.encode(emoji) == engine.tokenizer.encode_segments([Text("🙂🙃🧑"), Text("\u200d🚀")])


def test_a_users_text_never_becomes_a_special_token(engine: bp.Engine) -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>"
    special = engine.tokenizer.special_ids
    assert not special & set(engine.tokenizer.encode_segments([Text(text)]))
    assert engine.tokenizer.decode(engine.tokenizer.encode(text)) == text
    rendered = engine.render([{"role": "user", "content": text}])
    ids = engine.tokenizer.encode_segments(rendered)
    empty = engine.tokenizer.encode_segments(engine.render([{"role": "user", "content": ""}]))
    assert sum(token in special for token in ids) == sum(token in special for token in empty) > 0
    assert text in engine.tokenizer.decode(ids)
    assert ask(engine, rendered, max_tokens=3).usage.prompt_tokens == len(ids)


@pytest.mark.parametrize("prompt", [" ", "\0", "\n", "é" * 40, "🙂", "\u200b", "a" * 300, "<|im_start|>"])
def test_odd_prompts_are_prompts(engine: bp.Engine, prompt: str) -> None:
    made = ask(engine, prompt, max_tokens=3, ignore_eos=True)
    assert len(made.tokens) == 3
    assert made.usage.prompt_tokens == len(engine.tokenizer.encode(prompt))


@pytest.mark.parametrize(
    ("prompt", "options", "told"),
    [
        ("", {}, "at least one token"),
        ([], {}, "token ids"),
        ("\ud800", {}, "Unicode"),
        ([49152], {}, "49152"),
        ([-1], {}, "-1"),
        (PROMPT, {"logit_bias": {49152: 1.0}}, "logit_bias"),
        (PROMPT, {"logit_bias": {5: float("nan")}}, "logit_bias"),
        (PROMPT, {"stop_token_ids": [-1]}, "stop_token_ids"),
        (PROMPT, {"stop": [""]}, "stop"),
        (PROMPT, {"stop": ["x"] * 65}, "stop"),
        *(
            (PROMPT, {name: float("nan")}, name)
            for name in ("temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty")
        ),
        *((PROMPT, {name: "1"}, name) for name in ("temperature", "top_k", "max_tokens", "n", "seed")),
        (PROMPT, {"max_tokens": -1}, "max_tokens"),
        (PROMPT, {"max_tokens": 2**31}, "max_tokens"),
        (PROMPT, {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        (PROMPT, {"n": 0}, "n must be"),
        (PROMPT, {"n": 129}, "n must be"),
        (PROMPT, {"n": True}, "n"),
        (PROMPT, {"seed": 2**64}, "seed"),
        (PROMPT, {"logprobs": 21}, "logprobs"),
        (PROMPT, {"top_k": -2}, "top_k"),
    ],
)
def test_what_nobody_can_mean_is_refused_by_name(engine: bp.Engine, prompt: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        engine.generate(prompt, **options)
