"""llama.cpp (through the `xllamacpp` package): its server core with continuous batching and prompt cache."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import xllamacpp
from loop import Work, serve


def complete(server: xllamacpp.Server, prompt: list[int], count: int, slot: int, *, reuse: bool) -> int:
    body = {
        "prompt": prompt,
        "n_predict": count,
        "temperature": 0.0,
        "ignore_eos": True,
        "cache_prompt": reuse,
        "samplers": [],
        "id_slot": slot,
    }
    answer = server.handle_completions(body)
    if isinstance(answer, str):
        answer = json.loads(answer)
    return int(answer["usage"]["completion_tokens"] if "usage" in answer else answer["tokens_predicted"])


def main() -> None:
    parallel = 16
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[2])
    params.n_parallel = parallel
    params.n_ctx = parallel * 2048
    params.kv_unified = True
    params.verbosity = 0
    server = xllamacpp.Server(params)
    pool = ThreadPoolExecutor(parallel)
    free = threading.Semaphore(parallel)

    def run(work: Work) -> int:
        def one(request: Work) -> int:
            with free:
                return complete(server, request["prompt"], request["max_tokens"], -1, reuse=work["reuse"])

        if work["parallel"]:
            return sum(pool.map(one, work["requests"]))
        return sum(map(one, work["requests"]))

    serve(run)


if __name__ == "__main__":
    main()
