"""The programs, and how many of each run at once. Output lengths are fixed, so that every run is the same work.

Each shape makes a list of programs, one for each instance, whose prompts share what such programs share in practice. `run` is
another set of texts, so that no run finds the KV of the one before.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import branchpoint as bp
from benchmarks.traces.texts import Writer
from branchpoint.lang.program import Program

__all__ = ["SHAPES", "Shape"]

Shape = Callable[[int], list[Program[None]]]

ANSWERS = ["A", "B", "C", "D"]


def _out(name: str, count: int, temperature: float = 0.0) -> bp.Expr:
    return bp.gen(name, max_tokens=count, ignore_eos=True, temperature=temperature)


def _question(writer: Writer) -> str:
    options = " ".join(f"{letter}. {writer.words(3)}" for letter in ANSWERS)
    return f"Question: {writer.sentence(14)} {options}\nAnswer:"


@bp.function
def few_shot(s: bp.State, shared: str, question: str) -> None:
    """5 examples and a question; one token comes out."""
    s += shared
    s += question
    s += _out("answer", 1)


@bp.function
def few_shot_select(s: bp.State, shared: str, question: str, endings: list[str]) -> None:
    """20 examples, a beginning, and the best of 4 endings: two levels of sharing."""
    s += shared
    s += question
    s += bp.select("ending", endings)


@bp.function
def agent(s: bp.State, system: str, task: str, turns: list[str]) -> None:
    """8 turns of a recorded trace: what the model says takes its time and is discarded, the recorded text goes on."""
    s += bp.system(system)
    s += bp.user(task)
    for turn in turns:
        tried = s.copy()
        with tried.assistant():
            tried += _out("said", 12)
        tried.sync()
        thought, observation = turn.split("|")
        s += bp.assistant(thought)
        s += bp.user(observation)


@bp.function
def tree_of_thought(s: bp.State, system: str, problem: str) -> None:
    """2-2-2-2: 30 thoughts, each after its own branch of the tree."""
    s += bp.system(system)
    s += bp.user(problem)
    level: list[bp.State] = [s]
    for depth in range(4):
        branches = [branch for state in level for branch in state.fork(2)]
        for number, branch in enumerate(branches):
            branch += bp.user(f"Give thought {number + 1} of step {depth + 1}.")
            branch += bp.assistant(_out("thought", 12, 0.8))
        level = branches


@bp.function
def judge(s: bp.State, system: str, essay: str, criteria: list[str]) -> None:
    """Branch, solve, merge: 6 judgements of an essay at once, then one verdict over all of them."""
    s += bp.system(system)
    s += bp.user(essay)
    branches = s.fork(len(criteria))
    for branch, criterion in zip(branches, criteria, strict=True):
        branch += bp.user(f"Judge the essay by this: {criterion}")
        branch += bp.assistant(_out("verdict", 24))
    branches.join()
    s += bp.user("The judgements:\n" + "\n".join(s["verdict"]) + "\nSum them up.")
    s += bp.assistant(_out("summary", 24))


@bp.function
def skeleton(s: bp.State, system: str, question: str) -> None:
    """Skeleton of thought: points first, each of them worked out at once, then the whole."""
    s += bp.system(system)
    s += bp.user(question)
    s += bp.assistant("The points are: " + _out("points", 24))
    branches = s.fork(5)
    for number, branch in enumerate(branches):
        branch += bp.user(f"Work out point {number + 1}.")
        branch += bp.assistant(_out("part", 24))
    branches.join()
    s += bp.user("\n".join(s["part"]))
    s += bp.assistant(_out("end", 8))


@bp.function
def chat(s: bp.State, system: str, questions: list[str], length: int) -> None:
    """A conversation: each turn goes on from the last."""
    s += bp.system(system)
    for question in questions:
        s += bp.user(question)
        s += bp.assistant(_out("reply", length))


@bp.function
def json_fields(s: bp.State, shared: str, document: str) -> None:
    """A JSON object whose keys are written and whose values are generated, each held to its form."""
    s += shared
    s += document
    s += '\n{\n  "name": "' + bp.gen("name", regex="[A-Z][a-z]{3,8}", max_tokens=8)
    s += '",\n  "year": ' + bp.gen("year", regex="[12][0-9]{3}", max_tokens=6)
    s += ',\n  "kind": "' + bp.gen("kind", regex="river|town|hill", max_tokens=6)
    s += '",\n  "note": "' + bp.gen("note", regex="[a-z ]{20,30}", max_tokens=16) + '"\n}'


def _few_shot(run: int) -> list[Program[None]]:
    writer = Writer("few", run)
    shared = "\n\n".join(_question(writer) + f" {writer.pick(ANSWERS)}" for _ in range(5)) + "\n\n"
    return [few_shot.bind(shared=shared, question=_question(writer)) for _ in range(16)]


def _few_shot_select(run: int) -> list[Program[None]]:
    writer = Writer("select", run)
    shared = "\n".join(writer.sentence(12) + " " + writer.sentence(10) for _ in range(20)) + "\n"
    return [
        few_shot_select.bind(shared=shared, question=writer.sentence(24), endings=[" " + writer.sentence(9) for _ in range(4)])
        for _ in range(6)
    ]


def _agent(run: int) -> list[Program[None]]:
    writer = Writer("agent", run)
    system = " ".join(writer.sentence(15) for _ in range(10))
    return [
        agent.bind(
            system=system,
            task=writer.sentence(20),
            turns=[f"Thought: {writer.sentence(12)}|Observation: {writer.sentence(20)}" for _ in range(8)],
        )
        for _ in range(4)
    ]


def _tree(run: int) -> list[Program[None]]:
    writer = Writer("tree", run)
    system = " ".join(writer.sentence(15) for _ in range(8))
    return [tree_of_thought.bind(system=system, problem=writer.sentence(30)) for _ in range(2)]


def _judge(run: int) -> list[Program[None]]:
    writer = Writer("judge", run)
    system = " ".join(writer.sentence(15) for _ in range(4))
    return [
        judge.bind(
            system=system,
            essay=" ".join(writer.sentence(15) for _ in range(16)),
            criteria=[writer.words(6) for _ in range(6)],
        )
        for _ in range(2)
    ]


def _skeleton(run: int) -> list[Program[None]]:
    writer = Writer("skeleton", run)
    system = " ".join(writer.sentence(15) for _ in range(8))
    return [skeleton.bind(system=system, question=writer.sentence(30)) for _ in range(3)]


def _chat(run: int, name: str, words: int, length: int) -> list[Program[None]]:
    writer = Writer(name, run)
    system = writer.sentence(30)
    return [chat.bind(system=system, questions=[writer.sentence(words) for _ in range(4)], length=length) for _ in range(4)]


def _json(run: int) -> list[Program[None]]:
    writer = Writer("json", run)
    shared = " ".join(writer.sentence(15) for _ in range(12)) + "\n\n"
    return [json_fields.bind(shared=shared, document=writer.sentence(40)) for _ in range(6)]


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "few_shot": _few_shot,
        "few_shot_select": _few_shot_select,
        "agent": _agent,
        "tree_of_thought": _tree,
        "judge": _judge,
        "skeleton": _skeleton,
        "chat_short": lambda run: _chat(run, "short", 30, 8),
        "chat_long": lambda run: _chat(run, "long", 30, 32),
        "json": _json,
    }
)
