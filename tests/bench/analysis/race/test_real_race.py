"""Races of real ranks: one with a slow loader, one with a rank that is killed, and one over a slow link."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.race.race import RaceCase, race, race_suite
from bench.analysis.race.report import sentence
from bench.cli.main import run
from bench.rank.fault_injection import parse_fault
from bench.session.case_args import CaseArgs, read_node
from bench.session.session import open_session
from bench.suite.plan import plan_suite
from tests.support.netbox import BURST, LATENCY, netbox

TINY = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "mlp_width": 64, "vocabulary": 64, "sequence": 16}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(3))
def test_the_case_without_sleep_wins(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each step of ddp sleeps for 0.6 s, far more than what others do on this machine; zero1 is killed."""
    shape, seed = {**TINY, "batch": 4}, number
    no_worker = ("workers=0",)
    args = CaseArgs(
        strategy="ddp", ranks=(2,), dimensions=shape, device="cpu", steps=3, warm_up=1, trace_steps=0, seed=seed
    )
    cases = [
        RaceCase(name="ddp", args=replace(args, options=(*no_worker, "loader_delay_ms=600"))),
        RaceCase(name="fsdp", args=replace(args, strategy="fsdp", options=no_worker)),
        RaceCase(name="zero1", args=replace(args, strategy="zero1", options=no_worker)),
    ]
    runs, url = tmp_path / "runs", f"sqlite:///{tmp_path / 'history.sqlite'}"
    plan = plan_suite(race_suite(cases, "choose", 60.0), read_node(), "nothing is known")
    faulty = tuple(
        replace(planned, fault=parse_fault("kill@1:2", ranks=2, steps=4))
        if planned.suite_case.name == "zero1"
        else planned
        for planned in plan.cases
    )
    with open_session(runs=runs, store_url=url, tell=lambda line: None, work="race") as session:
        end = race(cases, replace(plan, cases=faulty), session)
    assert end.referee.standing.winner == "fsdp"
    assert sentence(end).startswith("fsdp pays: ")
    assert {case.name: case.outcome for case in end.result.cases} == {
        "ddp": "dropped",
        "fsdp": "done",
        "zero1": "failed",
    }
    assert run(["suite", "show", end.result.id, "--runs", str(runs), "--store", url]) == 0
    out = capsys.readouterr().out
    assert "1 done, 1 failed, 1 dropped" in out
    assert "dropped: ddp: fsdp is " in out


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(3))
def test_over_a_slow_link_the_rank_that_sends_nothing_wins(number: int, tmp_path: Path) -> None:
    """At 40 Mbit/s ddp needs 0.2 s to reduce 200,000 gradients in each step, in which single computes two sequences."""
    ddp = "--shape tiny --layers 1 --width 128 --heads 2 --kv-heads 1 --mlp-width 512 --vocabulary 64 --sequence 16"
    command = ["choose", "single", "ddp", *ddp.split(), "--batch", "2", "--steps", "3", "--ranks", "2"]
    places = ["--runs", str(tmp_path / "runs"), "--store", f"sqlite:///{tmp_path / 'history.sqlite'}"]
    with netbox(nodes=1, rate_mbit=None) as box:
        namespace = box.nodes[0].namespace
        bucket = ["tbf", "rate", "40mbit", "burst", BURST, "latency", LATENCY]
        subprocess.run(["ip", "-n", namespace, "link", "set", "lo", "mtu", "1500"], check=True)
        subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", *bucket], check=True)
        process = box.run_in(
            0,
            [sys.executable, "-m", "bench", *command, *places, "--budget", "10m", "--format", "json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        out, _ = process.communicate()
    choice = json.loads(out)
    assert process.returncode == 0
    assert choice["winner"] == "single"
    assert {case["case"]: case["outcome"] for case in choice["cases"]} == {"single": "done", "ddp": "dropped"}
