"""Worker processes of Branchpoint and its peers, and how to talk to them.

A peer lives in a virtual environment of its own, `PEERS/NAME` (option `--peers`, by default `peers` beside the checkout).
"""

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["DEFAULT_PEERS", "Done", "Worker", "peer_python"]

ROOT = Path(__file__).parents[1]
DEFAULT_PEERS = ROOT.parent / "peers"


@dataclass(frozen=True, slots=True)
class Done:
    """What one piece of work took."""

    seconds: float
    tokens: int


def peer_python(peers: Path, name: str) -> str | None:
    """The interpreter of a peer's environment; None where it isn't installed."""
    path = peers / name / "bin" / "python"
    return str(path) if path.exists() else None


class Worker:
    """One running worker process."""

    def __init__(self, script: str, *arguments: str, python: str = sys.executable) -> None:
        path = ROOT / "benchmarks" / "workers" / f"{script}.py"
        self._command = [python, str(path), *arguments]
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        status, command = self._process.wait(), shlex.join(self._command)
        raise RuntimeError(f"worker ended with status {status}; to see why, run by hand: {command}")

    def run(self, work: dict[str, Any]) -> Done:
        """Do one piece of work and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return Done(answer["seconds"], answer["tokens"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
