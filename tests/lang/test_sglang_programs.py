"""Ten programs in the shapes that users of SGLang's frontend write: only the import and the backend are Branchpoint's."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import branchpoint as sgl
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import prompt_text
from tests.lang.http_site import Site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture(autouse=True)
def no_default() -> Iterator[None]:
    yield
    sgl.set_default_backend(None)


@sgl.function
def interview(s: Any, first: str, second: str) -> None:
    s += sgl.system("You answer in one word.")
    s += sgl.user(first)
    s += sgl.assistant(sgl.gen("first_answer", max_tokens=8))
    s += sgl.user_begin() + second + sgl.user_end()
    s += sgl.assistant_begin() + sgl.gen("second_answer", max_tokens=8, stop=".") + sgl.assistant_end()


def test_1_a_conversation_of_several_turns_on_every_kind_of_backend(site: Site) -> None:
    state = interview.run(first="Color of grass?", second="Of snow?", backend=sgl.Fake(["green", "white. Cold."]))
    assert (state["first_answer"], state["second_answer"]) == ("green", "white")
    assert [message["role"] for message in state.messages()] == ["system", *["user", "assistant"] * 2]
    with sgl.RuntimeEndpoint(site.url, "secret") as backend:
        sgl.set_default_backend(backend)
        over_http = interview.run("Color of grass?", "Of snow?", temperature=0)
    with sgl.OpenAI("fake", "secret", f"{site.url}/v1") as backend:
        over_chat = interview.run("Color of grass?", "Of snow?", backend=backend)
    assert over_http["first_answer"] == over_chat["first_answer"] == "abcdefgh"
    with pytest.raises(ValueError, match="Unknown model"):
        sgl.Runtime(model_path="nowhere")


SHOTS = [("2 + 2", "4"), ("3 + 5", "8")]


@sgl.function
def few_shot(s: Any, question: str) -> None:
    for asked, answered in SHOTS:
        s += f"Question: {asked}\nAnswer: {answered}\n\n"
    s += "Question: " + question + "\n"
    s += "Answer:" + sgl.gen("answer", max_tokens=16, stop=["\n", "Question:"])


def test_2_a_batch_of_questions_after_shared_examples() -> None:
    asked = [{"question": f"{number} + 1"} for number in range(6)]
    backend = sgl.Fake(lambda request: f" {int(prompt_text(request).split()[-4]) + 1}\nQuestion: more")
    states = few_shot.run_batch(asked, backend=backend, num_threads=4, temperature=0, progress_bar=False)
    assert [state["answer"] for state in states] == [f" {number + 1}" for number in range(6)]
    assert asked[0] == {"question": "0 + 1"}
    shared = sum(len(f"Question: {one}\nAnswer: {other}\n\n") for one, other in SHOTS)
    assert sum(state.get_meta_info("answer")["cached_tokens"] >= shared for state in states) >= 5


@sgl.function
def advice(s: Any, about: str) -> None:
    s += f"Two tips for {about}: 1. sleep. 2. move.\n"
    forks = s.fork(2)
    for number, fork in enumerate(forks):
        fork += f"In detail, tip {number + 1}:" + sgl.gen("detail", max_tokens=20, stop="\n\n")
    s += "First:" + forks[0]["detail"] + " Second:" + forks[1]["detail"] + " In short:" + sgl.gen("summary", max_tokens=20)


def test_3_points_expanded_side_by_side_and_put_together() -> None:
    state = advice.run(about="health", backend=sgl.Fake({"tip 1:": " rest", "tip 2:": " walk", "short:": " live"}))
    assert state.text().endswith("First: rest Second: walk In short: live")


@sgl.function
def assistant_with_tools(s: Any, question: str) -> None:
    s += "To answer '" + question + "' use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The expression is" + sgl.gen("expression", regex=r" [0-9+*/ -]+")
    else:
        s += "The words are" + sgl.gen("words", max_tokens=10)


@pytest.mark.parametrize(
    ("best", "name", "value"), [("calculator", "expression", " 12*3"), ("search engine", "words", " old maps")]
)
def test_4_a_program_that_goes_where_a_choice_leads(best: str, name: str, value: str) -> None:
    backend = sgl.Fake(value, scores={best: -0.1})
    state = assistant_with_tools.run(question="?", backend=backend)
    assert (state["tool"], state[name]) == (best, value)
    chosen = state.meta("tool").choices
    assert chosen[0].probability + chosen[1].probability == pytest.approx(1)


CARD = r'\{"name": "[a-z]{1,12}", "age": [0-9]{1,3}\}'


@sgl.function
def card(s: Any, name: str) -> None:
    s += f"A card about {name}:\n" + sgl.gen("card", max_tokens=64, regex=CARD)
    s += "\nLucky numbers: " + sgl.gen_int("lucky", max_tokens=4) + " and a word: " + sgl.gen_string("word", max_tokens=5)


def test_5_json_by_a_regular_expression_and_values_of_plain_types() -> None:
    state = card.run(name="Ada", backend=sgl.Fake(['{"name": "ada", "age": 36}', "77", "hello"]))
    assert re.fullmatch(CARD, state["card"]) and json.loads(state["card"])["age"] == 36
    assert (state["lucky"], state["word"]) == (77, "hello")


@sgl.function
def story(s: Any) -> None:
    s += sgl.user("Tell a story.") + sgl.assistant(sgl.gen("story", max_tokens=30))


async def test_6_text_that_is_read_while_it_comes() -> None:
    backend = sgl.Fake("There was a fox.")
    state = story.run(backend=backend, stream=True)
    assert "".join(state.text_iter("story")) == "There was a fox."
    assert "There was a fox." in "".join(state.text_iter())
    again = story.run(backend=backend, stream=True)
    assert "".join([piece async for piece in again.text_async_iter(var_name="story")]) == "There was a fox."
    both = await asyncio.gather(*(story.arun(backend=backend) for _ in range(2)))
    assert {each["story"] for each in both} == {"There was a fox."}


@sgl.function
def propose(s: Any, count: int) -> Any:
    s += sgl.user("Propose a first step.")
    forks = s.fork(count)
    forks += sgl.assistant(sgl.gen("step", max_tokens=20, temperature=0.3))
    return forks


@sgl.function
def judge(s: Any) -> None:
    s += sgl.user("How good is it, 1 to 3?") + sgl.assistant(sgl.select("score", ["1", "2", "3"]))


@sgl.function
def search(s: Any, goal: str, width: int) -> str:
    s += sgl.system(f"The goal is {goal}.")
    found = list(propose(s, width))
    for branch in found:
        judge(branch)
    best = max(found, key=lambda branch: int(branch["score"]))
    return str(best["step"])


def test_7_a_tree_of_thoughts_from_programs_that_call_programs() -> None:
    def scores(request: Any) -> list[tuple[float, ...]]:
        best = "3" if "step b" in prompt_text(request) else "1"
        return [(-0.1 if option == best else -5.0,) for option in request.options]

    steps = iter(["step a", "step b", "step c"])
    state = search.run(goal="tea", width=3, backend=sgl.Fake(lambda request: next(steps), scores=scores))
    assert state.ret_value == "step b"


FACTS = {"capital of France": "Paris", "river of Paris": "Seine"}


@sgl.function
def react(s: Any, question: str, turns: int = 4) -> str:
    s += f"Question: {question}\n"
    for number in range(turns):
        s += f"Thought {number}:" + sgl.gen("thought", stop=["\nAction", "\nAnswer"], max_tokens=40)
        s += "\n" + sgl.select("kind", ["Action: look up", "Answer:"])
        if s["kind"] == "Answer:":
            break
        s += sgl.gen("what", stop="\n", max_tokens=20) + "\n"
        s += "Observation: " + FACTS.get(s["what"].strip(), "nothing") + "\n"
    s += sgl.gen("answer", stop="\n", max_tokens=20)
    return str(s["answer"]).strip()


def test_8_an_agent_that_thinks_acts_and_observes_in_a_loop() -> None:
    said = [" where?\nAction: x", " capital of France\n", " and then?\nAction", " river of Paris\n", " known.", " Seine\n"]

    def scores(request: Any) -> list[tuple[float, ...]]:
        done = prompt_text(request).count("Observation") == 2
        return [(-0.1 if option.startswith("Answer") == done else -4.0,) for option in request.options]

    state = react.run(question="Which river?", backend=sgl.Fake(said, scores=scores))
    assert state.ret_value == "Seine"
    assert state.text().count("Observation: ") == 2 and "Observation: Seine" in state.text()
    assert state["thought"] == " known."


@sgl.function
def essay_judge(s: Any, essay: str, sides: list[str]) -> None:
    s += "An essay: " + essay + "\n"
    forks = s.fork(len(sides))
    forks += [f"Its {side}:" for side in sides]
    forks += sgl.gen("note", max_tokens=12, stop="\n")
    forks.join("concate_and_append")
    with s.var_scope("verdict"):
        s += " All in all: " + sgl.gen("grade", max_tokens=4)
    with s.copy() as aside:
        aside += " Why?" + sgl.gen("why", max_tokens=8)


def test_9_an_essay_judged_from_several_sides_at_once() -> None:
    script = {"style:": " plain", "ideas:": " bold", "all: ": "good", "Why?": " because"}
    graded = essay_judge.bind(sides=["style", "ideas"])
    state = graded.run(essay="Rain.", backend=sgl.Fake(script))
    assert state.text() == "An essay: Rain.\nIts style: plainIts ideas: bold All in all: good"
    assert (state["verdict"], state["grade"], state["why"]) == (" All in all: good", "good", " because")


@sgl.function
def vote(s: Any, question: str, samples: int = 5) -> None:
    s += sgl.user(question)
    forks = s.fork(samples)
    forks += sgl.assistant(sgl.gen("reason", max_tokens=20, temperature=0.9, stop="=") + "=" + sgl.gen_int("n", max_tokens=3))
    forks.join()
    s["answer"] = max(set(s["n"]), key=s["n"].count)


def test_10_the_answer_that_most_samples_agree_on() -> None:
    def script(request: GenerateRequest) -> str:
        if request.constraint is None:
            return "so it is=9"
        return "7" if request.hints.path[-1] % 2 == 0 else "5"

    (state,) = vote.run_batch([("3+4?",)], backend=sgl.Fake(script))
    assert state["n"] == [7, 5, 7, 5, 7] and state["answer"] == 7
    assert state["reason"] == ["so it is"] * 5
