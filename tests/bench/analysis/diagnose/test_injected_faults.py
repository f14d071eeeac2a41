"""Faults injected into real ranks: `observatory diagnose` names each of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.case import Case
from bench.cli import main
from bench.errors import CASE_FAILED, FINE
from bench.store.history import History
from bench.store.run_dir import load, machine_of
from tests.bench.made.diagnosed import case_of
from tests.bench.made.examples import make_probe
from tests.support.netbox import INTERFACE, NetBox, netbox
from workloads.spec import OptionValue

pytestmark = [pytest.mark.slow, pytest.mark.alone]

ROOT = Path(__file__).parents[4]
LIMIT_S = 200.0
QUICK = ["--device=cpu", "--trials=1", "--steps=6", "--warm-up=2", "--trace-steps=3", "--port=0", "-q"]
FAST_MBIT, SLOW_MBIT = 400.0, 50.0
"""What a node sends at most; where nothing slows it, times on a busy machine are no line from which to tell a link."""
PAUSE_S, TURN_S = 0.15, 0.05
"""A slow rank stands still for so long, then runs for so long."""

Start = Callable[[int, Sequence[str], dict[str, str]], "subprocess.Popen[Any]"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "parallel-observatory").mkdir(parents=True)


def _diagnosed(run: object, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the command says of the run, in JSON; its page has 80 columns."""
    capsys.readouterr()
    assert main.run(["diagnose", str(run)]) == FINE
    page = capsys.readouterr().out
    assert all(len(line) <= 80 or " " not in line.strip() for line in page.splitlines()), page  # But for long paths.
    assert main.run(["diagnose", str(run), "--format", "json"]) == FINE
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def _evidence(found: dict[str, Any]) -> str:
    return "\n".join(found["limit"]["evidence"])


def _measured(words: Sequence[str], capsys: pytest.CaptureFixture[str], *, code: int = FINE) -> dict[str, Any]:
    """What is said of a run of this command line."""
    assert main.run(["run", *words, *QUICK]) == code
    with History() as history:
        (run,) = history.names(limit=1)
    return _diagnosed(run, capsys)


# Ranks that are started one by one, as torchrun does, so that each can have its own network or be paused


def _run_ranks(case: Case, folder: Path, address: str, port: int, start: Start) -> Path:
    """Measure a trial of the case; return the run's folder. start: starts a rank with its command and variables."""
    path = folder.with_suffix(".json")
    path.write_bytes(msgspec.json.encode([{"case": case}]))
    command = [sys.executable, "-m", "bench.session.torchrun", str(path), "--folder", str(folder), "--limit", "120"]
    place = {"WORLD_SIZE": str(case.ranks), "MASTER_ADDR": address, "MASTER_PORT": str(port), "LOCAL_RANK": "0"}
    ranks = [start(rank, command, {**os.environ, **place, "RANK": str(rank)}) for rank in range(case.ranks)]
    try:
        assert [rank.wait(timeout=LIMIT_S) for rank in ranks] == [0] * case.ranks
    finally:
        for rank in ranks:
            rank.kill()
    return folder


def _run_boxed(box: NetBox, case: Case, folder: Path, port: int) -> Path:
    def start(rank: int, command: Sequence[str], variables: dict[str, str]) -> subprocess.Popen[Any]:
        network = {"GLOO_SOCKET_IFNAME": INTERFACE, "LOCAL_WORLD_SIZE": "1"}
        return box.run_in(rank, list(command), cwd=ROOT, env={**variables, **network})

    return _run_ranks(case, folder, box.nodes[0].address, port, start)


def _keep(folder: Path) -> None:
    """Take a probe's run into the history."""
    with History() as history:
        history.add(load(folder), machine_of(folder))


def _probe(ranks: int = 2) -> Case:
    options: dict[str, OptionValue] = {
        "collectives": "all_reduce",
        "min_bytes": 1 << 20,
        "max_bytes": 8 << 20,
        "factor": 2,
    }
    probe = make_probe("collectives", ranks, trials=1, steps=8, warm_up=1)
    return replace(probe, options={**probe.options, **options})


def test_a_slow_link_is_told_from_what_the_probe_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with netbox(nodes=2, rate_mbit=FAST_MBIT) as box:
        _keep(_run_boxed(box, _probe(), tmp_path / "probe", 29501))
        box.nodes[1].set_rate(SLOW_MBIT)
        folder = _run_boxed(box, case_of("ddp", 2, batch=2, steps=5, warm_up=2), tmp_path / "slow", 29502)
    found = _diagnosed(folder, capsys)
    assert found["limit"]["kind"] == "exposed_communication"
    assert "slow link: all_reduce reaches a bus bandwidth of" in _evidence(found)
    assert found["command"] == "observatory run pairs --ranks 2 --device cpu"


def test_overlap_that_is_off_is_the_first_thing_to_try(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The link is as slow as its probe says, and the backward is about as long as what it may hide."""
    case = case_of("ddp", 2, batch=32, steps=5, warm_up=2, options={"overlap": False})
    with netbox(nodes=2, rate_mbit=2 * SLOW_MBIT) as box:
        _keep(_run_boxed(box, _probe(), tmp_path / "probe", 29501))
        folder = _run_boxed(box, case, tmp_path / "exposed", 29502)
    found = _diagnosed(folder, capsys)
    assert found["limit"]["kind"] == "exposed_communication"
    assert "slow link" not in _evidence(found)
    assert any(lever["settings"].get("overlap") == "true" for lever in found["limit"]["levers"])


def test_a_slow_rank_is_a_straggler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One trial is too few to call it the limit: it is listed, with the command that has enough."""
    ended = threading.Event()
    throttles = []

    def throttle(process: subprocess.Popen[Any]) -> None:
        while not ended.wait(TURN_S) and process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGSTOP)
                ended.wait(PAUSE_S)
                process.send_signal(signal.SIGCONT)

    def start(rank: int, command: Sequence[str], variables: dict[str, str]) -> subprocess.Popen[Any]:
        process = subprocess.Popen(command, cwd=ROOT, env=variables)
        if rank == 1:
            throttles.append(threading.Thread(target=throttle, args=(process,)))
            throttles[-1].start()
        return process

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        folder = _run_ranks(case_of("ddp", 2, batch=8, steps=5, warm_up=2), tmp_path / "late", "127.0.0.1", port, start)
    finally:
        ended.set()
        for thread in throttles:
            thread.join()
    found = _diagnosed(folder, capsys)
    assert found["limit"]["kind"] == "unknown"
    assert "1 trial cannot tell that from chance" in found["reason"]
    kinds = [finding["kind"] for finding in found["findings"]]
    assert kinds.index("straggler") == 1
    assert found["findings"][1]["evidence"][0].startswith("rank 1 holds the others up")
    assert not found["is_sure"]
    assert "--trials 7" in found["command"]


def test_an_unbalanced_stage_is_imbalance(capsys: pytest.CaptureFixture[str]) -> None:
    """The last stage has the head of a large vocabulary."""
    shape = ["--layers=8", "--width=64", "--vocabulary=16384", "--sequence=64", "--batch=16"]
    found = _measured(["gpipe", "--ranks=2", *shape, "--option=microbatches=8"], capsys)
    assert found["limit"]["kind"] == "imbalance"
    assert "stage 1 on pipeline rank 1 is the slowest" in _evidence(found)
    assert found["limit"]["levers"][0]["settings"] == {"balance": "measured"}


def test_a_slow_loader_is_the_input(capsys: pytest.CaptureFixture[str]) -> None:
    found = _measured(["ddp", "--ranks=2", "--batch=2", "--sequence=16", "--option=loader_delay_ms=500"], capsys)
    assert found["limit"]["kind"] == "input"
    assert found["limit"]["levers"][0]["settings"] == {"loader_delay_ms": "0"}


def test_a_ceiling_of_memory_is_the_root_cause(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ddp", "--ranks=2", "--batch=2", "--sequence=16", "--inject=memory@1:3"]
    found = _measured(words, capsys, code=CASE_FAILED)
    assert found["limit"]["kind"] == "memory"
    assert "rank 1" in found["root_cause"][0]
    assert found["limit"]["levers"][0]["settings"]
