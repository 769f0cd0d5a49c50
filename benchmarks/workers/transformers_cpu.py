"""transformers' own `generate`, float32, one request at a time: what a user gets without an engine."""

import os
import sys
from pathlib import Path

from loop import Work, serve

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    path = Path(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()

    def run(work: Work) -> int:
        tokens = 0
        for request in work["requests"]:
            ids = torch.tensor([request["prompt"]])
            count = request["max_tokens"]
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False
            )
            tokens += out.shape[1] - ids.shape[1]
        return tokens

    serve(run)


if __name__ == "__main__":
    main()
