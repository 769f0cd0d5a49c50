"""`plan` counts what fits without loading anything; `doctor` names each bottleneck from what metrics say, and nothing else."""

import json
from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

from branchpoint.cli import app
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.serving.doctor import diagnose, drafting, read_look
from branchpoint.runtime.sizing import FORMS, fits
from tests.runtime.serving_site import open_site

SHAPE = ModelConfig("llama", 64, 2, 4, 2, 16, 128, 1000, 1024, tied=True)
GIB = 2**30


def test_a_plan_is_the_arithmetic_of_weights_and_pages() -> None:
    memory = 10 * 2**20
    for found in fits(SHAPE, memory, (100, 1024), page_size=16):
        assert found.kv_bytes == memory - found.form.weight_bytes(SHAPE)
        page = 2 * 2 * 2 * 16 * found.form.kv_bytes * 16
        assert found.tokens == found.kv_bytes // page * 16
        assert found.sequences == (found.tokens // 112, found.tokens // 1024), "pages are whole"
    exact = FORMS[0].weight_bytes(SHAPE)
    assert exact == SHAPE.num_parameters * 4
    by_form = [found.tokens for found in fits(SHAPE, memory, (100,))]
    assert by_form[0] < by_form[1] < by_form[2], "fewer bytes, more tokens"


def test_a_shared_prefix_is_held_once() -> None:
    alone, shared = (fits(SHAPE, 10 * 2**20, (512,), shared=shared)[0].sequences[0] for shared in (0, 500))
    assert shared > 10 * alone
    assert fits(SHAPE, 1000, (512,), shared=500)[0].sequences == (0,)
    for lengths, prefix in (((2000,), 0), ((0,), 0), ((512,), 512)):
        with pytest.raises(InvalidRequest):
            fits(SHAPE, GIB, lengths, shared=prefix)


def test_plan_prints_a_table_and_json() -> None:
    done = CliRunner().invoke(app, ["plan", "smollm2", "--memory-gib", "2"], env={"COLUMNS": "150"})
    assert done.exit_code == 0 and "134 million weights" in done.output and "8,192" in done.output and "int4" in done.output
    done = CliRunner().invoke(app, ["plan", "dummy:llama", "--memory-gib", "1", "--length", "64", "--json"])
    told = json.loads(done.output)
    assert [form["weights"] for form in told["forms"]] == [form.weights for form in FORMS]
    assert all(form["sequences"]["64"] == form["tokens"] // 64 for form in told["forms"])


CALM = {
    "request_success_total": 10.0,
    "e2e_request_latency_seconds_sum": 10.0,
    "kv_cache_usage_perc": 0.5,
    "num_requests_running": 4.0,
}
SICK: dict[str, tuple[Mapping[str, float], str, str]] = {
    "logits": ({"corrupted_requests_total": 2}, "finite", "dtype"),
    "preemption": ({"num_preemptions_total": 7}, "put back", "--max-sequences"),
    "pages": ({"num_requests_waiting_by_reason/capacity": 5, "kv_cache_usage_perc": 0.97}, "wait for pages", "--kv-memory-gib"),
    "slots": ({"num_requests_waiting_by_reason/capacity": 5}, "though there are pages", "--max-sequences"),
    "queue": ({"request_queue_time_seconds_sum": 6.0}, "though there are pages", "--max-batch-tokens"),
    "refused": ({"admission_rejections_total/overloaded": 3}, "refused", "--max-queued"),
    "http": ({"process_cpu_seconds_total": 9.5}, "HTTP process", "balancer"),
    "grammars": (
        {"grammar_compilation_time_seconds_sum": 4.0, "grammar_compilation_time_seconds_count": 2},
        "grammars",
        "--grammar-workers",
    ),
    "drafts": ({"spec_decode_num_draft_tokens_total": 100, "spec_decode_num_accepted_tokens_total": 9}, "Drafts", "--drafter"),
    "reuse": (
        {"prefix_cache_queries_total": 1000, "prefix_cache_hits_total": 20, "request_prefill_time_seconds_sum": 8.0},
        "prompts",
        "branchpoint cache",
    ),
    "unused": ({"kv_cache_usage_perc": 0.05}, "unused", "--num-pages"),
}


@pytest.mark.parametrize("name", list(SICK))
def test_each_bottleneck_is_named_with_figures_and_what_to_change(name: str) -> None:
    figures, what, change = SICK[name]
    gauges = {key: value for key, value in figures.items() if key in CALM or "waiting" in key}
    (found,) = diagnose([{"kv_cache_usage_perc": 0.5, "num_requests_running": 4.0} | gauges, CALM | figures], 10.0)
    assert what in found.what and change in found.change and any(char.isdigit() for char in found.evidence)


def test_a_healthy_server_has_no_findings_and_lost_reuse_is_told() -> None:
    looks = [{"kv_cache_usage_perc": 0.5}, CALM]
    assert diagnose(looks, 10.0) == []
    (found,) = diagnose(looks, 10.0, ["3 prompts agree …"])
    assert found.evidence == "3 prompts agree …"


def test_drafting_is_told_by_position_and_drafter_and_who_does_not_pay() -> None:
    before = {"spec_decode_num_drafts_total": 10.0, "drafter_draft_tokens_total/suffix": 30.0}
    after = {
        "generation_tokens_total": 300.0,
        "forced_tokens_total": 20.0,
        "spec_decode_num_draft_tokens_total": 400.0,
        "spec_decode_num_accepted_tokens_total": 90.0,
        "spec_decode_num_drafts_total": 110.0,
        **{f"spec_decode_num_accepted_tokens_per_pos_total/{place}": held for place, held in enumerate((60.0, 25.0, 5.0, 0.0))},
        "drafter_draft_tokens_total/suffix": 130.0,
        "drafter_draft_tokens_total/ngram": 300.0,
        "drafter_accepted_tokens_total/suffix": 60.0,
        "drafter_accepted_tokens_total/ngram": 30.0,
    }
    told = drafting([before, after], 10.0)
    assert told[0].startswith("Drafting: 1.58 output tokens for each step of a sequence.")
    assert "60% 25% 5%. 1.90 tokens came of a draft" in told[0]
    assert told[1:] == ["  ngram: 30 of 300 guesses held (10%)", "  suffix: 60 of 100 guesses held (60%)"]
    (found,) = (each for each in diagnose([before, after], 10.0) if "Drafts" in each.what)
    assert found.change.startswith("Leave out --drafter ngram, ")
    assert drafting([after, after], 10.0) == []


async def test_a_look_reads_what_the_server_exports() -> None:
    async with open_site() as site:
        await site.complete()
        await site.complete(prompt="x" * 500)
        look = read_look((await site.http.get("/metrics")).text)
    assert look["request_success_total"] == 1 and look["admission_rejections_total/capacity"] == 1
    assert look["num_requests_waiting_by_reason/capacity"] == 0
    known = {name.split("/")[0] for figures, _, _ in SICK.values() for name in figures}
    drafts = {"drafter_draft_tokens_total/head", "drafter_accepted_tokens_total/model", "generation_tokens_total"}
    drafts |= {"spec_decode_num_drafts_total", "spec_decode_num_accepted_tokens_per_pos_total/15", "forced_tokens_total"}
    assert known | drafts <= look.keys(), "the doctor reads series that exist"


def test_a_page_of_something_else_is_no_look() -> None:
    assert read_look("<!doctype html>\n<p>a b</p>\nup 1\n") == {"up": 1.0}
