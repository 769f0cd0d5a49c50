"""What can be said of a program before any token is spent: `Program.check` (LANGUAGE P7).

The program is traced (`trace.py`), twice, so that text which differs each time shows; the rules look at the nodes. A program that
isn't a graph is looked at up to the line where it stops being one.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast

from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.spec import Choice, Regex
from branchpoint.lang import nodes as op
from branchpoint.lang.backends.base import Backend, Measuring
from branchpoint.lang.caller import failing_line
from branchpoint.lang.dispatcher import Dispatched
from branchpoint.lang.errors import Origin, UnknownVariable
from branchpoint.lang.graph import trace_program
from branchpoint.lang.placeholder import Untraceable
from branchpoint.lang.trace import Trace
from branchpoint.runtime.messages import Text

if TYPE_CHECKING:
    from branchpoint.lang.program import Program

__all__ = ["Finding", "lint"]

_SHARED = 200  # characters of constant text that are worth being shared between runs
_CHANGING = re.compile(
    r"\d{4}-\d{2}-\d{2}|\d{1,2}:\d{2}:\d{2}|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-|\b[0-9a-f]{32,}\b|\b1[0-9]{9}(?:[0-9]{3})?\b"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a program, or that costs for nothing. `rule` is its short name, `origin` its line."""

    rule: str
    message: str
    origin: Origin

    def __str__(self) -> str:
        return f"{self.origin}: {self.message} ({self.rule})"


def lint(program: "Program[Any]", given: Mapping[str, object], backend: Backend | None) -> tuple[Finding, ...]:
    """What there is to say, in the order of the program's lines. Raises what the program raises, but for unknown variables."""
    trace, findings = Trace(program.name), list[Finding]()
    try:
        trace_program(program, given, trace)
    except UnknownVariable as error:
        findings.append(Finding("unknown-variable", str(error), failing_line(error)))
    except Untraceable as error:
        findings.append(Finding("not-a-graph", str(error).partition(": ")[2], error.origin))
    findings += [*_names(trace), *_choices(trace), *_patterns(trace), *_changing(trace, _again(program, given))]
    if backend is not None:
        findings += _lengths(trace, backend)
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: (finding.origin.file, finding.origin.line)))


def _again(program: "Program[Any]", given: Mapping[str, object]) -> Trace:
    """A second trace, as far as it goes."""
    trace = Trace(program.name)
    with contextlib.suppress(UnknownVariable, Untraceable):  # the first one told
        trace_program(program, given, trace)
    return trace


def _names(trace: Trace) -> Iterator[Finding]:
    last: dict[tuple[int, str], int] = {}
    for number, node in enumerate(trace.nodes):
        if not isinstance(node, op.Gen | op.Select) or node.name is None:
            continue
        before = last.get((node.state, node.name))
        if before is not None and before not in trace.read:
            message = f"{node.name!r} is set again, and what {trace.origins[before]} set was never read"
            yield Finding("name-used-twice", message, trace.origins[number])
        last[node.state, node.name] = number


def _choices(trace: Trace) -> Iterator[Finding]:
    for node, origin in zip(trace.nodes, trace.origins, strict=True):
        if isinstance(node, op.Select):
            choices, method = node.choices, node.method
        elif isinstance(node, op.Gen) and isinstance(node.constraint, Choice):
            choices, method = node.constraint.options, ""
        else:
            continue
        begins, seen = _beginnings(choices), set[str]()
        for choice in choices:
            if choice in seen:
                yield Finding("unreachable-choice", f"choice {choice!r} is there twice; the second can't be reached", origin)
                continue
            seen.add(choice)
            shorter = begins.get(choice)
            if shorter is None or not method or method == "total_with_end":
                continue
            if method == "total":
                message = (
                    f"choice {choice!r} can't be reached: {shorter!r} begins it, so is never less likely; "
                    "choices_method='total_with_end' tells where a choice ends"
                )
                yield Finding("unreachable-choice", message, origin)
            else:
                yield Finding("prefix-choice", f"choice {shorter!r} is the beginning of {choice!r}", origin)


def _beginnings(choices: Sequence[str]) -> dict[str, str]:
    """For each choice that others begin, the shortest of those."""
    found, open_ones = dict[str, str](), list[str]()
    for choice in sorted(set(choices)):  # what begins with a text follows it without a gap
        while open_ones and not choice.startswith(open_ones[-1]):
            open_ones.pop()
        if open_ones:
            found[choice] = open_ones[0]
        open_ones.append(choice)
    return found


def _patterns(trace: Trace) -> Iterator[Finding]:
    from branchpoint.constrained.regex import normalise_regex
    from branchpoint.constrained.suspicious import suspicious_classes

    for node, origin in zip(trace.nodes, trace.origins, strict=True):
        if isinstance(node, op.Gen) and isinstance(node.constraint, Regex):
            try:
                normalise_regex(node.constraint.pattern)
            except GrammarError as error:
                yield Finding("bad-pattern", f"the pattern {node.constraint.pattern[:80]!r} can't be used: {error}", origin)
                continue
            for what in suspicious_classes(node.constraint.pattern):
                yield Finding("odd-class", f"in the pattern {node.constraint.pattern[:80]!r}, {what}", origin)


def _chains(trace: Trace) -> Iterator[tuple[int, list[int]]]:
    """For each state, the nodes that lead to its end: those of its parents before their forks, then its own."""
    chains: dict[int, list[int]] = {0: []}
    for number, node in enumerate(trace.nodes):
        if isinstance(node, op.Fork):
            chains.update({child: list(chains[node.state]) for child in node.children})
        else:
            chains[node.state].append(number)
    yield from chains.items()


def _changing(trace: Trace, again: Trace) -> Iterator[Finding]:
    if [type(node) for node in trace.nodes] != [type(node) for node in again.nodes]:
        again = trace  # it goes another way each time, so texts can't be compared
    for _, chain in _chains(trace):
        leading = list(_until_call(trace, chain))
        for place, number in enumerate(leading):
            found = _change(trace.nodes[number], again.nodes[number])
            if found is None:
                continue
            why, rest = found
            after = [trace.nodes[later] for later in leading[place + 1 :] if trace.nodes[later] == again.nodes[later]]
            shared = rest + sum(len(node.text) for node in after if isinstance(node, op.Text))
            if shared >= _SHARED:
                message = (
                    f"{why} stands before {shared} characters that don't change; what is shared must come first to be reused"
                )
                yield Finding("changing-before-shared", message, trace.origins[number])


def _until_call(trace: Trace, chain: list[int]) -> Iterator[int]:
    for number in chain:
        if isinstance(trace.nodes[number], op.Gen | op.Select):
            return
        yield number


def _change(node: op.Node, again: op.Node) -> tuple[str, int] | None:
    """What of a node is different from run to run, and how many characters after that are not."""
    if isinstance(node, op.Argument):
        return f"the argument {node.name!r}", 0
    if isinstance(node, op.Text) and isinstance(again, op.Text):
        if node.text != again.text:
            return "text that is different each time the program runs", _common_end(node.text, again.text)
        if found := _CHANGING.search(node.text):
            return f"{found[0]!r}, which looks like a date, a time or an id,", len(node.text) - found.end()
    return None


def _common_end(left: str, right: str) -> int:
    """How many characters both end with."""
    pairs = zip(reversed(left), reversed(right), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _lengths(trace: Trace, backend: Backend) -> Iterator[Finding]:
    if not (isinstance(backend, Measuring) and isinstance(backend, Dispatched)):
        return
    for _, chain in _chains(trace):
        calls = [place for place, number in enumerate(chain) if isinstance(trace.nodes[number], op.Gen | op.Select)]
        for place in calls:
            nodes = [trace.nodes[number] for number in chain[:place]]
            text = "".join(node.text for node in nodes if isinstance(node, op.Text))
            if not text:
                continue
            tokens, context = cast(Dispatched, backend).dispatcher.run(backend.measure((Text(text),)))
            if tokens >= context:
                message = f"the constant text before it alone has {tokens} tokens, the context of the model {context}"
                yield Finding("prompt-too-long", message, trace.origins[chain[place]])
                break
