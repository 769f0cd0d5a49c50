"""Metrics count what happened, under both sets of names, and exist before anything has."""

import re

from prometheus_client.parser import text_string_to_metric_families

from branchpoint.constrained.spec import Regex
from branchpoint.runtime.drafting.tally import DrafterStats
from branchpoint.runtime.messages import (
    Call,
    Completed,
    Delta,
    Event,
    Failed,
    ModelInfo,
    SampleFinished,
    ScoreCall,
    Scored,
    Usage,
)
from branchpoint.runtime.metric_names import METRICS
from branchpoint.runtime.metrics import Metrics
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.stats import AdapterUse, EngineStats, GrammarCounts

INFO = ModelInfo("tiny", "", "llama", 100, 64, 10, 16, (0,))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample by name, with what its labels add to the server's own."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            own = [
                value
                for name, value in sample.labels.items()
                if name in ("reason", "finished_reason", "source", "cache_source", "outcome", "le", "position", "drafter")
            ]
            found["|".join([sample.name, *own])] = sample.value
    return found


def stats(**changes: object) -> EngineStats:
    fields = dict.fromkeys(EngineStats.__struct_fields__[:-3], 0) | {"pages_free": 10, "totals": Usage()} | changes
    return EngineStats(**fields)  # type: ignore[arg-type]


def test_every_series_exists_at_zero_before_the_first_request() -> None:
    found = values(Metrics(INFO))
    for metric in METRICS:
        ending = {"gauge": "", "counter": "_total", "histogram": "_count"}[metric.kind]
        assert metric.vllm is None or metric.names["branchpoint"] == f"branchpoint:{metric.vllm}"
        for name in metric.names.values():
            for value in metric.values or ("",):
                if metric.key != "max_tokens":
                    assert found["|".join(filter(None, [name + ending, value]))] == 0.0, name
    assert found["sglang:max_total_num_tokens"] == 160
    assert found["vllm:cache_config_info"] == 1


def test_series_carry_the_labels_that_dashboards_select_by() -> None:
    text = Metrics(INFO).render().decode()
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in text
    assert re.search(r'sglang:num_running_reqs\{engine_type="unified",.*model_name="tiny"', text)


def test_stats_move_gauges_and_add_to_counters() -> None:
    clock = Clock()
    metrics = Metrics(INFO, clock=clock)
    clock.now += 2
    metrics.update(stats(running=3, waiting=2, compiling=1, pages_free=2, pages_cached=4, pages_held=4))
    clock.now += 2
    usage = Usage(prompt_tokens=100, cached_tokens=25, completion_tokens=50, preemptions=2)
    metrics.update(stats(running=1, pages_held=5, pages_free=5, totals=usage))
    found = values(metrics)
    assert found["vllm:num_requests_running"] == found["sglang:num_running_reqs"] == 1
    assert found["vllm:kv_cache_usage_perc"] == found["sglang:token_usage"] == 0.5
    assert found["vllm:prompt_tokens_total"] == found["sglang:prompt_tokens_total"] == 100
    assert found["vllm:prefix_cache_hits_total"] == found["sglang:cached_tokens_total|device"] == 25
    assert found["vllm:prompt_tokens_by_source_total|local_compute"] == 75
    assert found["vllm:num_preemptions_total"] == 2
    assert found["sglang:gen_throughput"] == 25
    assert found["sglang:cache_hit_rate"] == 0.25
    metrics.update(stats(totals=usage))
    assert values(metrics)["vllm:generation_tokens_total"] == 50


def test_drafts_are_counted_by_drafter_and_place() -> None:
    metrics = Metrics(INFO)
    ngram, suffix = DrafterStats("ngram", 2, 5, 3, ((2, 2), (2, 1), (1, 0))), DrafterStats("suffix")
    metrics.update(stats(drafters=(ngram, suffix)))
    metrics.update(stats(drafters=(DrafterStats("ngram", 3, 9, 5, ((3, 3), (3, 2), (2, 0), (1, 0))), suffix)))
    found = values(metrics)
    assert found["vllm:spec_decode_num_drafts_total"] == found["branchpoint:spec_decode_num_drafts_total"] == 3
    assert [found[f"vllm:spec_decode_num_accepted_tokens_per_pos_total|{place}"] for place in range(3)] == [3, 2, 0]
    assert found["branchpoint:drafter_draft_tokens_total|ngram"] == 9
    assert found["branchpoint:drafter_accepted_tokens_total|ngram"] == 5
    assert found["branchpoint:drafter_draft_tokens_total|suffix"] == 0
    assert (found["sglang:spec_accept_length"], found["sglang:spec_accept_rate"]) == (3, 0.5)


def test_grammars_forced_text_and_drafts_are_counted() -> None:
    metrics = Metrics(INFO)
    usage = Usage(completion_tokens=20, forced_tokens=5, drafted_tokens=8, accepted_tokens=6, mask_seconds=0.5)
    metrics.update(stats(pages_cached=4, pages_free=6, totals=usage, grammars=GrammarCounts(hits=3, compiled=2, refused=1)))
    found = values(metrics)
    assert found["branchpoint:forced_tokens_total"] == 5 and found["branchpoint:mask_seconds_total"] == 0.5
    for prefix in ("vllm", "branchpoint"):
        assert found[f"{prefix}:spec_decode_num_draft_tokens_total"] == 8
        assert found[f"{prefix}:spec_decode_num_accepted_tokens_total"] == 6
    assert found["branchpoint:grammars_compiled_total"] == 2 and found["branchpoint:grammars_refused_total"] == 1
    assert found["branchpoint:grammar_cache_hits_total"] == found["sglang:num_grammar_cache_hit_total"] == 3
    assert found["branchpoint:kv_cache_kept_perc"] == 0.4


def test_programs_are_counted_while_they_run_and_by_how_they_end() -> None:
    clock = Clock()
    metrics = Metrics(INFO, clock=clock)
    first, second = metrics.program(), metrics.program()
    assert values(metrics)["branchpoint:num_programs_running"] == 2
    clock.now += 3
    first("done")
    second("failed")
    found = values(metrics)
    assert found["branchpoint:num_programs_running"] == 0
    assert found["branchpoint:programs_total|done"] == found["branchpoint:programs_total|failed"] == 1
    assert found["branchpoint:program_latency_seconds_sum"] == 6


def test_a_call_is_timed_from_its_arrival_to_its_end() -> None:
    clock = Clock()
    metrics = Metrics(INFO, clock=clock)
    passed: list[Event] = []
    sampling = SamplingParams(max_tokens=20, n=2)
    on_event = metrics.watch(Call("a", (1,), sampling, Regex("a+")), passed.append)
    usage = Usage(prompt_tokens=7, completion_tokens=6, queue_seconds=0.25, grammar_seconds=0.125)
    events: list[tuple[float, Event]] = [
        (0.5, Delta("a", 0, "x", (1,))),
        (0.1, Delta("a", 1, "y", (2,))),
        (0.2, Delta("a", 0, "z", (3,))),
        (0.0, SampleFinished("a", 0, "stop")),
        (0.0, SampleFinished("a", 1, "length")),
        (0.2, Completed("a", usage)),
    ]
    for seconds, event in events:
        clock.now += seconds
        on_event(event)
    assert passed == [event for _, event in events]
    found = values(metrics)
    expected = {"time_to_first_token": 0.5, "inter_token_latency": 0.3, "e2e_request_latency": 1.0}
    for name, total in expected.items():
        assert abs(found[f"vllm:{name}_seconds_sum"] - total) < 1e-6
        assert found[f"sglang:{name}_seconds_count"] == 1
    assert abs(found["vllm:request_time_per_output_token_seconds_sum"] - 0.125) < 1e-6
    assert found["sglang:queue_time_seconds_sum"] == found["vllm:request_queue_time_seconds_sum"] == 0.25
    for name, total in {"prefill": 0.25, "decode": 0.5, "inference": 0.75}.items():
        assert abs(found[f"vllm:request_{name}_time_seconds_sum"] - total) < 1e-6
    assert found["vllm:request_success_total|length"] == 1
    assert found["vllm:request_params_n_sum"] == 2
    assert found["sglang:num_so_requests_total"] == 1
    assert found["branchpoint:grammar_compilation_time_seconds_sum"] == 0.125


def test_ends_are_counted_by_what_they_were() -> None:
    metrics = Metrics(INFO)
    ends: list[Event] = [
        Failed("a", "aborted", ""),
        Failed("a", "engine_dead", ""),
        Failed("a", "overloaded", ""),
        Failed("a", "capacity", ""),
        Scored("a", ((0.0,),), Usage()),
    ]
    for end in ends:
        metrics.watch(ScoreCall("a", (1,), ((2,),)), lambda event: None)(end)
    found = values(metrics)
    counted = {reason: found[f"vllm:request_success_total|{reason}"] for reason in ("stop", "length", "abort", "error")}
    assert counted == {"stop": 1, "length": 0, "abort": 1, "error": 1}
    assert found["vllm:admission_rejections_total|overloaded"] == found["vllm:admission_rejections_total|capacity"] == 1
    assert found["sglang:num_aborted_requests_total"] == 1
    assert found["sglang:num_requests_total"] == 3


def test_calls_that_the_models_logits_spoiled_are_counted() -> None:
    metrics = Metrics(INFO)
    assert values(metrics)["vllm:corrupted_requests_total"] == 0
    told = "The model's logits are unusable: no number is finite."
    metrics.watch(Call("a", (1,)), lambda event: None)(Failed("a", "internal", told))
    assert values(metrics)["vllm:corrupted_requests_total"] == 1


def test_counters_go_on_where_another_engine_begins_at_0() -> None:
    metrics = Metrics(INFO)
    metrics.update(stats(totals=Usage(prompt_tokens=100, preemptions=3)))
    metrics.restarted()
    metrics.update(stats(totals=Usage(prompt_tokens=7, preemptions=1)))
    found = values(metrics)
    assert (found["vllm:num_preemptions_total"], found["vllm:prompt_tokens_total"]) == (4, 107)


def test_what_never_became_a_call_counts_as_refused() -> None:
    metrics = Metrics(INFO)
    metrics.refused("invalid_request")
    assert values(metrics)["vllm:admission_rejections_total|invalid_request"] == 1
    assert values(metrics)["process_resident_memory_bytes"] > 0


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = Metrics(INFO), Metrics(INFO)
    first.watch(Call("a", (1,)), lambda event: None)(Failed("a", "internal", ""))
    assert values(first)["sglang:num_requests_total"] == 1
    assert values(second)["sglang:num_requests_total"] == 0


def test_adapters_in_use_stand_in_the_labels_of_one_series_where_an_engine_takes_any() -> None:
    metrics = Metrics(INFO)
    metrics.update(stats())
    assert "lora_requests_info" not in metrics.render().decode()
    for use in (AdapterUse(2, ("a", "b"), ("c",)), AdapterUse(2), AdapterUse(2, ("b",))):
        metrics.update(stats(adapters=use))
        told = {line for line in metrics.render().decode().splitlines() if line.startswith("vllm:lora_requests_info{")}
        (line,) = told
        for name, value in (
            ("max_lora", "2"),
            ("running_lora_adapters", ",".join(use.running)),
            ("waiting_lora_adapters", ",".join(use.waiting)),
        ):
            assert f'{name}="{value}"' in line
