"""Which run of ours is taken to stand beside a file of nccl-tests."""

from __future__ import annotations

from typing import Any

import pytest

from bench.report.nccl_tests.reader import decode
from bench.report.nccl_tests.writer import most_like
from bench.results.estimate import estimate
from bench.store.summary import Summary
from collectors.metrics import probes as probes_metrics
from tests.bench.machine.doctor.runs import probe
from tests.bench.report.nccl_tests.files import document, row

SHARED, OTHER = 1048576, 4096


def _run(name: str, size: int = SHARED, collective: str = "all_reduce", **changes: Any) -> Summary:
    labels = {"collective": collective, "algorithm": "library", "size": str(size)}
    found = estimate(probes_metrics.RUN_COLLECTIVE_SECONDS, (0.001,), **labels)
    return probe(name, "collectives", found, **{"ranks": 8} | changes)


def _taken(*newest_first: Summary) -> str | None:
    found = most_like(decode(document(row(SHARED)), "x.json"), newest_first)
    return None if found is None else found.run


@pytest.mark.parametrize(
    "unlike", [_run("new", collective="broadcast"), _run("new", ranks=4), _run("new", outcome="failed")]
)
def test_a_run_of_another_collective_or_ranks_or_a_failed_one_is_passed_over(unlike: Summary) -> None:
    assert _taken(unlike, _run("old")) == "old"
    assert _taken(unlike) is None


def test_a_shared_size_is_before_a_newer_run() -> None:
    assert _taken(_run("new", OTHER), _run("old")) == "old"


def test_a_shared_size_of_the_same_type_is_before_a_newer_run_of_another_type() -> None:
    assert _taken(_run("new", case={"precision": "bf16"}), _run("old")) == "old"


def test_a_shared_size_of_another_type_is_before_none() -> None:
    assert _taken(_run("new", OTHER), _run("old", case={"precision": "bf16"})) == "old"


def test_of_runs_that_are_as_like_the_newest_is_taken() -> None:
    assert _taken(_run("new"), _run("old")) == "new"


def test_a_run_that_shares_no_size_is_better_than_none() -> None:
    assert _taken(_run("new", OTHER)) == "new"
