"""The probe `all_reduce` measures what its spec says, checks every result, and counts what the law expects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.ranks import OnRanks
from tests.workloads.probes.small_probes import FakeRecord, FakeStopwatch, SmallProbe, small_probe
from workloads.core.mesh import make_mesh
from workloads.probes.all_reduce import probe
from workloads.probes.cost_model import ALGORITHMS, Algorithm, cost
from workloads.probes.spec import AllReduceSpec
from workloads.protocols import Stopwatch
from workloads.spec import OptionValue, Precision


class FreshTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of the operators that made a tensor with memory of its own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.makers: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        known = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in known:
                self.makers.add(str(func))
        return made


@dataclass(slots=True)
class WatchedStopwatch(FakeStopwatch):
    """Watches the calls for tensors that they make."""

    fresh: FreshTensors = field(default_factory=FreshTensors)

    def times_s(self, call: Callable[[], object], warm_up: int, calls: int) -> list[float]:
        with self.fresh:
            call()
        return [1.0] * calls


@dataclass(slots=True)
class MeddlingStopwatch(FakeStopwatch):
    """After the second measurement rank 0 sends what rank 1 takes for rank 0's vector when it is checked."""

    measurements: int = 0
    sending: dist.Work | None = None

    def times_s(self, call: Callable[[], object], warm_up: int, calls: int) -> list[float]:
        call()
        self.measurements += 1
        if self.measurements == 2 and dist.get_rank() == 0:
            self.sending = dist.isend(torch.full((9,), 100.0), 1)
        return [1.0] * calls


def setup(ranks: int, precision: Precision = "fp32", **options: OptionValue) -> SmallProbe:
    """On 9, 90 and 900 elements of fp32, which no number of ranks divides that is a power of two."""
    return small_probe(
        AllReduceSpec(), {"min_bytes": 36, "max_bytes": 3600, "factor": 10, **options}, ranks=ranks, precision=precision
    )


def run(asked: SmallProbe, stopwatch: Stopwatch) -> FakeRecord:
    record = FakeRecord()
    probe(asked, make_mesh(AllReduceSpec().mesh(asked), "cpu"), record, stopwatch)
    return record


def run_plainly(asked: SmallProbe) -> tuple[FakeRecord, list[tuple[int, int]]]:
    """What a rank of it records, and the warm-up calls and calls that it asked the stopwatch for."""
    stopwatch = FakeStopwatch()
    return run(asked, stopwatch), stopwatch.asked


def run_watched(asked: SmallProbe) -> set[str]:
    stopwatch = WatchedStopwatch()
    run(asked, stopwatch)
    return stopwatch.fresh.makers


def run_meddled_with(asked: SmallProbe) -> None:
    run(asked, MeddlingStopwatch())


def test_each_algorithm_is_recorded_on_each_size(on_ranks: OnRanks) -> None:
    asked = setup(2)
    for record, timed in on_ranks(2, run_plainly, asked):
        assert [labels for _, labels in record.taken] == [
            {"collective": "all_reduce", "algorithm": algorithm, "size": size}
            for size in ("36", "360", "3600")
            for algorithm in ("library", *ALGORITHMS)
        ]
        assert timed == [(asked.warm_up, asked.steps)] * AllReduceSpec().measurements(asked)


@pytest.mark.parametrize("ranks", [3, 4])
def test_counts_are_of_one_call_and_the_laws(ranks: int, on_ranks: OnRanks) -> None:
    by_rank = [record.taken for record, _ in on_ranks(ranks, run_plainly, setup(ranks))]
    assert len(by_rank[0]) == AllReduceSpec().measurements(setup(ranks))
    for measured in zip(*by_rank, strict=True):
        labels = measured[0][1]
        figures = [of_rank for of_rank, _ in measured]
        assert all(of_rank.pop("collective_s") == 4.0 for of_rank in figures)
        if labels["algorithm"] == "library":
            assert not any(figures)
            continue
        law = cost(cast(Algorithm, labels["algorithm"]), ranks, int(labels["size"]) // 4, 4)
        assert max(of_rank["rounds"] for of_rank in figures) == law.steps
        assert sum(of_rank["sent_bytes"] for of_rank in figures) == law.total_bytes
        assert max(of_rank["peak_node_bytes"] for of_rank in figures) == law.peak_node_bytes


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_narrow_precisions_are_summed_and_counted_in_their_bytes(precision: Precision, on_ranks: OnRanks) -> None:
    asked = setup(2, precision, algorithms="recursive_doubling")
    for record, _ in on_ranks(2, run_plainly, asked):
        assert [(labels["size"], figures["sent_bytes"]) for figures, labels in record.taken[1::2]] == [
            ("36", 36),
            ("360", 360),
            ("3600", 3600),
        ]


def test_a_timed_call_makes_no_tensor(on_ranks: OnRanks) -> None:
    assert on_ranks(4, run_watched, setup(4)) == [set()] * 4


def test_a_wrong_result_is_said_with_its_size_rank_and_extent(on_ranks: OnRanks) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"^all_reduce by recursive_doubling of 36 bytes: 9 of 9 elements are wrong on rank 1;",
    ):
        on_ranks(2, run_meddled_with, setup(2, algorithms="recursive_doubling"))
