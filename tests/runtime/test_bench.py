"""`branchpoint bench`: workloads are what they say, figures are right, a server and an engine are both driven."""

import itertools
import json
import math
import statistics
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from branchpoint.cli import app
from branchpoint.runtime.bench.client import Target, arrivals, drive, first_model
from branchpoint.runtime.bench.figures import percentile, summary
from branchpoint.runtime.bench.plot import plot_svg
from branchpoint.runtime.bench.timing import Timing
from branchpoint.runtime.bench.workload import WorkloadOptions, make_sessions
from branchpoint.runtime.errors import InvalidRequest
from tests.server.test_load import listening


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("workload", ["random", "prefix", "turns"])
def test_a_workload_has_its_lengths_and_is_the_same_for_a_seed(workload: str) -> None:
    options = {"workload": workload, "requests": 10, "prompt_tokens": 20, "output_tokens": 8, "spread": 0.25, "turns": 3}
    sessions = make_sessions(WorkloadOptions(**options))
    asks = [ask for session in sessions for ask in session.asks]
    assert len(asks) == 10 and all(15 <= words(ask.text) <= 25 and 6 <= ask.output_tokens <= 10 for ask in asks)
    assert len({ask.text for ask in asks}) == 10 and len({words(ask.text) for ask in asks}) > 1
    assert sessions == make_sessions(WorkloadOptions(**options)) != make_sessions(WorkloadOptions(**options, seed=1))


def test_groups_share_prefixes_and_conversations_their_system_prompt() -> None:
    shared = make_sessions(WorkloadOptions(workload="prefix", requests=10, groups=3, prefix_tokens=40))
    systems = [session.system for session in shared]
    assert len(set(systems)) == 3 and systems[0] == systems[3] and all(words(system) == 40 for system in systems)
    talks = make_sessions(WorkloadOptions(workload="turns", requests=10, turns=4))
    assert [len(talk.asks) for talk in talks] == [4, 4, 2] and len({talk.system for talk in talks}) == 1


def test_lengths_and_prompts_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "real.jsonl"
    file.write_text('{"prompt_tokens": 7, "output_tokens": 3}\n\n{"prompt": "What now?", "output_tokens": 5}\n')
    sessions = make_sessions(WorkloadOptions(workload="file", requests=40, lengths_file=str(file)))
    assert {(words(session.asks[0].text), session.asks[0].output_tokens) for session in sessions} == {(7, 3), (2, 5)}
    for wrong in ("", "x", '{"output_tokens": 3}', '{"prompt_tokens": 3, "output_tokens": 0}'):
        file.write_text(wrong)
        with pytest.raises(InvalidRequest, match="output_tokens"):
            make_sessions(WorkloadOptions(workload="file", lengths_file=str(file)))
    with pytest.raises(InvalidRequest, match="can't be read"):
        make_sessions(WorkloadOptions(workload="file", lengths_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"requests": 0}, "requests"),
        ({"spread": 2.0}, "spread"),
        ({"prefix_tokens": -1}, "prefix_tokens"),
        ({"workload": "file"}, "lengths_file"),
        ({"lengths_file": "x"}, "lengths_file"),
        ({"workload": "luck"}, "workload"),
    ],
)
def test_options_that_cant_be_meant_are_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as told:
        WorkloadOptions(**fields)
    assert told.value.param == param


def test_arrivals_have_the_rate_and_the_burstiness() -> None:
    assert arrivals(3, math.inf, 1.0, 0) == [0.0] * 3
    spreads = []
    for burstiness in (0.2, 1.0, 50.0):
        times = arrivals(4000, 20.0, burstiness, 0)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert statistics.fmean(gaps) == pytest.approx(1 / 20, rel=0.12) and times == arrivals(4000, 20.0, burstiness, 0)
        spreads.append(statistics.stdev(gaps) / statistics.fmean(gaps))
    assert spreads == [pytest.approx(burstiness**-0.5, rel=0.15) for burstiness in (0.2, 1.0, 50.0)]
    for rate in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidRequest):
            arrivals(3, rate, 1.0, 0)


def test_figures_are_means_and_percentiles_of_what_went_well() -> None:
    assert [percentile([4.0, 1.0, 2.0, 3.0], percent) for percent in (0, 50, 100)] == [1.0, 2.5, 4.0]
    good = [Timing(0.0, 2.0, [1.0, 1.5, 2.0], 10, 4, 3), Timing(1.0, 4.0, [3.0, 4.0], 20, 0, 2)]
    told = summary([*good, Timing(0.0, error="503: full"), Timing(0.0, error="503: full")], 4.0)
    assert (told["completed"], told["failed"], told["errors"]) == (2, 2, {"503: full": 2})
    assert (told["prompt_tokens"], told["cached_tokens"], told["output_tokens"]) == (30, 4, 5)
    assert (told["requests_per_second"], told["output_tokens_per_second"], told["tokens_per_second"]) == (0.5, 1.25, 8.75)
    assert told["ttft_ms"]["mean"] == 1500 and told["ttft_ms"]["max"] == 2000
    assert told["itl_ms"]["p50"] == 500 and told["tpot_ms"]["max"] == 1000 and told["e2e_ms"]["mean"] == 2500
    picture = ET.fromstring(plot_svg(good, "a < b"))
    assert len([line for line in picture.iter() if line.tag.endswith("polyline")]) == 3


async def test_a_server_is_asked_and_its_own_counts_are_told() -> None:
    async with listening() as (port, engine, _):
        url = f"http://127.0.0.1:{port}"
        options = WorkloadOptions(workload="turns", requests=4, turns=2, prompt_tokens=2, output_tokens=5, prefix_tokens=1)
        timings, seconds = await drive(Target(url, "fake", chat=True, concurrency=1), make_sessions(options), [0.0, 0.0])
        told = summary(timings, seconds)
        assert (told["completed"], told["failed"], told["output_tokens"], told["cached_tokens"]) == (4, 0, 20, 4)
        assert b"abcde" in bytes(engine.calls[1].prompt), "a turn comes on top of the answer before"
        assert all(timing.first > 0 and len(timing.gaps) == 4 for timing in timings)
        engine.failure, engine.late = ("internal", "boom"), 2
        options = WorkloadOptions(requests=2, prompt_tokens=2, output_tokens=5)
        failed, _ = await drive(Target(url, "fake"), make_sessions(options), [0.0, 0.0])
        assert [timing.error for timing in failed] == ["boom", "boom"]
        refused, _ = await drive(Target(url, "other"), make_sessions(options), [0.0, 0.0])
        assert refused[0].error.startswith("404: ")


def test_a_server_that_isnt_there_is_told() -> None:
    with pytest.raises(InvalidRequest, match="--url"):
        first_model("http://127.0.0.1:1", "")


def test_an_engine_in_process_is_measured(tmp_path: Path) -> None:
    runner, small = CliRunner(), ["dummy:llama", "--threads", "1", "--num-pages", "200"]
    done = runner.invoke(app, ["bench", "latency", *small, "--input-tokens", "9", "--output-tokens", "4", "--json-file", "-"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert len(told["runs"]) == 10 and told["seconds"]["p10"] <= told["seconds"]["p99"] and told["output_tokens_per_second"] > 0
    work = ["--requests", "4", "--prompt-tokens", "3", "--output-tokens", "4", "--plot-file", str(tmp_path / "plot.svg")]
    done = runner.invoke(app, ["bench", "throughput", *small, *work])
    assert done.exit_code == 0 and "4 completed, 0 failed" in done.output and "16 output tokens" in done.output
    ET.parse(tmp_path / "plot.svg")
