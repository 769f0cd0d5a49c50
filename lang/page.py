"""A run as a page: `Run.to_html()` (LANGUAGE B2). One HTML text without scripts; notebooks show it, too.

The tree of branches, with what each said; for each call its tokens by where they came from, its cost, and when it ran.
"""

from collections.abc import Iterator, Sequence
from html import escape

from branchpoint.lang.context import RunContext
from branchpoint.lang.errors import ProgramError, said_by
from branchpoint.lang.ledger import Entry, Pending, RoleEntry, TextEntry
from branchpoint.lang.report import Record, Report
from branchpoint.lang.result import Meta
from branchpoint.lang.state import State
from branchpoint.lang.variables import CallEntry

__all__ = ["page_of", "table_of"]

_KINDS = {
    "reused": ("#cfe8cf", "prompt tokens whose KV was there"),
    "prefilled": ("#e3e3e3", "prompt tokens that were computed"),
    "forced": ("#bfe3f5", "output that the grammar left no choice about"),
    "accepted": ("#d9ccf5", "output that was drafted and held"),
    "sampled": ("#fff0b3", "output that was sampled"),
    "wasted": ("#f5c6c6", "output of calls that came to nothing"),
}
_STYLE = """
.bp{font:14px/1.5 system-ui,sans-serif;color:#222;max-width:70em}
.bp pre{white-space:pre-wrap;margin:.2em 0;font:13px/1.6 ui-monospace,monospace}
.bp section{border-left:3px solid #ccc;margin:.6em 0 .6em .4em;padding-left:.8em}
.bp table{border-collapse:collapse;font-size:12px}
.bp td,.bp th{padding:.1em .7em;text-align:right;border-bottom:1px solid #ddd}
.bp td:nth-child(-n+3),.bp th:nth-child(-n+3){text-align:left}
.bp .role{color:#888}
.bp .lost{text-decoration:line-through}
.bp .error{color:#a00}
.bp .call{border-bottom:2px solid #888}
.bp .note{font-size:11px;color:#666}
.bp .mix,.bp .time{display:inline-block;width:12em;height:.7em;vertical-align:middle;background:#f6f6f6}
.bp .mix,.bp .time{white-space:nowrap;font-size:0}
.bp .mix i,.bp .time i{display:inline-block;height:100%}
.bp .time i{background:#7a9cc6}
"""


def page_of(context: RunContext, report: Report) -> str:
    """The page of a run that is over."""
    colours = "".join(f".bp .{kind}{{background:{colour}}}\n" for kind, (colour, _) in _KINDS.items())
    legend = " ".join(f'<span class="{kind}" title="{escape(told)}">{kind}</span>' for kind, (_, told) in _KINDS.items())
    head = f"<h3>{escape(report.program)}</h3><p>seed {report.seed}, {report.seconds:.3f} s. {legend}</p>"
    body = "".join(_branches(context.states, report.seconds))
    return (
        f'<!doctype html><meta charset="utf-8"><title>{escape(report.program)}</title>'
        f'<div class="bp"><style>{_STYLE}{colours}</style>{head}{body}{table_of(report)}</div>'
    )


def table_of(report: Report) -> str:
    """The report as a table."""
    first, *rows = report.rows()
    cells = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in first) + "</tr>"]
    cells += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return f"<table>{''.join(cells)}</table>"


def _branches(states: Sequence[State], seconds: float) -> Iterator[str]:
    """All states, each within its parent's section; a tree may be deeper than Python's stack."""
    children: dict[State | None, list[State]] = {}
    for state in states:
        children.setdefault(state.parent, []).append(state)
    waiting: list[State | str] = [*reversed(children[None])]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case State() as state:
                yield from _branch(state, seconds)
                waiting += ["</section>", *reversed(children.get(state, []))]


def _branch(state: State, seconds: float) -> Iterator[str]:
    number = ".".join(map(str, state.branch))
    given_up = state.place.ended
    yield f"<section{' class=lost' if given_up else ''}>"
    if number or given_up:
        yield f'<div class="note">branch {number or "0"}{f", given up: {escape(given_up)}" if given_up else ""}</div>'
    yield "<pre>"
    for entry in state.log.so_far():
        yield _entry(entry, seconds)
    yield "</pre>"


def _entry(entry: Entry, seconds: float) -> str:
    if isinstance(entry, CallEntry):
        return _call(entry, seconds)
    text = "".join(entry.pieces.so_far()) if isinstance(entry, Pending) else "".join(each.text for each in entry.segments)
    kind = "role" if isinstance(entry, RoleEntry) else "text" if isinstance(entry, TextEntry) else "value"
    return f'<span class="{kind}">{escape(text)}</span>{_failure(entry)}'


def _failure(entry: Entry) -> str:
    if not isinstance(entry, Pending) or entry.failure is None or entry.failure.entry is not entry:
        return ""
    return f' <span class="error">{escape(said_by(entry.failure.cause))}</span>'


def _call(entry: CallEntry, seconds: float) -> str:
    record = entry.record() if entry.done.is_set else None
    try:
        meta = entry.meta() if entry.done.is_set and entry.failure is None else None
    except ProgramError:
        meta = None
    told = f"{entry.kind} {entry.name or ''} at {entry.origin}"
    lost = " lost" if entry.dropped or entry.failure is not None else ""
    body = f'<span class="call{lost}" title="{escape(told + _details(meta))}">{_text(entry, meta)}</span>{_failure(entry)}'
    if record is None:
        return body
    return f'{body}<span class="note"> {escape(entry.name or entry.kind)} {_mix(record)} {_time(entry, record, seconds)}</span>'


def _details(meta: Meta | None) -> str:
    if meta is None:
        return ""
    lines = [f"\nends by {meta.finish_reason}" + (f", {meta.stop!r}" if meta.stop is not None else "")]
    if meta.reasoning:
        lines.append(f"thought: {meta.reasoning}")
    lines += [f"{option.probability:7.2%}  {option.text!r}" for option in meta.choices]
    return "\n".join(lines)


def _text(entry: CallEntry, meta: Meta | None) -> str:
    """What the call put into the text; what was forced is marked."""
    text = "".join(entry.pieces.so_far())
    samples = meta.samples if meta is not None else ()
    forced = next((one.forced for one in samples if one.text == text), ())
    parts, at = list[str](), 0
    for start, end in [*forced, (len(text), len(text))]:
        parts.append(f'<span class="sampled">{escape(text[at:start])}</span>' if start > at else "")
        parts.append(f'<span class="forced">{escape(text[start:end])}</span>' if end > start else "")
        at = end
    return "".join(parts)


def _mix(record: Record) -> str:
    """The call's tokens, by where they came from, as a bar."""
    usage = record.usage
    made = usage.completion_tokens - usage.forced_tokens - usage.accepted_tokens
    counts = {"reused": usage.cached_tokens, "prefilled": usage.prefilled_tokens}
    if record.wasted:
        counts["wasted"] = usage.completion_tokens
    else:
        counts |= {"forced": usage.forced_tokens, "accepted": usage.accepted_tokens, "sampled": made}
    whole = max(sum(counts.values()), 1)
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    bars = "".join(f'<i class="{kind}" style="width:{100 * count / whole:.1f}%"></i>' for kind, count in counts.items())
    return f'<span class="mix" title="{told}">{bars}</span> {told}'


def _time(entry: CallEntry, record: Record, seconds: float) -> str:
    """When the call ran, within the run, as a bar."""
    whole = max(seconds, 1e-9)
    before = min(max(entry.began - entry.place.context.began, 0.0) / whole, 1.0)
    width = min(record.seconds / whole, 1.0 - before)
    bar = f'<i style="margin-left:{100 * before:.1f}%;width:{100 * width:.1f}%"></i>'
    return f'<span class="time" title="from {before * whole:.3f} s on">{bar}</span> {record.seconds:.3f} s'
