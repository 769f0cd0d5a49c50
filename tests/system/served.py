"""A real server process, for the tests that need one."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
READY = re.compile(r"Ready: (.+) on (http://\S+)")


class Served:
    """`branchpoint serve …` on a free port; `url` once it is ready."""

    def __init__(self, *options: str, model: str = "smollm2") -> None:
        command = [sys.executable, "-m", "branchpoint", "serve", model, "--port", "0", *options]
        env = os.environ | {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONUNBUFFERED": "1",
        }
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            found = READY.search(line)
            if found:
                self.url = found[2]
                self._ready.set()
        self._ready.set()

    def ready(self) -> "Served":
        assert self._ready.wait(90) and self.url, "".join(self.lines)
        return self

    def until(self, word: str) -> None:
        """Wait for a line with `word`."""
        deadline = time.monotonic() + 60
        while not any(word in line for line in self.lines):
            assert time.monotonic() < deadline and self.process.poll() is None, self.output
            time.sleep(0.02)

    @property
    def children(self) -> list[int]:
        """The process ids of its children, whichever thread started them."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sorted({int(pid) for task in tasks for pid in (task / "children").read_text().split()})

    @property
    def engine_pid(self) -> int:
        """The engine is the child that computes: the one with the most memory."""
        return max(self.children, key=lambda pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 30) -> int:
        """The exit status."""
        status = self.process.wait(seconds)
        self._reader.join(seconds)
        return status

    @property
    def output(self) -> str:
        return "".join(self.lines)


@contextmanager
def served(*options: str, model: str = "smollm2") -> Iterator[Served]:
    server = Served(*options, model=model)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.signal(signal.SIGTERM)
            server.signal(signal.SIGTERM)
            try:
                server.wait()
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.wait()
        assert server.process.stdout is not None
        server.process.stdout.close()
