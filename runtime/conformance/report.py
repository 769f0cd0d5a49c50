"""Runs checks against a server, one after the other, and says what came of each. Called by the command line."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from branchpoint.runtime.conformance.check import Check, Mismatch
from branchpoint.runtime.conformance.server import Server, Skipped

__all__ = ["Outcome", "Result", "run", "summary"]

Outcome = Literal["passed", "failed", "skipped"]
_LONGEST = 500


class Result(msgspec.Struct, frozen=True):
    """What came of a check; `told` is why, where it didn't pass."""

    client: str
    name: str
    holds: str
    outcome: Outcome
    told: str = ""

    @property
    def line(self) -> str:
        """For people."""
        told = f"\n        holds: {self.holds}\n        but: {self.told}" if self.outcome == "failed" else ""
        return f"{self.outcome:8}{self.name}{told or (f' ({self.told})' if self.told else '')}"


def run(server: Server, checks: Iterable[Check], tell: Callable[[Result], None] = lambda _result: None) -> list[Result]:
    """The results of `checks`, in order; `tell` gets each as it comes."""
    results = list[Result]()
    for check in checks:
        outcome, told = _outcome(check, server)
        results.append(Result(check.client, check.name, check.holds, outcome, told))
        tell(results[-1])
    return results


def _outcome(check: Check, server: Server) -> tuple[Outcome, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # clients warn of their own deprecations
            check.run(server)
    except Skipped as reason:
        return "skipped", str(reason)
    except Mismatch as error:
        return "failed", str(error)
    except Exception as error:  # noqa: BLE001  # boundary of a check: a user of the client would see it
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LONGEST]
    return "passed", ""


def summary(results: Iterable[Result]) -> str:
    """How many checks passed, failed, were skipped; by client too."""
    every = list(results)
    counts = Counter(result.outcome for result in every)
    by_client = Counter((result.client, result.outcome) for result in every)
    clients = dict.fromkeys(result.client for result in every)
    shown = ", ".join(f"{client} {by_client[client, 'passed']}" for client in clients)
    total = f"{len(every)} checks: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    return f"{total}. Passed by client: {shown}."
