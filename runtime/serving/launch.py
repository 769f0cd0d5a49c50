"""From the command line's options to a running server: takes the port, makes the engine process, runs `Server`."""

import asyncio
import contextlib
import logging
import multiprocessing

from rich.console import Console

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.process import EngineProcess, tokenizer_of
from branchpoint.runtime.serving.gateway import Loaded
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.server import Loading, Server, bind

__all__ = ["launch"]


def launch(config: EngineConfig, options: ServerOptions) -> int:
    """Serve until told to stop; the process's exit status. Raises BranchpointError where it can't begin."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("branchpoint").setLevel(logging.INFO)
    listener = bind(options.host, options.port)

    def load() -> Loaded:
        with contextlib.ExitStack() as undo:
            engine = EngineProcess(config)
            undo.callback(engine.close)
            tokenizer = tokenizer_of(engine.info)
            loaded = Loaded(engine, tokenizer, options.model_names or (engine.info.name,), tokenizer.vocabulary.longest)
            undo.pop_all()
        return loaded

    def give_up() -> None:
        for child in multiprocessing.active_children():
            child.kill()  # it ignores SIGTERM

    async def run() -> int:
        return await Server(options, Loading(load, give_up), console.print).run(listener)

    return asyncio.run(run())
