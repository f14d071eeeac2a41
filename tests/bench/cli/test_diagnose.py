"""`observatory diagnose` as a person calls it, in this process."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli.main import run
from bench.rank.messages import FailureCause
from bench.results.estimate import estimate
from bench.store.history import History
from bench.store.summary import Summary
from collectors.metrics import results
from collectors.metrics.probes import RUN_LINK_BANDWIDTH, RUN_LINK_LATENCY_SECONDS, RUN_PAIR_BANDWIDTH
from tests.bench.made.diagnosed import case_of, held_up
from tests.bench.made.examples import make_machine, make_probe, make_summary
from tests.bench.made.scaled import SPREAD, Made, made_estimates

SLOW = Made(step_s=0.1, compute_s=0.04, exposed_s=0.06)


def _kept(folder: Path, *summaries: Summary) -> list[str]:
    """A store with these runs; the option that names it."""
    store = f"sqlite:///{folder / 'history.sqlite'}"
    with History(store) as history:
        for summary in summaries:
            history.add(summary, make_machine())
    return ["--store", store, "--runs", str(folder / "runs")]


def _run(name: str = "run-a", made: Made = SLOW, *, is_traced: bool = True) -> Summary:
    case = case_of(ranks=2)
    return make_summary(
        name, case=case, estimates=tuple(made_estimates(case, made, is_traced=is_traced)), scaling=(), notes=()
    )


def _link(bandwidth: float) -> Summary:
    found = (
        estimate(RUN_LINK_BANDWIDTH, [bandwidth], collective="all_reduce"),
        estimate(RUN_LINK_LATENCY_SECONDS, [1e-5], collective="all_reduce"),
    )
    return make_summary("probe", case=make_probe(), estimates=found, scaling=())


def _shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run(["diagnose", *arguments]) == 0
    return capsys.readouterr().out


def test_the_page_has_eighty_columns_and_ends_with_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = _shown(["run-a", *_kept(tmp_path, _run(), _link(100e6))], capsys).splitlines()
    assert max(map(len, page)) <= 80
    assert page[0] == "run-a: ddp on 2, done"
    assert page[1].startswith("limit: exposed communication 60 % of the step, model predicts")
    assert page[2].startswith("sure: the largest cost other than computing")
    next_at = next(number for number, line in enumerate(page) if line.startswith("next: "))
    command = " ".join(line.rstrip("\\").strip() for line in page[next_at:])
    assert command.startswith("next: observatory compare --ab ddp --ranks 2 --device cpu --batch 16")


def test_the_next_command_is_one_that_we_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _shown(["run-a", *_kept(tmp_path, _run(), _link(100e6)), "--format", "json"], capsys)
    words = json.loads(shown)["command"].split()[1:]
    assert words[0] == "compare"
    assert run([*words, "--limit", "0"]) == 2  # All words are taken, and nothing is measured.
    assert "limit is 0" in capsys.readouterr().err


def test_json_and_csv_hold_each_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = _kept(tmp_path, _run(), _link(100e6))
    found = json.loads(_shown(["run-a", *options, "--format", "json"], capsys))
    assert found["likely_limit"].startswith("exposed communication 60 % of the step")
    assert found["limit"] == found["findings"][0]
    rows = list(csv.DictReader(io.StringIO(_shown(["run-a", *options, "--format", "csv"], capsys))))
    assert [row["kind"] for row in rows] == [one["kind"] for one in found["findings"]]
    assert rows[0]["is_limit"] == "True"
    assert float(rows[0]["share"]) == pytest.approx(0.6)


def test_a_run_without_traces_is_diagnosed_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = _shown(["run-a", *_kept(tmp_path, _run(is_traced=False))], capsys)
    assert "limit: unknown" in page
    assert "--trace-steps 3" in page.partition("next: ")[2]
    waits = replace(SLOW, compute_s=0.02, exposed_s=0.02, data_s=0.06)
    page = _shown(["run-b", *_kept(tmp_path, _run("run-b", waits, is_traced=False))], capsys)
    assert "limit: input 60 % of the step" in page


def test_a_small_wait_without_traces_may_be_smaller_than_what_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = replace(SLOW, compute_s=0.04, exposed_s=0.04, data_s=0.02)
    page = _shown(["run-a", *_kept(tmp_path, _run("run-a", waits, is_traced=False))], capsys)
    assert "limit: likely input 20 % of the step" in page
    assert "--trace-steps 3" in page.partition("next: ")[2]


def test_a_straggler_that_may_be_chance_is_marked_where_it_is_not_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Made(step_s=0.1, compute_s=0.04, exposed_s=0.05, waiting_s=0.01)
    note = "no straggler: rank 1 causes 99 % of the waiting (p <= 0.11; 0.02 is needed); use --trials 7 or more"
    late = held_up({0: 0.001, 1: 0.1})
    doubted = replace(_run("run-a", made), notes=(note,))
    doubted = replace(doubted, estimates=(*doubted.estimates, *late))
    page = _shown(["run-a", *_kept(tmp_path, doubted, _link(100e6))], capsys)
    assert page.splitlines()[1].startswith("limit: exposed communication")
    assert "\nstraggler, likely" in page
    assert "unsure: rank 1 has" in page


def test_a_rank_that_is_likely_a_straggler_is_named_in_the_words_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    likely = "likely rank 1, not certain: rank 1 has 90 % of the lateness; use --trials 7 or more"
    note = f"straggler: {likely}"
    made = Made(step_s=0.1, compute_s=0.06, exposed_s=0.002, waiting_s=0.038)
    run = replace(_run("run-a", made), notes=(note,))
    run = replace(run, estimates=(*run.estimates, *held_up({0: 0.04, 1: 0.36})))
    page = _shown(["run-a", *_kept(tmp_path, run, _link(100e6))], capsys)
    assert "limit: likely straggler" in page
    assert likely in " ".join(page.split())
    assert "may be chance" not in page
    assert page.rstrip().endswith("--trials 7")


def test_on_several_nodes_the_page_says_what_engine_stands_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = replace(case_of(ranks=2), nodes=2)
    run = replace(_run(), case=case, estimates=tuple(made_estimates(case, SLOW)))
    page = _shown(["run-a", *_kept(tmp_path, run)], capsys)
    assert "--nodes 2 --engine ENGINE" in " ".join(page.split())
    assert page.rstrip().splitlines()[-1].startswith("ENGINE is the engine of that run")


def test_a_run_that_failed_shows_its_root_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cause = FailureCause(
        kind="killed", rank=1, step=2, text="rank 1 was killed by SIGKILL in step 2", last_lines=("torch: x",)
    )
    failed = make_summary(outcome="failed", cause=cause, estimates=(), scaling=(), trials_done=0)
    page = _shown(["run-a", *_kept(tmp_path, failed)], capsys)
    assert "failed: rank 1 was killed by SIGKILL in step 2" in page
    assert "torch: x" in page
    assert page.rstrip().endswith("next: observatory show run-a --details")


def test_a_slow_pair_is_named_from_the_probe_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speed = estimate(results.RUN_TRACED_BUS_BANDWIDTH, [5e6 * one for one in SPREAD], collective="all_reduce")
    slow = replace(_run(), estimates=(*_run().estimates, speed))
    bandwidths = tuple(
        estimate(RUN_PAIR_BANDWIDTH, [rate], pair=pair, size=size)
        for pair, size, rate in (("0-1", "1024", 1.0), ("0-1", "4096", 5e6), ("1-0", "4096", 9e8))
    )
    pairs = make_summary("pairs", case=make_probe("pairs"), estimates=bandwidths, scaling=())
    page = _shown(["run-a", *_kept(tmp_path, slow, _link(1e9), pairs)], capsys)
    joined = " ".join(page.split())
    assert "slow link: all_reduce reaches a bus bandwidth of 5 MB/s" in joined
    assert "the slowest pair is ranks 0-1 with 5 MB/s" in joined


def test_a_probe_is_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = _kept(tmp_path, _link(1e9))
    capsys.readouterr()
    assert run(["diagnose", "probe", *options]) == 2
    assert "run probe measures collectives, a probe, which trains nothing" in capsys.readouterr().err
