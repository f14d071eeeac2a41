"""Races of real ranks: with a slow loader, with a rank that is killed, over a slow link, and in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.race.race import RaceCase, race, race_suite
from bench.analysis.race.report import sentence
from bench.cli.main import run
from bench.errors import CASE_FAILED, MISUSE
from bench.rank.fault_injection import parse_fault
from bench.session.case_args import CaseArgs, read_node
from bench.session.session import open_session
from bench.suite.plan import plan_suite
from tests.bench.machine.limits.memory_group import MemoryGroup, memory_group
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


SHAPE = {**TINY, "layers": 4, "width": 512, "heads": 8, "kv_heads": 8, "mlp_width": 4096, "batch": 2}
PARAMETERS_BYTES = 117_600_000
"""Of SHAPE. With gradients and optimizer state, two ranks hold 8 times as much in ddp, and 4 times in fsdp."""
WORDS = [word for name, size in SHAPE.items() for word in (f"--{name.replace('_', '-')}", str(size))]


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with memory_group() as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_in_little_memory_the_case_with_the_smaller_states_wins(group: MemoryGroup, tmp_path: Path) -> None:
    """The states of ddp would fit, but not with its processes: the kernel kills a rank."""
    places = ["--runs", str(tmp_path / "runs"), "--store", f"sqlite:///{tmp_path / 'history.sqlite'}"]
    steps = ["--ranks", "2", "--trials", "1", "--steps", "1", "--warm-up", "0", "--trace-steps", "0"]
    fsdp_bytes = group.most_held_bytes("-m", "bench", "run", "fsdp", *WORDS, *steps, *places)
    group.limit(fsdp_bytes + PARAMETERS_BYTES)
    choose = ["-P", str(Path(__file__).with_name("short_choice.py")), str(tmp_path), json.dumps(SHAPE)]
    for _ in range(3):
        done = group.run(*choose, "ddp", "fsdp")
        assert done.returncode == CASE_FAILED, done.stderr
        choice = json.loads(done.stdout)
        assert choice["winner"] == "fsdp"
        assert choice["conclusion"] == "fsdp pays: no other case has run to the end"
        cases = {case["case"]: case for case in choice["cases"]}
        assert {name: case["outcome"] for name, case in cases.items()} == {"ddp": "failed", "fsdp": "done"}
        assert " ran out of memory and was killed by the kernel (SIGKILL; its control " in cases["ddp"]["reason"]
        assert group.pids() == []


def test_a_case_that_the_memory_of_the_group_cannot_hold_is_refused(group: MemoryGroup, tmp_path: Path) -> None:
    group.limit(7 * PARAMETERS_BYTES)
    places = ["--runs", str(tmp_path / "runs"), "--store", f"sqlite:///{tmp_path / 'history.sqlite'}"]
    done = group.run("-m", "bench", "choose", "ddp", "fsdp", "--shape", "tiny", *WORDS, "--ranks", "2", *places)
    assert done.returncode == MISUSE
    states = "ddp: parameters, gradients and optimizer state of 2 ranks take 0.9 GB, but available memory is only 0."
    assert f"a race needs two cases that can run here, and 1 can: {states}" in done.stderr
    assert not (tmp_path / "runs").exists()
