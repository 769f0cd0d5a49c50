"""Branchpoint's own engine, in-process, behind the same line protocol as the peers."""

import argparse
import threading
import uuid

from loop import Work, serve

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.messages import Call, Completed, Event, Failed
from branchpoint.runtime.process import EngineThread, build_engine
from branchpoint.runtime.sampling import SamplingParams


class Pending:
    """Waits for the terminal event of one call and counts its tokens."""

    def __init__(self) -> None:
        self.tokens = 0
        self.error: str | None = None
        self.done = threading.Event()

    def on_event(self, event: Event) -> None:
        if isinstance(event, Completed):
            self.tokens = event.usage.completion_tokens
            self.done.set()
        elif isinstance(event, Failed):
            self.error = event.message
            self.done.set()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("threads", type=int)
    parser.add_argument("--cpu-weights", default="auto")
    options = parser.parse_args()
    config = EngineConfig(model=options.model, threads=options.threads, cpu_weights=options.cpu_weights)
    client = EngineThread(build_engine(config))

    def start(request: Work) -> Pending:
        pending = Pending()
        sampling = SamplingParams(temperature=0.0, max_tokens=request["max_tokens"], ignore_eos=True)
        client.submit(Call(id=uuid.uuid4().hex, prompt=tuple(request["prompt"]), sampling=sampling), pending.on_event)
        return pending

    def finish(pending: Pending) -> int:
        pending.done.wait()
        if pending.error:
            raise RuntimeError(pending.error)
        return pending.tokens

    def run(work: Work) -> int:
        client.flush_cache().result()
        if work["parallel"]:
            return sum(map(finish, [start(request) for request in work["requests"]]))
        return sum(finish(start(request)) for request in work["requests"])

    serve(run)
    client.close()


if __name__ == "__main__":
    main()
