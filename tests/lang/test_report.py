"""The report: totals equal the backend's counts, by source line."""

import dataclasses

from msgspec.structs import replace

import branchpoint as bp
from branchpoint.lang.backends.fake import Reply
from branchpoint.runtime.messages import DrafterStats, Usage


@bp.function
def program(s: bp.State) -> None:
    s += "Question"
    for _ in range(2):
        s += bp.gen("x")
    with s.fork(3) as forks:
        forks += bp.select("y", ["a", "b"])


def test_a_report_adds_up_what_the_calls_cost() -> None:
    run = program.run(backend=bp.Fake(Reply("abcd", forced=1, drafted=2, accepted=2)), seed=11)
    report = run.report()
    total = report.total
    assert total.calls == 5
    assert (total.forced, total.drafted, total.accepted, total.decoded) == (2, 4, 4, 2)
    assert total.prefilled + total.reused == 8 + 12 + 3 * 16
    assert report.seed == run.seed == 11
    assert report.seconds > 0


def test_a_report_goes_by_line() -> None:
    report = program.run(backend=bp.Fake("abcd")).report()
    lines = report.by_line()
    assert [(name, kind, cost.calls) for (_, name, kind), cost in lines.items()] == [("x", "gen", 2), ("y", "select total", 3)]
    assert all(origin.file == __file__ for origin, _, _ in lines)
    text = str(report).splitlines()
    assert text[0].startswith("program (seed ")
    assert text[-1].startswith("total")
    assert len({len(line) for line in text[1:]}) == 1


def test_a_report_says_what_drafting_came_to_and_where_it_does_not_pay() -> None:
    def told(drafted: int, accepted: int) -> str:
        reply = Reply("abcd", forced=1, drafted=drafted, accepted=accepted)
        return str(program.run(backend=bp.Fake(reply)).report()).splitlines()[-1]

    assert told(3, 2) == "drafting: 4 of 6 guesses held (67%), 4.00 output tokens for each step"
    assert told(50, 1).endswith("; it doesn't pay here")
    assert told(0, 0).startswith("total")


def test_a_report_tells_of_each_drafter_by_position() -> None:
    usages = [
        Usage(drafted_tokens=4, accepted_tokens=3, drafters=(DrafterStats("radix", 2, 4, 3, ((2, 2), (2, 1))),)),
        Usage(
            drafted_tokens=81,
            accepted_tokens=3,
            drafters=(DrafterStats("radix", 1, 1, 1, ((1, 1),)), DrafterStats("ngram", 80, 80, 2)),
        ),
    ]
    report = program.run(backend=bp.Fake("abcd")).report()
    records = tuple(replace(record, usage=usage) for record, usage in zip(report.records, usages, strict=False))
    assert (dataclasses.replace(report, records=records).drafting or "").splitlines()[1:] == [
        "  radix: 4 of 5 guesses held (80%), by position 100% 50%",
        "  ngram: 2 of 80 guesses held (2%); it doesn't pay here: leave it out",
    ]


def test_b2_a_report_tells_time_in_the_queue_and_for_masks() -> None:
    report = program.run(backend=bp.Fake("abcd")).report()
    usages = [Usage(queue_seconds=0.5, mask_seconds=0.125), Usage(queue_seconds=0.25)]
    records = tuple(replace(record, usage=usage) for record, usage in zip(report.records, usages, strict=False))
    told = dataclasses.replace(report, records=records)
    assert (told.total.queue_seconds, told.total.mask_seconds) == (0.75, 0.125)
    line = dict(zip(told.rows()[0], told.rows()[-1], strict=True))
    assert (line["queue s"], line["mask s"]) == ("0.750", "0.125")


def test_a_report_can_be_had_while_the_run_goes_on() -> None:
    run = program.run(backend=bp.Fake(Reply("ab", delay=0.01)), stream=True)
    assert run.report().total.calls <= 5
    assert run.wait().report().total.calls == 5
