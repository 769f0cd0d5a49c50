"""Work on which drafting is measured: extraction under a schema, a program that runs again, texts to be edited, free chat.

Made from a fixed seed, as rounds of calls; the calls of a round arrive together, and a round begins when the last one has ended.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from branchpoint.constrained.spec import JsonSchema, Regex
from branchpoint.runtime.messages import Call
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.tokenizer import Tokenizer

__all__ = ["CASES", "Case"]

_NAMES = ("Ada Whitfield", "Marcus Oyelaran", "Ines Carvalho", "Tomas Brandt", "Yuki Hanamura", "Leila Haddad", "Owen Prichard")
_THINGS = ("walnut desk", "cordless drill", "trail tent", "espresso machine", "studio monitor", "road bike", "ceramic planter")
_CITIES = ("Rotterdam", "Adelaide", "Montevideo", "Gdansk", "Nagoya", "Tucson", "Aberdeen")
_AREAS = ("furniture", "tools", "outdoor", "kitchen", "audio", "sports", "garden")
_URGENCY = ("low", "normal", "high", "critical")
_SUBJECTS = (
    "rivers",
    "old maps",
    "bread",
    "lighthouses",
    "bicycles",
    "bees",
    "glass",
    "snow",
    "bridges",
    "clocks",
    "salt",
    "trains",
)

_ORDER = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string", "maxLength": 40},
        "product": {"type": "string", "maxLength": 40},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
        "department": {"enum": [*_AREAS]},
        "delivery_city": {"type": "string", "maxLength": 40},
        "priority": {"enum": [*_URGENCY]},
        "paid": {"type": "boolean"},
    },
    "required": ["customer_name", "product", "quantity", "department", "delivery_city", "priority", "paid"],
    "additionalProperties": False,
}

_FAULTS = ("came with a scratch", "has stopped working", "is louder than I thought", "lacks a screw", "smells of smoke")
_MOODS = ("Please call me.", "I want my money back.", "No hurry, but do look into it.", "This is the third time!", "Thank you.")
_CHOICES = {
    "area": _AREAS,
    "priority": _URGENCY,
    "mood": ("angry", "sad", "calm", "glad"),
    "kind": ("damage", "defect", "delivery", "question"),
    "answer": ("refund", "repair", "replace", "reply"),
    "channel": ("phone", "mail", "chat"),
}
_TICKET = {
    "type": "object",
    "properties": {key: {"enum": [*values]} for key, values in _CHOICES.items()},
    "required": [*_CHOICES],
    "additionalProperties": False,
}

Rounds = list[list[Call]]


@dataclass(frozen=True, slots=True)
class Case:
    """`rounds` makes the work; the first `warm` rounds aren't counted. `bar` is what `drafters` must reach beside none: in tokens
    per step, or, `by_time`, in tokens a second. With `layers` it is a random model of so many and another of its first ones. Of
    more than one of `branches`, drafts are trees.
    """

    drafters: tuple[str, ...]
    rounds: Callable[[Tokenizer], Rounds]
    bar: float
    warm: int = 0
    by_time: bool = False
    layers: tuple[int, int] | None = None
    branches: int = 1


def _chat(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", special=True))


def _extraction(tokenizer: Tokenizer) -> Rounds:
    """Orders as letters, to be read into objects, one after another."""
    rng, rounds = random.Random(1), []
    for number in range(24):
        place = rng.randrange(len(_THINGS))
        letter = (
            f"Dear shop, my name is {rng.choice(_NAMES)} and I would like to order {rng.randint(1, 40)} of your "
            f"{_THINGS[place]}s from the {_AREAS[place]} department. Please send them to {rng.choice(_CITIES)}. This is of "
            f"{rng.choice(_URGENCY)} priority, and I have {rng.choice(('already paid', 'not paid yet'))}."
        )
        asked = f"Read this order into JSON with the keys {', '.join(_ORDER['properties'])}.\n\n{letter}"  # type: ignore[arg-type]
        sampling = SamplingParams(max_tokens=160, temperature=0.0)
        rounds.append([Call(f"json{number}", _chat(tokenizer, asked), sampling, JsonSchema(json.dumps(_ORDER)))])
    return rounds


def _replays(tokenizer: Tokenizer) -> Rounds:
    """An agent of four turns for each of three tasks, and all of it once more, as after a change elsewhere in the program."""
    rng, tasks = random.Random(2), []
    for number in range(3):
        subject = _SUBJECTS[number]
        turns, said = [], f"You are a careful assistant. The task: plan a short talk about {subject}."
        for turn, wish in enumerate(
            ("Name three points.", "Write an opening line.", "Explain the second point.", "Close the talk.")
        ):
            said += f"\n\nStep {turn + 1}. {wish} (tool said: {rng.randint(100, 999)})"
            sampling = SamplingParams(max_tokens=48, temperature=0.7, seed=number * 10 + turn)
            turns.append(Call(f"agent{number}.{turn}", _chat(tokenizer, said), sampling))
        tasks.append(turns)
    once = [[turn] for task in tasks for turn in task]
    return once + [[Call(f"{call.id}again", call.prompt, call.sampling) for call in calls] for calls in once]


def _parted(tokenizer: Tokenizer) -> Rounds:
    """Short answers that four earlier runs have given in different words, and each of these runs once more, in another order."""
    rng, earlier = random.Random(4), []
    for number, subject in enumerate(_SUBJECTS[:8]):
        for run in range(4):
            sampling = SamplingParams(max_tokens=24, temperature=0.8, seed=number * 10 + run)
            asked = f"Name one fact about {subject}, in one short sentence."
            earlier.append(Call(f"fact{number}.{run}", _chat(tokenizer, asked), sampling))
    again = [Call(f"{call.id}again", call.prompt, call.sampling) for call in rng.sample(earlier, len(earlier))]
    return [[call] for call in (*earlier, *again)]


def _tickets(tokenizer: Tokenizer) -> Rounds:
    """Tickets to be sorted by a schema of choices, one after another."""
    rng, rounds = random.Random(5), []
    for number in range(24):
        thing, city = rng.choice(_THINGS), rng.choice(_CITIES)
        letter = f"The {thing} that I bought in {city} {rng.choice(_FAULTS)}. {rng.choice(_MOODS)}"
        asked = f"Sort this message into JSON with the keys {', '.join(_TICKET['properties'])}.\n\n{letter}"  # type: ignore[arg-type]
        sampling = SamplingParams(max_tokens=120, temperature=0.7, seed=number)
        rounds.append([Call(f"ticket{number}", _chat(tokenizer, asked), sampling, JsonSchema(json.dumps(_TICKET)))])
    return rounds


def _tosses(tokenizer: Tokenizer) -> Rounds:
    """Choices of four, one after another, at a high temperature: little foretells them."""
    rounds, sides = [], "(north|south|east|west)"
    for number in range(8):
        sampling = SamplingParams(max_tokens=64, temperature=1.5, seed=number)
        asked = _chat(tokenizer, "Name sides of the compass at random.")
        rounds.append([Call(f"toss{number}", asked, sampling, Regex(f"{sides}( {sides}){{15}}"))])
    return rounds


def _edits(tokenizer: Tokenizer) -> Rounds:
    """Texts of a few sentences to be written again with one thing changed."""
    rng, rounds = random.Random(3), []
    for number in range(12):
        name, thing, city = rng.choice(_NAMES), rng.choice(_THINGS), rng.choice(_CITIES)
        text = (
            f"{name} runs a small workshop in {city}. Every {thing} that leaves the workshop is checked twice and packed by "
            f"hand. Orders from {city} are delivered on the same day; all other orders take three days. In the last year the "
            f"workshop sold {rng.randint(200, 900)} pieces, and {name} hopes to sell more in the next. "
            f"If a {thing} breaks within five years, {name} repairs it for free."
        )
        asked = f'Repeat the following text word for word, but write "studio" instead of "workshop".\n\n{text}'
        rounds.append([Call(f"edit{number}", _chat(tokenizer, asked), SamplingParams(max_tokens=128, temperature=0.0))])
    return rounds


def _chats(tokenizer: Tokenizer) -> Rounds:
    """Sixteen free conversations at temperature 1 at a time."""
    rounds = []
    for number in range(4):
        calls = []
        for place in range(16):
            sampling = SamplingParams(max_tokens=96, temperature=1.0, seed=100 * number + place, ignore_eos=True)
            asked = f"Tell me something about {_SUBJECTS[(number + place) % len(_SUBJECTS)]} that few people know."
            calls.append(Call(f"chat{number}.{place}", _chat(tokenizer, asked), sampling))
        rounds.append(calls)
    return rounds


def _ramblings(tokenizer: Tokenizer) -> Rounds:
    """What random models make of a subject, one at a time."""
    rounds = []
    for number, subject in enumerate(_SUBJECTS):
        sampling = SamplingParams(max_tokens=64, temperature=1.0, seed=number, ignore_eos=True)
        rounds.append([Call(f"pair{number}", tuple(tokenizer.encode(f"A few words about {subject}.")), sampling)])
    return rounds


CASES = {
    "json": Case(("suffix", "grammar"), _extraction, 1.8),
    "replay": Case(("radix",), _replays, 2.5, warm=12),
    "edit": Case(("suffix",), _edits, 2.0),
    "parted": Case(("radix",), _parted, 1.0, warm=32, branches=3),
    "tickets": Case(("grammar",), _tickets, 1.0, warm=4, branches=3),
    "tosses": Case(("grammar",), _tosses, 1.0, warm=2, branches=4),
    "pair": Case(("model",), _ramblings, 1.0, warm=2, layers=(12, 1)),
    "chat16": Case(("grammar", "radix", "suffix"), _chats, 0.97, warm=1, by_time=True),
}
"""The issue's bars are the cases' `bar`; for `pair` it names none, and the text must only be the same."""
