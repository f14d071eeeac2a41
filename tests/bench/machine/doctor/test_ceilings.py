"""Which figures of which runs are a machine's ceilings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.machine.doctor.page import ReachedCeiling, measured_ceilings
from bench.machine.gpus import Gpu
from bench.machine.machine import Machine
from bench.store.history import History
from bench.store.summary import Summary
from tests.bench.machine.doctor.runs import busbw, copy, probe, product
from tests.bench.made.examples import make_machine


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as opened:
        yield opened


def _ceilings(history: History, *summaries: Summary, machine: Machine | None = None) -> list[ReachedCeiling]:
    for summary in summaries:
        history.add(summary, make_machine())
    return list(measured_ceilings(history, machine or make_machine()))


def _known(found: list[ReachedCeiling]) -> list[tuple[str, float, str | None]]:
    return [(ceiling.what, ceiling.best.median, ceiling.run) for ceiling in found if ceiling.best is not None]


def test_an_empty_history_says_which_command_measures_each(history: History) -> None:
    found = _ceilings(history)
    assert [ceiling.what for ceiling in found] == ["matmul", "copies", "collectives", "all_reduce"]
    assert found[0].reason == "it was not measured on AMD EPYC, 2 cores; `observatory run matmul` measures it"


def test_the_best_size_of_a_matmul_counts(history: History) -> None:
    run = probe("run-a", "matmul", product(256, 1e9), product(1024, 3e9), product(4096, 2e9), ranks=1)
    found = _ceilings(history, run)[0]
    assert _known([found]) == [("matmul fp32", 3e9, "run-a")]
    assert found.setting == "1024 x 1024 x 1024, 1 rank, cpu"
    assert found.started_ns == run.started_ns


def test_each_precision_of_matmul_has_its_best_run_however_old(history: History) -> None:
    found = _ceilings(
        history,
        probe("run-a", "matmul", product(256, 9e9)),
        probe("run-b", "matmul", product(256, 1e9), at_s=60),
        probe("run-c", "matmul", product(256, 2e9), at_s=30, case={"precision": "bf16"}),
    )
    assert _known(found) == [("matmul fp32", 9e9, "run-a"), ("matmul bf16", 2e9, "run-c")]


def test_each_kind_of_copy_counts(history: History) -> None:
    found = _ceilings(history, probe("run-a", "copies", copy("memory_copy", 8e9), copy("memory_triad", 9e9)))
    assert _known(found) == [("memory_copy", 8e9, "run-a"), ("memory_triad", 9e9, "run-a")]
    assert found[1].setting == "268,435,456 B, 2 ranks, cpu"


def test_each_collective_counts_at_its_best_size(history: History) -> None:
    run = probe(
        "run-a", "collectives", busbw("all_reduce", 1e9), busbw("all_reduce", 2e9, 8192), busbw("broadcast", 3e9)
    )
    found = _ceilings(history, run)
    assert _known(found) == [("all_reduce, busbw", 2e9, "run-a"), ("broadcast, busbw", 3e9, "run-a")]
    assert found[2].setting == "8,192 B, fp32, 2 ranks, gloo"


def test_a_newer_run_of_one_collective_and_one_size_hides_none_of_a_fuller_one(history: History) -> None:
    fuller = probe("run-a", "collectives", busbw("all_reduce", 3e8, 1 << 20), busbw("broadcast", 2e8), ranks=4)
    newer = probe("run-b", "collectives", busbw("all_reduce", 5e5, 8), at_s=60)
    found = _ceilings(history, fuller, newer)
    assert _known(found) == [("all_reduce, busbw", 3e8, "run-a"), ("broadcast, busbw", 2e8, "run-a")]
    assert next(ceiling.setting for ceiling in found if ceiling.best is not None) == "1,048,576 B, fp32, 4 ranks, gloo"


@pytest.mark.parametrize("strategy", ["collectives", "all_reduce"])
def test_one_rank_has_no_bus_whose_bandwidth_counts(history: History, strategy: str) -> None:
    found = _ceilings(history, probe("run-a", strategy, busbw("broadcast", 9e9), ranks=1))
    assert _known(found) == []
    (reason,) = [ceiling.reason for ceiling in found if ceiling.what == strategy]
    assert reason == (
        "it was not measured on AMD EPYC, 2 cores with 2 ranks or more;"
        f" `observatory run {strategy} --ranks 2` measures it"
    )


def test_copies_that_a_cache_may_hold_are_no_ceiling_of_memory(history: History) -> None:
    full = probe("run-a", "copies", copy("memory_copy", 8e9))
    cached = probe("run-b", "copies", copy("memory_copy", 9e10, 4096), at_s=60)
    assert _known(_ceilings(history, full, cached)) == [("memory_copy", 8e9, "run-a")]


def test_where_only_small_copies_were_measured_the_size_that_is_wanted_is_said(history: History) -> None:
    found = _ceilings(history, probe("run-b", "copies", copy("memory_copy", 9e10, 4096)))[1]
    assert found.best is None
    assert found.reason is not None
    assert "with buffers of 268,435,456 B or more; `observatory run copies` measures it" in found.reason


def test_the_best_algorithm_of_all_reduce_counts(history: History) -> None:
    run = probe("run-a", "all_reduce", busbw("all_reduce", 1e9), busbw("all_reduce", 2e9, algorithm="ring"))
    found = _ceilings(history, run)[-1]
    assert _known([found]) == [("all_reduce by the best algorithm, busbw", 2e9, "run-a")]
    assert found.setting == "ring, 4,096 B, fp32, 2 ranks, gloo"


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "failed"},
        {"hardware": "Intel Xeon, 2 cores"},
        {"case": {"version": 0}},
        {"case": {"device": "cuda"}},
        {"estimates": ()},
    ],
)
def test_a_run_that_says_nothing_of_this_hardware_is_passed_over(history: History, changes: dict[str, Any]) -> None:
    found = _ceilings(
        history,
        probe("run-a", "matmul", product(256, 1e9)),
        probe("run-b", "matmul", product(256, 9e9), at_s=60, **changes),
    )
    assert _known(found) == [("matmul fp32", 1e9, "run-a")]


def test_gpus_come_first_and_only_their_lack_is_said(history: History) -> None:
    machine = replace(make_machine(), gpus=(Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", memory_bytes=None),))
    run = probe("run-b", "matmul", product(256, 9e14), hardware="1 x NVIDIA H200", case={"device": "cuda"})
    found = _ceilings(history, probe("run-a", "copies", copy("memory_copy", 8e9)), run, machine=machine)
    assert [(ceiling.what, ceiling.run) for ceiling in found] == [
        ("matmul fp32", "run-b"),
        ("copies", None),
        ("collectives", None),
        ("all_reduce", None),
        ("memory_copy", "run-a"),
    ]
    assert found[1].reason == (
        "it was not measured on 1 x NVIDIA H200 with buffers of 1,073,741,824 B or more; `observatory run copies`"
        " measures it"
    )
    assert found[2].reason == "it needs 2 ranks with a GPU each, but there is one GPU"
