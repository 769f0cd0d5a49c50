"""The metrics that are exported: what each means, and what vLLM's and SGLang's dashboards call it. Read by `metrics.py`.

Under `branchpoint:` stands each under vLLM's name for it, or under its own where vLLM knows nothing of the kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from branchpoint.runtime.config import DrafterName
from branchpoint.runtime.drafting.tally import PLACES

__all__ = ["DRAFTERS", "METRICS", "OUTCOMES", "REASONS", "REFUSALS", "Metric", "Outcome"]

Outcome = Literal["done", "failed"]
"""How a program that the server ran came to its end; one whose client went has failed."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

DRAFTERS: tuple[DrafterName, ...] = get_args(DrafterName)

REASONS = ("stop", "length", "abort", "error", "repetition")
REFUSALS = ("invalid_request", "capacity", "unknown_model", "overloaded")

_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_E2E = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)
_TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
_STEP = tuple(float(2**power) for power in (0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
_N = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 128.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity: `key` in the code, its names after `vllm:` and `sglang:` (None: that one has none), and what it tells.

    `own` is its name after `branchpoint:` where vLLM has none (None: it isn't there). `label` is the one label besides those of
    the server, with its `values`, which all exist from the start.
    """

    key: str
    kind: Literal["gauge", "counter", "histogram"]
    vllm: str | None
    sglang: str | None
    about: str
    buckets: tuple[float, ...] = ()
    label: str = ""
    values: tuple[str, ...] = ()
    own: str | None = None

    @property
    def names(self) -> Mapping[str, str]:
        """Its name under each prefix that it is exported with."""
        given = {"branchpoint": self.own or self.vllm, "vllm": self.vllm, "sglang": self.sglang}
        return {prefix: f"{prefix}:{name}" for prefix, name in given.items() if name}


METRICS = (
    Metric("running", "gauge", "num_requests_running", "num_running_reqs", "Sequences in the running batch."),
    Metric("queued", "gauge", "num_requests_waiting", None, "Sequences that wait for pages or for their grammar."),
    Metric(
        "queued_by",
        "gauge",
        "num_requests_waiting_by_reason",
        None,
        "Waiting sequences: for capacity, or deferred until their grammar is compiled.",
        label="reason",
        values=("capacity", "deferred"),
    ),
    Metric("waiting", "gauge", None, "num_queue_reqs", "Sequences that wait for pages."),
    Metric("compiling", "gauge", None, "num_grammar_queue_reqs", "Sequences that wait for their grammar."),
    Metric(
        "kept",
        "gauge",
        None,
        None,
        "Part of the KV pages that hold prefixes which nobody uses now, 0 to 1.",
        own="kv_cache_kept_perc",
    ),
    Metric("usage", "gauge", "kv_cache_usage_perc", "token_usage", "Part of the KV pages that running sequences hold, 0 to 1."),
    Metric("used_tokens", "gauge", None, "num_used_tokens", "Places in the KV pages that running sequences hold, in tokens."),
    Metric("max_tokens", "gauge", None, "max_total_num_tokens", "Size of the KV pool, in tokens."),
    Metric("hit_rate", "gauge", None, "cache_hit_rate", "Part of the prompt tokens since the last look that were cached."),
    Metric("throughput", "gauge", None, "gen_throughput", "Generated tokens a second since the last look."),
    Metric("prompt", "counter", "prompt_tokens", "prompt_tokens", "Prompt tokens, cached ones too."),
    Metric("generated", "counter", "generation_tokens", "generation_tokens", "Generated tokens."),
    Metric("cached", "counter", "prompt_tokens_cached", None, "Prompt tokens whose KV was reused."),
    Metric(
        "cached_in",
        "counter",
        None,
        "cached_tokens",
        "Prompt tokens whose KV was reused, by where it lay.",
        label="cache_source",
        values=("device",),
    ),
    Metric(
        "prompt_by",
        "counter",
        "prompt_tokens_by_source",
        None,
        "Prompt tokens by where their KV came from.",
        label="source",
        values=("local_compute", "local_cache_hit"),
    ),
    Metric("queries", "counter", "prefix_cache_queries", None, "Prompt tokens looked up in the prefix cache."),
    Metric("hits", "counter", "prefix_cache_hits", None, "Prompt tokens found in the prefix cache."),
    Metric("forced", "counter", None, None, "Tokens that a grammar left no choice about.", own="forced_tokens"),
    Metric("drafted", "counter", "spec_decode_num_draft_tokens", None, "Tokens that were guessed ahead."),
    Metric("accepted", "counter", "spec_decode_num_accepted_tokens", None, "Guessed tokens that were right."),
    Metric("drafts", "counter", "spec_decode_num_drafts", None, "Drafts, of one guessed token or more, that were verified."),
    Metric(
        "accepted_at",
        "counter",
        "spec_decode_num_accepted_tokens_per_pos",
        None,
        "Guessed tokens that were right, by their place in the draft; the last place stands for all behind it.",
        label="position",
        values=tuple(map(str, range(PLACES))),
    ),
    Metric(
        "drafted_by",
        "counter",
        None,
        None,
        "Guessed tokens, by who guessed.",
        (),
        "drafter",
        DRAFTERS,
        own="drafter_draft_tokens",
    ),
    Metric(
        "accepted_by",
        "counter",
        None,
        None,
        "Guessed tokens that were right, by who guessed.",
        label="drafter",
        values=DRAFTERS,
        own="drafter_accepted_tokens",
    ),
    Metric(
        "draft_length", "gauge", None, "spec_accept_length", "Tokens that a draft came to since the last look, its bonus too."
    ),
    Metric("draft_rate", "gauge", None, "spec_accept_rate", "Part of the guessed tokens since the last look that were right."),
    Metric("masked", "counter", None, None, "Time for masks of grammars, over all threads.", own="mask_seconds"),
    Metric("grammars", "counter", None, None, "Grammars that were compiled.", own="grammars_compiled"),
    Metric(
        "grammar_hits", "counter", None, "num_grammar_cache_hit", "Grammars that were there already.", own="grammar_cache_hits"
    ),
    Metric("grammar_refused", "counter", None, "num_grammar_aborted", "Grammars that were refused.", own="grammars_refused"),
    Metric(
        "grammar_wait",
        "histogram",
        None,
        "grammar_compilation_time_seconds",
        "Until the grammar of a call was there.",
        _TTFT,
        own="grammar_compilation_time_seconds",
    ),
    Metric("restarts", "counter", None, None, "Engines that were started in place of one that died.", own="engine_restarts"),
    Metric("programs_running", "gauge", None, None, "Programs that run in the server.", own="num_programs_running"),
    Metric("programs", "counter", None, None, "Programs that ended.", label="outcome", values=OUTCOMES, own="programs"),
    Metric(
        "program_time", "histogram", None, None, "From a program's beginning to its end.", _E2E, own="program_latency_seconds"
    ),
    Metric("preempted", "counter", "num_preemptions", "num_retracted_requests", "Sequences put back for want of pages."),
    Metric("finished", "counter", "request_success", None, "Calls ended, by reason.", label="finished_reason", values=REASONS),
    Metric("refused", "counter", "admission_rejections", None, "Calls refused, by reason.", label="reason", values=REFUSALS),
    Metric("corrupted", "counter", "corrupted_requests", None, "Calls that failed since the model's logits weren't finite."),
    Metric("requests", "counter", None, "num_requests", "Calls that came to an end."),
    Metric("aborted", "counter", None, "num_aborted_requests", "Calls that were aborted."),
    Metric("constrained", "counter", None, "num_so_requests", "Calls with a grammar."),
    Metric("ttft", "histogram", "time_to_first_token_seconds", "time_to_first_token_seconds", "Until the first token.", _TTFT),
    Metric("itl", "histogram", "inter_token_latency_seconds", "inter_token_latency_seconds", "Between tokens of a sample.", _ITL),
    Metric("tpot", "histogram", "request_time_per_output_token_seconds", None, "Mean time a token, after the first.", _ITL),
    Metric("e2e", "histogram", "e2e_request_latency_seconds", "e2e_request_latency_seconds", "From arrival to the end.", _E2E),
    Metric("queue", "histogram", "request_queue_time_seconds", "queue_time_seconds", "Until the first batch.", _E2E),
    Metric("prefill", "histogram", "request_prefill_time_seconds", None, "From the first batch to the first token.", _E2E),
    Metric("decode", "histogram", "request_decode_time_seconds", None, "From the first token to the end.", _E2E),
    Metric("inference", "histogram", "request_inference_time_seconds", None, "From the first batch to the end.", _E2E),
    Metric(
        "iteration",
        "histogram",
        "iteration_tokens_total",
        None,
        "Tokens that a step computes, on average over the steps between two looks.",
        _STEP,
    ),
    Metric("prompt_size", "histogram", "request_prompt_tokens", "prompt_tokens_histogram", "Prompt tokens of a call.", _TOKENS),
    Metric("output_size", "histogram", "request_generation_tokens", "generation_tokens_histogram", "Tokens generated.", _TOKENS),
    Metric("n", "histogram", "request_params_n", None, "Samples asked for.", _N),
    Metric("limit", "histogram", "request_params_max_tokens", None, "max_tokens asked for.", _TOKENS),
)
