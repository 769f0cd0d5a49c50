"""What holds a server back, read from a few looks at its /metrics: findings with their evidence and what to change.

Asked by `branchpoint doctor`. Knows Branchpoint's own series only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from branchpoint.runtime.messages import DrafterStats

__all__ = ["Finding", "Look", "diagnose", "drafting", "read_look"]

Look = Mapping[str, float]
"""The series of /metrics by name, summed over their labels; those with a label of `_LABELS` also as `name/value`."""

_PREFIX = "branchpoint:"
_LABELS = ("reason", "drafter", "position")

QUEUE_SHARE = 0.2
FULL, IDLE = 0.9, 0.3
LEAST_DRAFTS, LEAST_ACCEPTED = 50, 0.3
_GUESSED, _HELD, _HELD_AT = (
    "drafter_draft_tokens_total",
    "drafter_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
)
LONG_COMPILE = 0.25
BUSY = 0.85


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, the figures that say so, and what to change."""

    what: str
    evidence: str
    change: str


def read_look(text: str, model: str = "") -> Look:
    """What /metrics said, of `model` alone where it is named. What is no series is left out: something else may answer there."""
    look = dict[str, float]()
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        head, _, told = line.rpartition(" ")
        try:
            value = float(told)
        except ValueError:
            continue
        name, _, labels = head.partition("{")
        if model and 'model_name="' in labels and f'model_name="{model}"' not in labels:
            continue
        name = name.removeprefix(_PREFIX)
        look[name] = look.get(name, 0.0) + value
        for label in _LABELS:
            _, found, rest = labels.partition(f'{label}="')
            if found:
                look[f"{name}/{rest.partition(chr(34))[0]}"] = value
    return look


class _Time:
    """What happened between the first look and the last."""

    def __init__(self, looks: Sequence[Look], seconds: float) -> None:
        self._looks = looks
        self.seconds = seconds

    def gained(self, name: str) -> float:
        return self._looks[-1].get(name, 0.0) - self._looks[0].get(name, 0.0)

    def mean(self, gauge: str) -> float:
        return sum(look.get(gauge, 0.0) for look in self._looks) / len(self._looks)

    def most(self, gauge: str) -> float:
        return max(look.get(gauge, 0.0) for look in self._looks)

    def labels(self, name: str) -> list[str]:
        """The values of the label that the series of this name have."""
        return [key.partition("/")[2] for key in self._looks[-1] if key.startswith(f"{name}/")]

    def average(self, histogram: str) -> float:
        count = self.gained(f"{histogram}_count")
        return self.gained(f"{histogram}_sum") / count if count else 0.0


def diagnose(looks: Sequence[Look], seconds: float, lost: Sequence[str] = ()) -> list[Finding]:
    """What to change, the gravest first; empty where nothing stands out. At least two looks, `seconds` from first to last.

    `lost` are findings of /cache: prompts that could share more.
    """
    time = _Time(looks, seconds)
    found = [check(time) for check in _CHECKS]
    shared = [Finding("Prompts share less of the cache than they could.", text, "See `branchpoint cache`.") for text in lost]
    return [finding for finding in found if finding is not None] + shared


def _broken(time: _Time) -> Finding | None:
    count = time.gained("corrupted_requests_total")
    if not count:
        return None
    return Finding(
        "The model's logits weren't finite.",
        f"{count:.0f} calls failed for it.",
        "Check the weights; float16 overflows where bfloat16 doesn't (--dtype).",
    )


def _preempted(time: _Time) -> Finding | None:
    count = time.gained("num_preemptions_total")
    if not count:
        return None
    return Finding(
        "Running sequences are put back for want of pages, and computed again.",
        f"{count:.0f} preemptions in {time.seconds:.0f} s; up to {time.most('kv_cache_usage_perc'):.0%} of the pages held.",
        "Give the pool more (--kv-memory-gib, --gpu-memory-utilization, --kv-cache-dtype fp8), or admit less (--max-sequences).",
    )


def _queued(time: _Time) -> Finding | None:
    waiting, share = time.mean("num_requests_waiting_by_reason/capacity"), _share(time, "request_queue_time_seconds")
    if waiting < 1 and share < QUEUE_SHARE:
        return None
    evidence = (
        f"{waiting:.1f} sequences wait on average, {time.mean('num_requests_running'):.1f} run; {share:.0%} of a call's time."
    )
    if time.most("kv_cache_usage_perc") >= FULL:
        return Finding(
            "Calls wait for pages.",
            f"{evidence} Up to {time.most('kv_cache_usage_perc'):.0%} of the pages are held.",
            "Give the pool more (--kv-memory-gib, --gpu-memory-utilization), or bound outputs (max_tokens).",
        )
    return Finding(
        "Calls wait though there are pages.",
        f"{evidence} At most {time.most('kv_cache_usage_perc'):.0%} of the pages are held.",
        "Raise --max-sequences, and --max-batch-tokens where prompts are long; else the device is at its limit: add a server.",
    )


def _compiling(time: _Time) -> Finding | None:
    mean, waiting = time.average("grammar_compilation_time_seconds"), time.mean("num_requests_waiting_by_reason/deferred")
    if mean < LONG_COMPILE and waiting < 1:
        return None
    return Finding(
        "Calls wait for their grammars.",
        f"{mean:.2f} s on average; {time.gained('grammars_compiled_total'):.0f} compiled, "
        f"{time.gained('grammar_cache_hits_total'):.0f} were there already; {waiting:.1f} calls wait.",
        "Send the same schema text each time, so that it is compiled once; raise --grammar-workers; simplify the schemas.",
    )


def _drafts(time: _Time) -> Finding | None:
    guessed, right = time.gained("spec_decode_num_draft_tokens_total"), time.gained("spec_decode_num_accepted_tokens_total")
    if guessed < LEAST_DRAFTS or right / guessed >= LEAST_ACCEPTED:
        return None
    return Finding(
        "Drafts don't pay.",
        f"{right:.0f} of {guessed:.0f} guessed tokens were right ({right / guessed:.0%}).",
        f"Leave out {_poor(time) or '--drafter'}, or choose another; keep --draft-adaptive on.",
    )


def _poor(time: _Time) -> str:
    """The options to leave out, by drafter."""
    return " and ".join(f"--drafter {each.name}" for each in _drafters(time) if each.accepted < LEAST_ACCEPTED * each.drafted)


def _drafters(time: _Time) -> list[DrafterStats]:
    """The drafters that guessed meanwhile, the busiest first."""
    counts = {name: time.gained(f"{_GUESSED}/{name}") for name in time.labels(_GUESSED)}
    names = sorted((name for name, count in counts.items() if count), key=lambda name: -counts[name])
    return [DrafterStats(name, 0, int(counts[name]), int(time.gained(f"{_HELD}/{name}"))) for name in names]


def drafting(looks: Sequence[Look], seconds: float) -> list[str]:
    """What guessing tokens ahead came to, in lines: in all, by position, and by drafter; none where nothing was guessed."""
    time = _Time(looks, seconds)
    drafters = _drafters(time)
    drafts, made = time.gained("spec_decode_num_drafts_total"), time.gained("generation_tokens_total")
    if not drafters or not drafts:
        return []
    held = sum(each.accepted for each in drafters)
    drawn = made - time.gained("spec_decode_num_accepted_tokens_total") - time.gained("forced_tokens_total")
    at = [time.gained(f"{_HELD_AT}/{place}") / drafts for place in range(len(time.labels(_HELD_AT)))]
    shown = " ".join(f"{share:.0%}" for share in at if share >= 0.005)
    return [
        f"Drafting: {made / max(1.0, drawn):.2f} output tokens for each step of a sequence. Of {drafts:.0f} drafts the guess at "
        f"each position held, and all before it: {shown or 'none'}. {1 + held / drafts:.2f} tokens came of a draft.",
        *(f"  {each}" for each in drafters),
    ]


def _reuse(time: _Time) -> Finding | None:
    asked, hit = time.gained("prefix_cache_queries_total"), time.gained("prefix_cache_hits_total")
    prefill = _share(time, "request_prefill_time_seconds")
    if not asked or hit / asked >= IDLE or prefill < 2 * QUEUE_SHARE:
        return None
    return Finding(
        "Most of a call's time goes into prompts, and little of them is found in the cache.",
        f"{prefill:.0%} of a call's time; {hit / asked:.0%} of {asked:.0f} prompt tokens were cached.",
        "Put what changes (dates, ids, the question) behind what doesn't; `branchpoint cache` shows where prompts differ early.",
    )


def _refused(time: _Time) -> Finding | None:
    count = time.gained("admission_rejections_total/overloaded")
    if not count:
        return None
    return Finding(
        "Calls are refused for want of room.",
        f"{count:.0f} in {time.seconds:.0f} s.",
        "Add a server, or let more wait (--max-queued, --max-queued-tokens, --queue-seconds).",
    )


def _http(time: _Time) -> Finding | None:
    busy = time.gained("process_cpu_seconds_total") / time.seconds
    if busy < BUSY:
        return None
    return Finding(
        "The HTTP process is at its limit.",
        f"It is busy {busy:.0%} of the time.",
        "Add a server behind a load balancer; send fewer, larger chunks of work (lists of prompts, /v1/programs).",
    )


def _unused(time: _Time) -> Finding | None:
    held, kept = time.most("kv_cache_usage_perc"), time.most("kv_cache_kept_perc")
    if held + kept >= IDLE or time.mean("num_requests_waiting") >= 1 or not time.gained("request_success_total"):
        return None
    return Finding(
        "Memory is left unused.",
        f"At most {held:.0%} of the pages were held and {kept:.0%} kept prefixes.",
        "Take a longer context or a larger model, or give the memory back (--num-pages, --kv-memory-gib).",
    )


def _share(time: _Time, part: str) -> float:
    """What part of the calls' time this phase had."""
    whole = time.gained("e2e_request_latency_seconds_sum")
    return time.gained(f"{part}_sum") / whole if whole > 0 else 0.0


_CHECKS: tuple[Callable[[_Time], Finding | None], ...] = (
    _broken,
    _preempted,
    _queued,
    _refused,
    _http,
    _compiling,
    _drafts,
    _reuse,
    _unused,
)
