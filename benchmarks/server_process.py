"""A `branchpoint serve` in a process of its own, for benchmarks that ask one."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["ServerProcess", "serving"]

_READY = re.compile(r"Ready: (\S+) on (http://\S+)")
_START_SECONDS = 180


@dataclass
class ServerProcess:
    url: str
    process: subprocess.Popen[str]

    def children(self) -> list[int]:
        """Its child processes, the engine among them."""
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def memory(self) -> dict[int, int]:
        """Bytes in memory of it and of each of its children, by process id; its own come first."""
        sizes = dict[int, int]()
        for pid in (self.process.pid, *self.children()):
            try:
                with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123  # one read of a kernel file
                    sizes[pid] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except OSError:
                continue
        return sizes


@contextmanager
def serving(model: str, *options: str) -> Iterator[ServerProcess]:
    """A server on a free port, ready to be asked; it is ended when the block is left."""
    command = [sys.executable, "-m", "branchpoint", "serve", model, "--port", "0", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    timer = threading.Timer(_START_SECONDS, process.kill)
    timer.start()
    try:
        found = next((match for line in process.stdout if (match := _READY.search(line))), None)
        timer.cancel()
        if found is None:
            raise RuntimeError(f"`{' '.join(command)}` ended with {process.wait()} before it was ready.")
        drain = threading.Thread(target=process.stdout.read, daemon=True)
        drain.start()
        yield ServerProcess(found[2], process)
    finally:
        timer.cancel()
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
