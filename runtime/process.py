"""Hosts of an engine: `EngineThread` in this process, `EngineProcess` in one of its own. To callers they are the same.

The language's engine backend uses the first, the server the second.
"""

import atexit
import logging
import multiprocessing
import shutil
import signal
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Literal, Self, TypeVar

import msgspec
import zmq

from branchpoint.runtime.build import LoadedEngine, build_engine, tokenizer_of
from branchpoint.runtime.child import ENDING, Build, serve_engine
from branchpoint.runtime.client import EngineClient, OnEvent, OpenCalls
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import EngineDead, InvalidRequest, ModelError
from branchpoint.runtime.ipc import Address, Died, LoadFailed, Outbound, Progress, Ready, Receiver, Sender, load_error
from branchpoint.runtime.loop import Answer, Ask, Command, LoadAdapter, QueueInbox, Report, Shutdown, UnloadAdapter, run_engine
from branchpoint.runtime.messages import Abort, Call, Failed, ModelInfo, ProgramEnded, ScoreCall
from branchpoint.runtime.progress import PROGRESS
from branchpoint.runtime.stats import CacheDump, EngineStats

__all__ = ["EngineClient", "EngineProcess", "EngineThread", "LoadedEngine", "build_engine", "tokenizer_of"]

T = TypeVar("T")

_CLOSE_SECONDS = 10.0
_GRACE_MS = 200  # for what an ended process has written and zmq has not read yet
_LONGEST_FOLDER = 80  # a Unix socket's path holds some hundred bytes, our file's name included


class _Host(ABC):
    """What both hosts do alike: an EngineClient. They say how a command is sent, and how the engine is ended."""

    info: ModelInfo

    def __init__(self) -> None:
        self._calls = OpenCalls(self.abort)
        self._close_lock = threading.Lock()
        self._closed = False

    def submit(self, call: Call | ScoreCall, on_event: OnEvent) -> None:
        """See `EngineClient`."""
        if not self._calls.open(call, on_event):
            return
        try:
            self._send(call)
        except (OverflowError, TypeError, ValueError) as error:  # what messages can't hold: huge integers, lone surrogates
            told = f"The call can't be sent to the engine: {error}."
            self._calls.dispatch([Failed(call.id, InvalidRequest.kind, told)])

    def abort(self, call_id: str) -> None:
        """See `EngineClient`."""
        self._send(Abort(call_id))

    def end_program(self, program: str, namespace: str = "") -> None:
        """See `EngineClient`."""
        self._send(ProgramEnded(program, namespace))

    def stats(self) -> "Future[EngineStats]":
        """See `EngineClient`."""
        return self._ask("stats", _stats_of)

    def flush_cache(self) -> "Future[int]":
        """See `EngineClient`."""
        return self._ask("flush_cache", lambda answer: answer.pages)

    def dump_cache(self) -> "Future[CacheDump]":
        """See `EngineClient`."""
        return self._ask("cache", _cache_of)

    def load_adapter(self, name: str, folder: str, *, replace: bool = False, within: tuple[str, ...] = ()) -> "Future[None]":
        """See `EngineClient`."""
        return self._asked(lambda number: LoadAdapter(number, name, folder, replace, within), lambda _: None)

    def unload_adapter(self, name: str) -> "Future[None]":
        """See `EngineClient`."""
        return self._asked(lambda number: UnloadAdapter(number, name), lambda _: None)

    @property
    def dead(self) -> EngineDead | None:
        """See `EngineClient`."""
        return self._calls.dead

    def on_death(self, callback: Callable[[EngineDead], None]) -> None:
        """See `EngineClient`."""
        self._calls.watch(callback)

    def close(self) -> None:
        """See `EngineClient`."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            atexit.unregister(self.close)
            self._end()
        self._calls.end(EngineDead("The engine was closed; nothing more can be asked of it."), by_itself=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _ask(self, what: Literal["stats", "flush_cache", "cache"], convert: Callable[[Answer], T]) -> "Future[T]":
        return self._asked(lambda number: Ask(number, what), convert)

    def _asked(self, command: Callable[[int], Command], convert: Callable[[Answer], T]) -> "Future[T]":
        number, answer = self._calls.ask()
        asked: Future[T] = Future()
        answer.add_done_callback(lambda done: _pass_on(done, asked, convert))
        self._send(command(number))
        return asked

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hand a command to the engine; never blocks, and does nothing where it is gone."""

    @abstractmethod
    def _end(self) -> None:
        """Ask the engine to end and wait until it has."""


class EngineThread(_Host):
    """Runs an engine in a thread of its own. Events are handed out on that thread."""

    def __init__(self, loaded: LoadedEngine) -> None:
        super().__init__()
        self.info = loaded.info
        self.tokenizer = loaded.tokenizer
        self._loaded = loaded
        self._inbox = QueueInbox()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _run(self) -> None:
        try:
            run_engine(self._loaded.engine, self._inbox, self._calls.dispatch)
        except Exception as error:  # the boundary of the thread: what is open learns of it
            logging.getLogger(__name__).exception("The engine's loop failed.")
            self._calls.end(EngineDead(f"The engine failed: {type(error).__name__}: {str(error)[:500]}"), by_itself=True)
        finally:
            self._loaded.close()

    def _send(self, command: Command) -> None:
        self._inbox.put(command)

    def _end(self) -> None:
        self._send(Shutdown())
        if threading.current_thread() is not self._thread:
            self._thread.join()


class EngineProcess(_Host):
    """Loads and runs an engine in a process of its own. Events are handed out on a thread that reads them.

    Returns once the model is loaded; raises what loading raised (ModelError, CapacityError, InvalidRequest). `build` makes the
    engine there; it must be importable by name.
    """

    def __init__(self, config: EngineConfig, build: Build = build_engine) -> None:
        super().__init__()
        self._reader: threading.Thread | None = None
        self._address = Address(_private_folder())
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self._receiver = Receiver(self._context, self._address.reports, msgspec.msgpack.Decoder(list[Outbound]))
        self._sender = Sender(self._context, self._address.commands)
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=serve_engine, args=(config, build, self._address), name="engine")
        atexit.register(self.close)
        try:
            self._start()
            self.info = self._loading()
        except BaseException:  # an interrupt, too, must not leave a process behind
            self._closed = True
            atexit.unregister(self.close)
            self._release()
            raise
        self._reader = threading.Thread(target=self._read, name="engine-reports", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The engine process's id."""
        return self._process.pid or 0

    def _start(self) -> None:
        """Start the process with the signals blocked that it will ignore: one that comes before it says so must not end it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _loading(self) -> ModelInfo:
        while messages := self._next():
            for message in messages:
                if isinstance(message, Ready):
                    return message.info
                if isinstance(message, LoadFailed):
                    raise load_error(message)
                if isinstance(message, Progress):
                    PROGRESS.info(message.what)
        raise ModelError(f"The engine process ended while it loaded the model, {self._status()}.")

    def _next(self) -> list[Outbound]:
        """What has arrived, once something has; empty where the process has ended and everything was read."""
        poller = zmq.Poller()
        poller.register(self._receiver.socket, zmq.POLLIN)
        poller.register(self._process.sentinel, zmq.POLLIN)
        poller.poll()
        messages = self._receiver.receive(wait=False)
        if not messages and self._receiver.socket.poll(_GRACE_MS):
            messages = self._receiver.receive(wait=False)
        return messages

    def _read(self) -> None:
        reason = ""
        while messages := self._next():
            reports: list[Report] = []
            for message in messages:
                if isinstance(message, Died):
                    reason = message.message
                elif not isinstance(message, Ready | LoadFailed | Progress):
                    reports.append(message)
            self._calls.dispatch(reports)
        if not self._closed:
            self._calls.end(EngineDead(f"The engine process ended: {reason or self._status()}."), by_itself=True)

    def _status(self) -> str:
        self._process.join()
        code = self._process.exitcode or 0
        return f"killed by signal {-code}" if code < 0 else f"with exit status {code}"

    def _send(self, command: Command) -> None:
        self._sender.send([command])

    def _end(self) -> None:
        self._send(Shutdown())
        if threading.current_thread() is self._reader:  # it must read on, or the process could not end
            threading.Thread(target=self._release, name="engine-release").start()
        else:
            self._release()

    def _release(self) -> None:
        """See that the process has ended, then give back sockets and folder."""
        if self._reader is not None:
            self._process.join(_CLOSE_SECONDS)
        if self._process.pid is not None and self._process.is_alive():
            self._process.kill()  # it ignores SIGTERM
            self._process.join()
        if self._reader is not None:
            self._reader.join()
        self._sender.close(drop=True)
        self._receiver.close()
        self._context.term()
        shutil.rmtree(self._address.folder, ignore_errors=True)


def _pass_on(answer: "Future[Answer]", asked: "Future[T]", convert: Callable[[Answer], T]) -> None:
    if not asked.set_running_or_notify_cancel():
        return
    error = answer.exception()
    if error is not None:
        asked.set_exception(error)
    else:
        asked.set_result(convert(answer.result()))


def _stats_of(answer: Answer) -> EngineStats:
    assert answer.stats is not None, "an answer to `stats` holds them"
    return answer.stats


def _cache_of(answer: Answer) -> CacheDump:
    assert answer.cache is not None, "an answer to `cache` holds it"
    return answer.cache


def _private_folder() -> str:
    folder = tempfile.mkdtemp(prefix="branchpoint-")
    if len(folder) > _LONGEST_FOLDER:
        shutil.rmtree(folder)
        folder = tempfile.mkdtemp(prefix="branchpoint-", dir="/tmp")
    return folder
