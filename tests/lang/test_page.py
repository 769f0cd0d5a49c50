"""A run as a page, and what notebooks show."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import Reply, prompt_text
from branchpoint.runtime.messages import Delta

VOID = {"meta"}


class Page(HTMLParser):
    """Holds the page to balanced tags; its text, and the text of each class."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.deepest = 0
        self.found: dict[str, str] = {}
        self.titles: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.titles.append(values.get("title") or "")
        if tag not in VOID:
            self.open.append((tag, values.get("class") or ""))
        self.deepest = max(self.deepest, [name for name, _ in self.open].count("section"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, kinds in self.open:
            for kind in kinds.split():
                self.found[kind] = self.found.get(kind, "") + data


def run(body: Callable[..., Any], script: Any) -> bp.Run[Any]:
    return bp.function(body).run(backend=script if isinstance(script, bp.Fake) else bp.Fake(script))


def test_b2_the_page_shows_the_tree_of_branches() -> None:
    def body(s: bp.State) -> None:
        s += bp.user("Q <b>") + bp.assistant(bp.gen("x"))
        with s.fork(2) as forks:
            forks += ["one", "two"]
            forks += bp.gen("y")
            (inner,) = forks[1].fork(1)
            inner += "deep" + bp.select("z", ["p", "q"])

    found = run(body, ["<i>a</i>", "b", "c"])
    page = Page(found.to_html())
    assert page.deepest == 3
    assert "Q <b>" in page.found["text"] and "deep" in page.found["text"]
    assert page.found["role"].startswith("<|im_start|>user")
    assert "<i>a</i>" in page.found["sampled"]
    assert "branch 1.0" in page.found["note"]
    assert any("'p'" in title and "%" in title for title in page.titles)
    assert "total" in page.found["bp"]


def test_b2_tokens_are_marked_by_where_they_came_from() -> None:
    class Forcing(bp.Fake):
        async def generate(self, request: GenerateRequest) -> Any:
            async for event in super().generate(request):
                yield Delta(event.id, event.index, "ab", (1, 2), (), ((0, 1),)) if isinstance(event, Delta) else event

    found = run(lambda s: s.__iadd__("Q" + bp.gen("x")) and None, Forcing(Reply("xxxx", forced=2), piece=2))
    page = Page(found.to_html())
    assert found["x"] == "abab"
    assert page.found["forced"] == "forced" + "aa"  # the legend's word, and the two letters
    assert page.found["sampled"] == "sampled" + "bb"
    assert any("2 forced, 2 sampled" in title for title in page.titles)


def test_b2_what_was_given_up_or_failed_is_shown_as_such() -> None:
    def script(request: GenerateRequest) -> Any:
        return Reply("slow", delay=60) if prompt_text(request) == "a" else "quick"

    def body(s: bp.State) -> None:
        forks = s.fork(2)
        forks += ["a", "b"]
        forks += bp.gen("x")
        forks.first()

    assert "given up: another branch was chosen" in Page(run(body, bp.Fake(script)).to_html()).found["lost"]
    failed = bp.function(lambda s: s.__iadd__("Q" + bp.gen("x")) and None).stream(backend=bp.Fake(bp.BackendError("broke")))
    assert "broke" in Page(failed.to_html()).found["error"]


def test_b2_the_page_can_be_written_and_thinking_is_told(tmp_path: Path) -> None:
    found = run(lambda s: s.__iadd__(bp.separate_reasoning(bp.gen("x"))) and None, "<think>why</think>so")
    page = found.to_html(tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text(encoding="utf-8") == page
    assert any("thought: why" in title for title in Page(page).titles)


def test_a_very_deep_tree_has_a_page() -> None:
    def body(s: bp.State) -> None:
        for _ in range(1200):
            (s,) = s.fork(1)
        s += bp.gen("x")

    assert Page(run(body, "abc").to_html()).deepest == 1201


def test_notebooks_show_runs_and_reports_and_wait_for_nothing() -> None:
    found = run(lambda s: s.__iadd__("Q" + bp.gen("x")) and None, "abc")
    assert found._repr_html_() == found.to_html()
    assert "<table>" in found.report()._repr_html_()
    going = bp.function(lambda s: s.__iadd__(bp.gen("x")) and None).stream(backend=bp.Fake(Reply("abc", delay=60)))
    assert going._repr_html_() is None
    going.cancel()
    with pytest.raises(bp.ProgramError):
        going.wait()
