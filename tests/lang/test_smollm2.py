"""The language on a real model: what can't be seen on a scripted one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

import branchpoint as bp
from branchpoint.runtime.messages import Text


class Reply(BaseModel):
    subject: str = Field(max_length=30)
    urgent: bool


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[bp.Engine]:
    with bp.Engine(smollm2_path, context_length=1024, num_pages=160, threads=1, seed=1, cpu_weights="float32") as engine:
        yield engine


def test_c1_where_the_space_stands_makes_no_difference(engine: bp.Engine) -> None:
    question = "Question: Is the sky blue? Answer yes or no.\nAnswer:"

    @bp.function
    def program(s: bp.State, space: str, options: list[str]) -> list[float]:
        s += question + space + bp.select("x", options)
        return [choice.probability for choice in s.meta("x").choices]

    before = program.run(space="", options=[" Yes", " No", " Maybe"], backend=engine).value
    after = program.run(space=" ", options=["Yes", "No", "Maybe"], backend=engine).value
    assert after == pytest.approx(before, abs=1e-3)


def test_c1_only_tokens_that_carry_bytes_of_the_option_count(engine: bp.Engine) -> None:
    text, options = "It was the best of the wor", ["ld", "k", "xq", "st cases"]
    run = bp.function(lambda s: s.__iadd__(text + bp.select("x", options)) and None).run(backend=engine)
    cut = engine.tokenizer.options([Text(text)], options)
    assert any(cut.skips)  # in some options tokens of the constant alone are scored, too, and don't count
    for choice, tokens, skip in zip(run.meta("x").choices, cut.continuations, cut.skips, strict=True):
        whole = [*cut.prompt, *tokens]
        scored = engine.generate(whole, max_tokens=0, return_logprob=True, logprob_start_len=0).prompt_logprobs
        truth = [each.logprob for each in scored[len(cut.prompt) + skip :]]
        assert choice.logprobs == pytest.approx(truth, abs=1e-4)
        assert choice.score == pytest.approx(sum(truth), abs=1e-3)


def test_s1_a_seam_is_healed(engine: bp.Engine) -> None:
    program = bp.function(lambda s, text: s.__iadd__(text + bp.gen("x", max_tokens=4, temperature=0.0)) and None)
    texts = [program.run(text=text, backend=engine).text() for text in ("The capital of France is", "The capital of France is ")]
    assert texts[0].startswith("The capital of France is Paris")
    assert texts[1].startswith("The capital of France is Paris")


def test_r1_a_conversation_is_the_templates_and_all_of_it_is_reused(engine: bp.Engine) -> None:
    @bp.function
    def program(s: bp.State) -> None:
        s += bp.user("What is the capital of France?") + bp.assistant(bp.gen("a", max_tokens=12, temperature=0.0))
        s += bp.user("And of Italy?") + bp.assistant(bp.gen("b", max_tokens=12, temperature=0.0))

    run = program.run(backend=engine)
    first, second = run.meta("a"), run.meta("b")
    asked = engine.render(run.messages()[:3])
    assert second.prompt_tokens == len(engine.tokenizer.encode_segments(asked))
    assert second.cached_tokens >= first.prompt_tokens + first.completion_tokens - 1
    same = engine.generate(asked, max_tokens=12, temperature=0.0)
    assert same.text == run["b"]


def test_s5_typed_values_in_a_fork(engine: bp.Engine) -> None:
    @bp.function
    def triage(s: bp.State, ticket: str) -> tuple[str, int, Reply]:
        s += bp.system("You sort support tickets.") + bp.user(ticket)
        s += bp.assistant(bp.select("area", ["billing", "login", "other"]))
        with s.fork(2) as (risk, reply):
            risk += bp.user("How urgent, 1 to 5?") + bp.assistant(bp.gen("urgency", int))
            reply += bp.user("Answer in JSON.") + bp.assistant(bp.gen("reply", Reply))
        return s["area"], risk["urgency"], reply["reply"]

    run = triage.run(ticket="I was charged twice", backend=engine, temperature=0.0)
    area, urgency, reply = run.value
    assert area in ("billing", "login", "other")
    assert isinstance(urgency, int)
    assert isinstance(reply, Reply)
    assert run.report().total.reused > 0
