"""From the command line's options to a running server: takes the port, makes the engine process, runs `Server`."""

import asyncio
import contextlib
import multiprocessing
import threading
from collections.abc import Sequence

from rich.console import Console

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.process import EngineProcess, tokenizer_of
from branchpoint.runtime.serving.app import Endpoint
from branchpoint.runtime.serving.gateway import Loaded
from branchpoint.runtime.serving.logs import set_up_logs
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.server import Loading, Server, bind
from branchpoint.runtime.serving.traces import Traces

__all__ = ["launch"]

LEAST_PAGES = 2


def launch(config: EngineConfig, options: ServerOptions, more: Sequence[Endpoint] = ()) -> int:
    """Serve until told to stop, `more` routes too; the process's exit status. Raises BranchpointError where it can't begin."""
    if config.num_pages is not None and config.num_pages < LEAST_PAGES:
        raise InvalidRequest(
            f"num_pages must be at least {LEAST_PAGES}, for a prompt and what follows it, got {config.num_pages}.",
            param="num_pages",
        )
    console = Console(soft_wrap=True, highlight=False, markup=False)
    set_up_logs(options.log_format)
    traces = Traces.to(options.otlp_endpoint, options.model_names[0] if options.model_names else "branchpoint")
    listener = bind(options.host, options.port)

    loaded_or_not = threading.Event()

    def load() -> Loaded:
        loaded_or_not.clear()
        with contextlib.ExitStack() as always, contextlib.ExitStack() as undo:
            always.callback(loaded_or_not.set)
            engine = EngineProcess(config)
            undo.callback(engine.close)
            tokenizer = tokenizer_of(engine.info)
            loaded = Loaded(engine, tokenizer, options.model_names or (engine.info.name,), tokenizer.vocabulary.longest)
            undo.pop_all()
        return loaded

    def end_loading() -> None:
        while not loaded_or_not.wait(0.05):  # the process may be about to start
            for child in multiprocessing.active_children():
                child.kill()  # it ignores SIGTERM

    def give_up() -> None:
        threading.Thread(target=end_loading, name="give-up", daemon=True).start()

    async def run() -> int:
        return await Server(options, Loading(load, give_up), console.print, more).run(listener, traces)

    return asyncio.run(run())
