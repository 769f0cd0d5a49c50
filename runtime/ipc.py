"""What travels between an API process and its engine process, and the sockets it travels on: msgpack over zmq, in order.

Used by `process.py` on both sides. Each side binds what it reads and connects what it writes, so that sending never blocks.
"""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import zmq

from branchpoint.runtime.errors import CapacityError, InvalidRequest, ModelError, RuntimeFailure, error_from
from branchpoint.runtime.loop import Command, Report
from branchpoint.runtime.messages import ModelInfo

__all__ = [
    "Address",
    "Died",
    "LoadFailed",
    "Outbound",
    "ProcessInbox",
    "Progress",
    "Ready",
    "Receiver",
    "Sender",
    "load_error",
    "load_failure",
]

MODEL = "model"
LINGER_MS = 2000
NAP = 1e-4  # seconds
T = TypeVar("T")


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """What loading is at. See `progress`."""

    what: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded; calls may come."""

    info: ModelInfo


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """The model can't be loaded; `kind` is `model` or one of `runtime.errors`' kinds."""

    kind: str
    message: str
    param: str | None = None


class Died(msgspec.Struct, frozen=True, tag="died"):
    """The engine's loop raised; the process ends."""

    message: str


Outbound = Report | Progress | Ready | LoadFailed | Died


@dataclass(frozen=True, slots=True)
class Address:
    """The two sockets of a pair of processes, as files in a private folder."""

    folder: str

    @property
    def commands(self) -> str:
        """Read by the engine process."""
        return f"ipc://{Path(self.folder, 'commands')}"

    @property
    def reports(self) -> str:
        """Read by the API process."""
        return f"ipc://{Path(self.folder, 'reports')}"


class Sender:
    """Writes batches of messages; from any thread, never blocking."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()

    def send(self, batch: list[T]) -> None:
        """Queue a batch; dropped where the sender is closed."""
        with self._lock:
            if not self._socket.closed:
                self._socket.send(self._encoder.encode(batch), zmq.NOBLOCK)

    def close(self, *, drop: bool = False) -> None:
        """Send what is queued, for at most two seconds; with `drop`, nothing of it."""
        with self._lock:
            self._socket.close(0 if drop else LINGER_MS)


class Receiver(Generic[T]):
    """Reads batches of messages of one type; from one thread."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, decoder: "msgspec.msgpack.Decoder[list[T]]"
    ) -> None:
        self.socket = context.socket(zmq.PULL)
        self.socket.set(zmq.RCVHWM, 0)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(address)
        self._decoder = decoder

    def receive(self, *, wait: bool) -> list[T]:
        """The messages that are there; with `wait`, at least one batch."""
        messages: list[T] = []
        flags = 0 if wait else zmq.NOBLOCK
        while True:
            try:
                messages += self._decoder.decode(self.socket.recv(flags))
            except zmq.Again:
                return messages
            flags = zmq.NOBLOCK

    def close(self) -> None:
        """Drop what was not read."""
        self.socket.close()


class ProcessInbox:
    """Commands from the API process."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: Address) -> None:
        self._receiver = Receiver(context, address.commands, msgspec.msgpack.Decoder(list[Command]))

    def take(self, *, wait: float | None) -> list[Command]:
        """See `loop.Inbox`. zmq waits in whole milliseconds: less than one is slept, a little at a time."""
        if wait and wait >= 1e-3:
            self._receiver.socket.poll(int(wait * 1e3))
        elif wait:
            time.sleep(min(wait, NAP))
        return self._receiver.receive(wait=wait is None)

    def close(self) -> None:
        """Close the socket."""
        self._receiver.close()


def load_failure(error: Exception) -> LoadFailed:
    """An error of loading, as it travels."""
    if isinstance(error, InvalidRequest | RuntimeFailure):
        return LoadFailed(error.kind, str(error), error.param)
    if isinstance(error, ModelError):
        return LoadFailed(MODEL, str(error))
    return LoadFailed(RuntimeFailure.kind, f"Loading the model failed: {type(error).__name__}: {str(error)[:2000]}")


def load_error(failed: LoadFailed) -> ModelError | InvalidRequest | CapacityError | RuntimeFailure:
    """The error that arrived, as it was raised."""
    if failed.kind == MODEL:
        return ModelError(failed.message)
    return error_from(failed.kind, failed.message, failed.param)
