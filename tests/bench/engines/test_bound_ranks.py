"""Real ranks beside a fake GPU node: each is bound to its GPU's cores before it starts CUDA, which this torch lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.case import Case
from bench.engines.local import LocalEngine
from bench.errors import CASE_FAILED
from bench.machine.cpu_list import written
from bench.rank.messages import TrialEnded, TrialOrder
from collectors.sample_log import Ended, Note, Opened, read
from tests.bench.made.examples import small_case
from tests.support.nvml.library import FakeNode, build, fake_node
from tests.support.nvml.scenes import A100, FORBIDDEN, H100, mig_uuid, node_of, split_by_mig

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

CPUS = sorted(os.sched_getaffinity(0))
NOWHERE = "4000-4095"
UNBOUND = "a rank is not bound to the cores of its GPU: "
NEAR = {
    "0.CpuAffinity": f"{CPUS[0]},{NOWHERE}",
    "1.CpuAffinity": f"{CPUS[-1]},{NOWHERE}",
    "2.CpuAffinity": NOWHERE,
    "3.CpuAffinity": FORBIDDEN,
}
CASE = replace(small_case("ddp", 4), device="cuda", bind=True)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def node(library: Path, tmp_path_factory: pytest.TempPathFactory) -> FakeNode:
    """Four GPUs: near our first core, near our last, near none of ours, and one whose cores are a secret."""
    return fake_node(tmp_path_factory.mktemp("node"), library, {**node_of(*[H100] * 4), **NEAR})


@pytest.fixture(scope="module")
def engine(node: FakeNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in node.environment().items():
            patch.setenv(name, value)
        with LocalEngine(tmp_path_factory.getbasetemp()) as started:
            started.machine()
            yield started


def _opened(folder: Path, rank: int) -> Opened:
    (opened,) = (record for record in read(folder / f"rank{rank}.jsonl").records if isinstance(record, Opened))
    return opened


def _notes(folder: Path, rank: int) -> list[str]:
    return [record.text for record in read(folder / f"rank{rank}.jsonl").records if isinstance(record, Note)]


def _run(engine: LocalEngine, folder: Path, case: Case) -> TrialEnded:
    order = TrialOrder(run=folder.name, trial=0, case=case, limit_s=100.0)
    return engine.run(order, lambda progress: None)


def test_ranks_are_bound_to_the_cores_of_their_gpus_and_say_why_not(engine: LocalEngine, tmp_path: Path) -> None:
    ended = _run(engine, tmp_path, CASE)
    assert ended.cause is not None
    assert "torch is built without CUDA" in ended.cause.text
    assert [_opened(tmp_path, rank).cpus for rank in range(4)] == [str(CPUS[0]), str(CPUS[-1]), None, None]
    assert [_notes(tmp_path, rank) for rank in range(4)] == [
        [],
        [],
        [f"{UNBOUND}they are {NOWHERE}, and this process may use {written(CPUS)} only"],
        [f"{UNBOUND}NVML: Insufficient Permissions"],
    ]


def test_no_rank_is_bound_where_that_was_asked_for(engine: LocalEngine, tmp_path: Path) -> None:
    _run(engine, tmp_path, replace(CASE, bind=False))
    assert [(_opened(tmp_path, rank).cpus, _notes(tmp_path, rank)) for rank in range(4)] == [(None, [])] * 4


def test_ranks_on_the_cpu_of_a_gpu_node_run_everywhere(engine: LocalEngine, tmp_path: Path) -> None:
    ended = _run(engine, tmp_path, small_case("ddp", 2))
    assert (ended.outcome, ended.cause) == ("done", None)
    assert [(_opened(tmp_path, rank).cpus, _notes(tmp_path, rank)) for rank in range(2)] == [(None, [])] * 2


def _start_task(node: FakeNode, folder: Path, visible: str) -> Ended:
    """Start one rank as a task of a scheduler: its place on the node is 3, and it sees one GPU or instance."""
    case = replace(small_case("single", 1), device="cuda", bind=True)
    (folder / "case.json").write_bytes(msgspec.json.encode([{"case": case}]))
    place = {"RANK": "0", "LOCAL_RANK": "3", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    words = ["-m", "bench.session.torchrun", f"{folder}/case.json", "--folder", f"{folder}/run"]
    done = subprocess.run(
        [sys.executable, "-P", *words],
        env=node.environment(CUDA_VISIBLE_DEVICES=visible, **place),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == CASE_FAILED, done.stderr
    (ended,) = (record for record in read(folder / "run/rank0.jsonl").records if isinstance(record, Ended))
    return ended


def test_a_task_that_sees_one_gpu_is_bound_to_the_cores_of_that_gpu(node: FakeNode, tmp_path: Path) -> None:
    ended = _start_task(node, tmp_path, "1")
    assert "torch is built without CUDA" in str(ended.error)
    assert _opened(tmp_path / "run", 0).cpus == str(CPUS[-1])


def test_a_task_on_a_mig_instance_is_bound_to_the_cores_of_the_gpu_that_has_it(library: Path, tmp_path: Path) -> None:
    scene = {**node_of(A100, A100), **split_by_mig(1, instances=3), "1.CpuAffinity": str(CPUS[-1])}
    _start_task(fake_node(tmp_path / "node", library, scene), tmp_path, mig_uuid(1, 2))
    assert _opened(tmp_path / "run", 0).cpus == str(CPUS[-1])
