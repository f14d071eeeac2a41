"""`observatory show --export` and `--import`: which run and which machine they take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.cli.show import command
from bench.errors import Misuse
from bench.machine.gpus import Gpu
from bench.results.estimate import estimate
from bench.store import run_dir
from bench.store.history import History
from bench.store.summary import Summary
from collectors.metrics import probes as probes_metrics
from tests.bench.machine.doctor.runs import probe
from tests.bench.made.examples import make_machine, make_summary
from tests.bench.report.nccl_tests.files import document

MACHINE = replace(
    make_machine(),
    nccl_version="2.28.9",
    gpus=(Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", memory_bytes=None),),
    environment={"NCCL_ALGO": "Ring"},
)


def _run(name: str, ranks: int = 8) -> Summary:
    labels = {"collective": "all_reduce", "algorithm": "library", "size": "1048576"}
    found = (
        estimate(probes_metrics.RUN_COLLECTIVE_SECONDS, (0.001,), **labels),
        estimate(probes_metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH, (1e9,), **labels),
    )
    return probe(name, "collectives", *found, ranks=ranks, case={"device": "cuda", "backend": "nccl"})


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(url) as history:
        history.add(_run("run-gpu"), MACHINE)
        history.add(make_summary("run-ddp"), MACHINE)
    return url


def _told(store: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--store", store], catch_exceptions=False)


def _exported(folder: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((folder / "all_reduce_perf.json").read_bytes())
    return {
        "env": written["env"],
        "nccl_version": written["nccl_version"],
        "device": written["config"]["devices"][0]["device_info"],
        "hostname": written["config"]["devices"][0]["hostname"],
    }


MACHINES_WORDS = {
    "env": ["NCCL_ALGO=Ring"],
    "nccl_version": 22809,
    "device": "NVIDIA H200",
    "hostname": "node0",
}


def test_an_export_from_the_history_names_the_machine_of_the_run(store: str, tmp_path: Path) -> None:
    assert _told(store, "run-g", "--export", str(tmp_path / "theirs")).exit_code == 0
    assert _exported(tmp_path / "theirs") == MACHINES_WORDS


def test_an_export_of_a_folder_names_the_machine_that_the_folder_keeps(store: str, tmp_path: Path) -> None:
    summary = _run("run-folder")
    begun = run_dir.begin(summary.case, MACHINE, tmp_path / "runs")
    run_dir.save(replace(summary, run=begun.id, folder=str(begun.folder)))
    begun.close()
    assert _told(store, str(begun.folder), "--export", str(tmp_path / "theirs")).exit_code == 0
    assert _exported(tmp_path / "theirs") == MACHINES_WORDS


@pytest.mark.parametrize("exchange", ["--import", "--export"])
def test_a_run_without_collectives_is_refused_either_way(exchange: str, store: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(document())
    place = {"--import": "x.json", "--export": "theirs"}[exchange]
    with pytest.raises(Misuse, match="run run-ddp measured ddp, not a collective; `observatory run collectives`"):
        _told(store, "run-ddp", exchange, str(tmp_path / place))


def test_an_import_finds_the_run_of_its_collective_behind_a_newer_one_of_another(store: str, tmp_path: Path) -> None:
    labels = {"collective": "broadcast", "algorithm": "library", "size": "1048576"}
    newer = estimate(probes_metrics.RUN_COLLECTIVE_SECONDS, (0.001,), **labels)
    with History(store) as history:
        history.add(probe("run-new", "collectives", newer, at_s=60, ranks=8), MACHINE)
    (tmp_path / "x.json").write_bytes(document())
    answer = _told(store, "--import", str(tmp_path / "x.json"), "--format", "json")
    assert [row["own_run"] for row in json.loads(answer.output)["rows"]] == ["run-gpu"]


def test_an_import_that_no_run_is_like_says_on_how_many_ranks_one_would_be(store: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(document(groups=(0, 0)))
    answer = _told(store, "--import", str(tmp_path / "x.json"))
    assert "`observatory run collectives --ranks 2` measures one" in answer.output
