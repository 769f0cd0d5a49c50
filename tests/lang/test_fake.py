"""The scripted backend itself: the ways to script it, and what it honours."""

from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import Reply, Script


def texts(script: Script, prompts: list[str], **options: Any) -> list[str]:
    def body(s: bp.State) -> list[str]:
        values = []
        for prompt in prompts:
            (branch,) = s.fork(1)
            branch += prompt + bp.gen("x", **options)
            values.append(branch["x"])
        return values

    values: list[str] = bp.function(body).run(backend=bp.Fake(script)).value
    return values


async def later(request: GenerateRequest) -> str:
    return "later"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("same", ["same", "same"]),
        (["one", "two"], ["one", "two"]),
        ([Reply("one"), "two"], ["one", "two"]),
        ({"a": "to a", "ba": "to ba"}, ["to a", "to ba"]),
        ({"a": ["first", "second"]}, ["first", "second"]),
        (lambda request: f"{len(request.segments)}", ["1", "1"]),
        (later, ["later", "later"]),
    ],
)
def test_ways_to_script(script: Script, expected: list[str]) -> None:
    assert texts(script, ["a", "ba"]) == expected


@pytest.mark.parametrize("script", [["one"], {"a": "x"}, {"b": ["x"], "a": "y"}])
def test_a_script_with_nothing_to_say_fails_the_call(script: Script) -> None:
    with pytest.raises(bp.ProgramError, match="script has"):
        texts(script, ["b", "b"])


def test_the_wrong_number_of_samples_is_an_error() -> None:
    with pytest.raises(bp.ProgramError, match="2 samples, 3 were"):
        texts([["a", "b"]], ["x"], n=3)


def test_limits_are_honoured() -> None:
    assert texts("abcdef", ["x"], max_tokens=2) == ["ab"]
    assert texts("abcdef", ["x"], stop=["e", "cd"]) == ["ab"]
    assert texts("", ["x"]) == [""]
    assert texts(Reply("", delay=0.001), ["x"]) == [""]


def test_unicode_is_one_token_a_character() -> None:
    run = bp.function(lambda s: s.__iadd__(bp.gen("x")) and None).run(backend=bp.Fake("é🙂"))
    assert run.meta("x").tokens == (0xE9, 0x1F642)


def test_a_fake_can_end_for_any_reason() -> None:
    run = bp.function(lambda s: s.__iadd__(bp.gen("x", int)) and None).run(backend=bp.Fake(Reply("1", reason="abort")))
    assert run.meta("x").finish_reason == "abort"
    with pytest.raises(bp.Incomplete, match="abort"):
        run["x"]
