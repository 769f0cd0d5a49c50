"""The engine process: loads the model, says whether that went well, and serves until it is told to stop or its parent is gone.

Started by `EngineProcess`; its standard error is the parent's.
"""

import gc
import multiprocessing
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Callable

import zmq

from branchpoint.runtime.build import LoadedEngine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.ipc import Address, Died, Outbound, ProcessInbox, Progress, Ready, Sender, load_failure
from branchpoint.runtime.loop import Report, run_engine
from branchpoint.runtime.progress import told_to

__all__ = ["ENDING", "Build", "serve_engine"]

Build = Callable[[EngineConfig], LoadedEngine]

ENDING = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a server to end. The engine process leaves them to its parent."""


def serve_engine(config: EngineConfig, build: Build, address: Address) -> None:
    """Body of the process. Exit status 0 after a `Shutdown`, 1 where loading failed, the loop raised or the parent died."""
    for number in ENDING:  # Ctrl-C and service managers reach the whole group: the parent drains, then tells us
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)  # blocked since before this process began
    threading.Thread(target=_end_with_parent, args=(address,), name="parent-watch", daemon=True).start()
    context = zmq.Context[zmq.Socket[bytes]]()
    inbox, sender = ProcessInbox(context, address), Sender(context, address.reports)
    try:
        status = _serve(config, build, inbox, sender)
    finally:
        inbox.close()
        sender.close()
        context.term()
    if status:
        raise SystemExit(status)


def _serve(config: EngineConfig, build: Build, inbox: ProcessInbox, sender: Sender) -> int:
    try:
        with told_to(lambda what: sender.send([Progress(what)])):
            loaded = build(config)
    except Exception as error:  # noqa: BLE001  # the boundary of the process: the parent raises it
        failure = load_failure(error)
        if failure.kind == "internal":
            traceback.print_exc()
        sender.send([failure])
        return 1
    if loaded.compiler is not None:
        loaded.compiler.warm()
    gc.freeze()  # what was loaded stays: looking through all of it again and again would hold up steps by tenths of a second
    sender.send([Ready(loaded.info)])

    def deliver(reports: list[Report]) -> None:
        sender.send(reports)

    try:
        run_engine(loaded.engine, inbox, deliver)
    except Exception as error:  # noqa: BLE001  # the boundary of the process: open calls learn of it from the parent
        traceback.print_exc()
        died: list[Outbound] = [Died(f"{type(error).__name__}: {str(error)[:500]}")]
        sender.send(died)
        return 1
    finally:
        loaded.close()
    return 0


def _end_with_parent(address: Address) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(address.folder, ignore_errors=True)
        os._exit(1)
