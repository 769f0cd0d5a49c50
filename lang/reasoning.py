"""Thinking told apart from the answer (LANGUAGE R3): `separate_reasoning`, and how such a gen is performed.

An answer in plain text is asked for together with its thinking, in one request. One that is held to a type or ends at stops is
asked for in two: what is asked of the answer holds for the answer only. `request.py` calls `reason`.
"""

from dataclasses import replace

import msgspec

from branchpoint.lang.asking import Performed, Sample, ask, ids_of, messages_of, segments_of
from branchpoint.lang.backends.base import Backend
from branchpoint.lang.calling import call_tools
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.expr import Expr, ExprLike, Gen, Join, Reasoning, flatten
from branchpoint.lang.variables import CallEntry
from branchpoint.runtime.messages import Delta, Ids, Segment, Text
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["Splitter", "reason", "separate_reasoning"]

_THINK = Reasoning("<think>", "</think>")
_MODELS = {
    "deepseek-r1": replace(_THINK, opened=True),
    "qwen3": _THINK,
    "qwen3-thinking": replace(_THINK, opened=True),
    "glm45": _THINK,
    "kimi": Reasoning("◁think▷", "◁/think▷"),
}


def separate_reasoning(
    expression: ExprLike,
    model_type: str | None = None,
    *,
    start: str | None = None,
    end: str | None = None,
    keep: bool = False,
) -> Join:
    """`expression`, whose gens think first: `gen("x")` sets `x` to the answer, `x_reasoning_content` to the thinking.

    What else is in the expression stays as it is. `model_type` says how the model marks its thinking (`<think>…</think>` where it
    is left out), `start` and `end` are such marks by themselves. Later prompts don't hold the thinking unless `keep`.
    Raises ProgramMistake for a model that isn't known, or a typed gen of several samples.
    """
    if model_type is not None and model_type not in _MODELS:
        known = ", ".join(_MODELS)
        raise ProgramMistake(f"separate_reasoning knows the models {known}, got {model_type!r}; or give start= and end=.")
    tags = _MODELS[model_type] if model_type is not None else _THINK
    if start == "" or end == "":
        raise ProgramMistake("separate_reasoning needs marks of at least one character, got an empty start or end.")
    tags = replace(tags, start=start or tags.start, end=end or tags.end, keep=keep)
    leaves: list[Expr] = []
    for leaf in flatten(expression):
        if isinstance(leaf, Gen):
            if _in_two(leaf) and leaf.options.get("n", 1) != 1:
                raise ProgramMistake("A gen that is typed or has stops can't think for several samples; leave n out.")
            leaf = replace(leaf, reasoning=tags)
        leaves.append(leaf)
    return Join(tuple(leaves))


def _in_two(expr: Gen) -> bool:
    options = expr.options
    return expr.constraint is not None or expr.tools is not None or bool(options.get("stop") or options.get("stop_token_ids"))


class Splitter:
    """Tells thinking from the rest of a text that comes piece by piece. White space around thinking is dropped.

    `inside`: the text begins within thinking; a mark that opens it all the same is passed over.
    """

    def __init__(self, tags: Reasoning, *, inside: bool) -> None:
        self._tags = tags
        self._inside = inside
        self._unsure = inside  # whether a mark may still open what is open already
        self._begun = inside  # whether there has been any thinking
        self._held = ""
        self._space = ""  # white space that counts only if something follows
        self._before = ""  # what stood between the answer so far and the thinking that broke it off
        self._fresh = True  # nothing was said yet since the last mark
        self._said = {True: False, False: False}  # whether there was any, by whether inside

    def feed(self, text: str) -> tuple[str, str]:
        """The thinking and the answer that are certain with `text`."""
        self._held += text
        found = {True: "", False: ""}
        while self._opening_is_known():
            tag = self._tags.end if self._inside else self._tags.start
            at = self._held.find(tag)
            if at < 0:
                kept = _overlap(self._held, tag)
                found[self._inside] += self._say(self._held[: len(self._held) - kept])
                self._held = self._held[len(self._held) - kept :]
                break
            found[self._inside] += self._say(self._held[:at])
            self._held = self._held[at + len(tag) :]
            if not self._inside and not self._fresh:
                self._before = self._space
            self._inside, self._begun, self._fresh, self._space = not self._inside, True, True, ""
        return found[True], found[False]

    def finish(self) -> tuple[str, str]:
        """What was held back, where it ends."""
        rest, self._held = self._held, ""
        said = self._say(rest)
        if self._inside:
            return said, ""
        return "", said + ("" if self._fresh and self._begun else self._space)

    def _opening_is_known(self) -> bool:
        """Whether it is clear that a text which begins inside doesn't open its thinking again."""
        if self._unsure:
            begin = self._held.lstrip()
            if self._tags.start.startswith(begin) and begin != self._tags.start:
                return False
            self._unsure = False
            self._held = self._held if not begin.startswith(self._tags.start) else begin[len(self._tags.start) :]
        return True

    def _say(self, text: str) -> str:
        text = self._space + text
        core = text.strip()
        if not core:
            self._space = text
            return ""
        lead = text[: len(text) - len(text.lstrip())]
        self._space = text[len(text.rstrip()) :]
        if self._fresh and self._begun:
            said = self._said[self._inside]
            lead = "" if not said else "\n" if self._inside else self._before or lead
        self._fresh = False
        self._said[self._inside] = True
        return lead + core


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


async def reason(backend: Backend, entry: CallEntry, expr: Gen, sampling: SamplingParams, live: int | None) -> Performed:
    """Perform a gen that thinks. The sample `live` is streamed as it comes."""
    tags = expr.reasoning
    assert tags is not None, "only asked for gens that think"
    segments = segments_of(backend, entry)
    before = "".join(segment.text for segment in segments[-2:]).rstrip()
    opened = tags.opened or before.endswith(tags.start)
    if not _in_two(expr) and not sampling.stop:
        return await _in_one_request(backend, entry, sampling, tags, segments, opened=opened, live=live)
    if sampling.n != 1:
        raise ProgramMistake("A gen that is typed or has stops can't think for several samples; leave n out.")
    if before.endswith(tags.end):  # the template, or the program, says that there is nothing to think about
        return await _answer(backend, entry, expr, sampling, segments)
    opening = () if before.endswith(tags.start) else (Text(f"{tags.start}\n", special=True),)
    return await _in_two_requests(backend, entry, expr, sampling, (*segments, *opening), opening)


async def _in_one_request(
    backend: Backend,
    entry: CallEntry,
    sampling: SamplingParams,
    tags: Reasoning,
    segments: tuple[Segment, ...],
    *,
    opened: bool,
    live: int | None,
) -> Performed:
    splitters = [Splitter(tags, inside=opened) for _ in range(sampling.n)]
    parts: list[tuple[list[str], list[str]]] = [([], []) for _ in splitters]

    def say(index: int, thought: str, answer: str) -> None:
        parts[index][0].append(thought)
        parts[index][1].append(answer)
        if index == live:
            entry.stream(thought, answer)

    def put(delta: Delta) -> None:
        if delta.index == live and tags.keep:
            entry.pieces.put(delta.text)
        say(delta.index, *splitters[delta.index].feed(delta.text))

    answer = await ask(backend, entry, segments, sampling, None, put, messages_of(entry))
    for index, splitter in enumerate(splitters):
        say(index, *splitter.finish())
    raw = [sample.meta() for sample in answer.samples]
    metas = tuple(
        msgspec.structs.replace(meta, text="".join(said), reasoning="".join(thoughts))
        for meta, (thoughts, said) in zip(raw, parts, strict=True)
    )
    kept = tuple(
        ids_of(whole) if tags.keep else _answer_of(sample, meta.text)
        for sample, whole, meta in zip(answer.samples, raw, metas, strict=True)
    )
    return Performed(metas, kept, (answer,))


def _answer_of(sample: Sample, answer: str) -> tuple[Segment, ...]:
    """The answer alone: as the ids that the model made where it begins with a token, else as text."""
    if not answer:
        return ()
    raw, count = sample.text, 0
    before = len(raw) - len(answer) if raw.endswith(answer) else -1
    for delta in sample.deltas:
        if before == 0 and (tokens := sample.tokens[count:]):
            return (Ids(tokens, answer),)
        before, count = before - len(delta.text), count + len(delta.tokens)
    return (Text(answer),)


async def _answer(
    backend: Backend, entry: CallEntry, expr: Gen, sampling: SamplingParams, segments: tuple[Segment, ...]
) -> Performed:
    """What comes after the thinking."""
    if expr.tools is not None:
        return await call_tools(backend, entry, expr, sampling, segments)
    answer = await ask(backend, entry, segments, sampling, expr.constraint, lambda delta: entry.say(delta.text))
    meta = answer.samples[0].meta()
    return Performed((meta,), (ids_of(meta),), (answer,))


async def _in_two_requests(
    backend: Backend,
    entry: CallEntry,
    expr: Gen,
    sampling: SamplingParams,
    segments: tuple[Segment, ...],
    opening: tuple[Text, ...],
) -> Performed:
    tags = expr.reasoning
    assert tags is not None, "only asked for gens that think"
    splitter = Splitter(tags, inside=True)
    thoughts: list[str] = []

    def say(thought: str) -> None:
        thoughts.append(thought)
        entry.stream(thought, "")

    def show(text: str) -> None:
        if tags.keep:
            entry.pieces.put(text)

    def put(delta: Delta) -> None:
        show(delta.text)
        say(splitter.feed(delta.text)[0])

    show("".join(text.text for text in opening))
    free = msgspec.structs.replace(sampling, stop=(tags.end,), stop_token_ids=(), min_tokens=0)
    first = await ask(backend, entry, segments, free, None, put)
    say(splitter.finish()[0])
    thought, sample = "".join(thoughts), first.samples[0].meta()
    left = None if sampling.max_tokens is None else sampling.max_tokens - len(sample.tokens)
    if sample.finish_reason != "stop" or (left is not None and left <= 0):
        why = sample.finish_reason
        cut = "length" if why == "stop" else why
        meta = msgspec.structs.replace(sample, text="", reasoning=thought, finish_reason=cut, stop=None)
        return Performed((meta,), ((*opening, *ids_of(sample)) if tags.keep else (),), (first,))
    closing = Text(f"{tags.end}\n\n", special=True)
    show(closing.text)
    if left is not None:
        sampling = msgspec.structs.replace(sampling, max_tokens=left, min_tokens=min(sampling.min_tokens, left))
    second = await _answer(backend, entry, expr, sampling, (*segments, *ids_of(sample), closing))
    kept = (*opening, *ids_of(sample), closing, *second.kept[0]) if tags.keep else second.kept[0]
    return Performed((msgspec.structs.replace(second.samples[0], reasoning=thought),), (kept,), (first, *second.answers))
