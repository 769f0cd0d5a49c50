"""What drafting gives: `python -m benchmarks.drafting`, on SmolLM2 (`pair`: on random models), beside an engine without drafters.

For each case tokens per step and tokens a second, with and without, how many guesses held, and whether the texts are the same
(in float32 they must be; other forms round by the number of rows). Both engines have one model and take each step in turn, so
that what else the machine does befalls both. Where drafts are trees, a third one has the same drafters without branches.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import Figure, Report
from benchmarks.traces.drafted import CASES, Case
from branchpoint.runtime.build import LoadedEngine, build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.drafting.tally import advice
from branchpoint.runtime.machine import usable_cores
from branchpoint.runtime.messages import Call, Completed, Delta, Failed
from branchpoint.runtime.weights.loader import LoadedModel

__all__ = ["main"]


_SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 768,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}


@dataclass(slots=True)
class Side:
    """One of the two engines, and what it has done."""

    loaded: LoadedEngine
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    texts: dict[str, str] = field(default_factory=dict)

    def submit(self, calls: list[Call]) -> None:
        """Let `calls` begin, all at once."""
        for call in calls:
            self.loaded.engine.submit(call)

    def step(self, *, counted: bool) -> bool:
        """One step; whether there was anything to do."""
        engine = self.loaded.engine
        if not engine.has_work:
            return False
        before, began, tokens = engine.stats().steps, time.perf_counter(), 0
        for event in engine.step():
            if isinstance(event, Delta):
                self.texts[event.id] = self.texts.get(event.id, "") + event.text
            elif isinstance(event, Completed):
                tokens += event.usage.completion_tokens
            elif isinstance(event, Failed):
                raise SystemExit(f"A call failed: {event.message}")
        if counted:
            self.seconds += time.perf_counter() - began
            self.steps += engine.stats().steps - before
            self.tokens += tokens
        return True

    def close(self) -> None:
        """End the engine."""
        self.loaded.engine.close()
        self.loaded.close()


def _load(
    options: argparse.Namespace,
    names: dict[str, str],
    drafters: tuple[str, ...],
    model: LoadedModel | None = None,
    branches: int = 1,
) -> Side:
    config = EngineConfig(
        **names,  # type: ignore[arg-type]  # the model, and that which guesses for it
        cpu_weights=options.cpu_weights,
        threads=options.threads,
        num_pages=1024,
        context_length=2048,
        seed=1,
        drafters=drafters,  # type: ignore[arg-type]  # checked by the config itself
        draft_tokens=options.draft_tokens,
        draft_branches=branches,
    )
    return Side(build_engine(config, model))


def _pair(folder: Path, *layers: int) -> dict[str, str]:
    """A random model and one of its first layers, with the same embedding and output: made from one seed, by name."""
    paths = []
    for count in layers:
        path = folder / str(count)
        path.mkdir()
        (path / "config.json").write_text(json.dumps(_SHAPE | {"num_hidden_layers": count}))
        paths.append(f"dummy:{path}")
    return dict(zip(("model", "draft_model"), paths, strict=True))


def measure(name: str, case: Case, options: argparse.Namespace, report: Report) -> None:
    """One case on both engines."""
    drafters, branches = tuple(options.drafters or case.drafters), options.draft_branches or case.branches
    with tempfile.TemporaryDirectory() as folder:
        names = {"model": options.model} if case.layers is None else _pair(Path(folder), *case.layers)
        guesser = names.pop("draft_model", None)
        small = {"draft_model": guesser} if guesser and "model" in drafters else {}
        plain = _load(options, names, ())
        drafted = _load(options, names | small, drafters, plain.loaded.model, branches)
        sides = [plain, drafted]
        if branches > 1:
            sides.append(_load(options, names | small, drafters, plain.loaded.model))
    try:
        for number, calls in enumerate(case.rounds(drafted.loaded.tokenizer)):
            for side in sides:
                side.submit(calls)
            order = sides
            while sum(side.step(counted=number >= case.warm) for side in order):  # all of them step
                order = order[::-1]
        stats = drafted.loaded.engine.stats()
    finally:
        for side in sides:
            side.close()
    with_drafts, without = drafted.tokens / drafted.steps, plain.tokens / plain.steps
    report.add(Figure("drafting", f"{name}/tokens_per_step", "tok/step", with_drafts, "off", without))
    rate, plain_rate = drafted.tokens / drafted.seconds, plain.tokens / plain.seconds
    report.add(Figure("drafting", f"{name}/speed", "tok/s", rate, "off", plain_rate))
    for chain in sides[2:]:
        report.add(Figure("drafting", f"{name}/trees", "tok/step", with_drafts, "chains", chain.tokens / chain.steps))
        report.add(Figure("drafting", f"{name}/trees_speed", "tok/s", rate, "chains", chain.tokens / chain.seconds))
    same = sum(text == plain.texts.get(call) for call, text in drafted.texts.items())
    reached = rate / plain_rate if case.by_time else with_drafts / without
    told = {
        "case": name,
        "drafters": drafters,
        "same_texts": f"{same} of {len(plain.texts)}",
        "drafted": {each.name: f"{each.accepted} of {each.drafted}" for each in stats.drafters},
        "bar": case.bar,
        "reached": round(reached, 3),
    }
    print(json.dumps(told | ({"advice": lines} if (lines := advice(stats.drafters)) else {})), flush=True)


def main() -> None:
    """Parse the options and print every figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafting", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cpu-weights", default="auto")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--drafters", nargs="*", help="instead of each case's own")
    parser.add_argument("--draft-tokens", type=int, default=6)
    parser.add_argument("--draft-branches", type=int, help="instead of each case's own")
    parser.add_argument("--json", action="store_true", help="leave out the table")
    options = parser.parse_args()
    report = Report(json_only=options.json)
    for name in options.cases:
        measure(name, CASES[name], options, report)
    report.close()


if __name__ == "__main__":
    main()
