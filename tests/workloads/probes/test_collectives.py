"""The probe `collectives` records what its spec says, on right data, and passes no wrong result."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from collectors.metrics.probes import COLLECTIVE_SECONDS
from tests.support.ranks import OnRanks
from tests.workloads.probes.small_probes import FakeRecord, FakeStopwatch, SmallProbe, small_probe
from workloads.core.collectives import allocate
from workloads.core.mesh import make_mesh
from workloads.cost_models.communication import COLLECTIVES, ROOT, UNDIVIDED, counts
from workloads.cost_models.terms import Collective
from workloads.probes.collectives import check, probe
from workloads.probes.spec import CollectivesSpec, chosen_collectives
from workloads.spec import OptionValue, Precision


def run_probe(setup: SmallProbe) -> tuple[FakeRecord, list[tuple[int, int]]]:
    """What a rank of it records, and the warm-up calls and calls that it asked the stopwatch for."""
    record, stopwatch = FakeRecord(), FakeStopwatch(elapsed_s=(2.0,))
    probe(setup, make_mesh(CollectivesSpec().mesh(setup), "cpu"), record, stopwatch)
    return record, stopwatch.asked


def small(ranks: int, precision: Precision = "fp32") -> SmallProbe:
    """Two sizes, of which three ranks divide neither."""
    return small_probe(CollectivesSpec(), {"min_bytes": 1000, "max_bytes": 4096}, ranks=ranks, precision=precision)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_collective_and_size_is_recorded_once_on_each_rank(
    on_ranks: OnRanks, ranks: int, precision: Precision
) -> None:
    setup = small(ranks, precision)
    assert CollectivesSpec().refusals(setup) == []
    part = 16 * (1000 // ranks // 16)
    for record, timed in on_ranks(ranks, run_probe, setup):
        assert len(record.taken) == CollectivesSpec().measurements(setup)
        assert all(set(labels) == set(COLLECTIVE_SECONDS.labels) for _, labels in record.taken)
        assert all(figures == {"collective_s": 2.0} for figures, _ in record.taken)
        assert [(labels["collective"], labels["algorithm"], labels["size"]) for _, labels in record.taken[::2]] == [
            (collective, "library", "1000" if collective in UNDIVIDED else str(ranks * part))
            for collective in chosen_collectives(setup)
        ]
        assert timed == [(setup.warm_up, setup.steps)] * len(record.taken)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_call_that_does_nothing_is_seen(collective: Collective) -> None:
    """On the rank that gets something; what a root of broadcast gets it has already."""
    rank = 1 if collective == "broadcast" else ROOT
    counted = counts(collective, 1024, 2, 4)
    buffers = allocate(collective, counted, rank, dtype=torch.float32, device="cpu")
    elements = len(buffers.take)
    message = rf"^{collective} of 1024 bytes: \d+ of {elements} elements are wrong on rank {rank}; trust no result"
    with pytest.raises(RuntimeError, match=message):
        check(collective, lambda: None, buffers, rank=rank, ranks=2, text=f"{collective} of 1024 bytes")


def run_probe_beside_zeros(setup: SmallProbe) -> None:
    """The first rank runs the probe; the others join in with zeros, as if what they gave were lost."""
    if dist.get_rank() == ROOT:
        run_probe(setup)
        return
    make_mesh(CollectivesSpec().mesh(setup), "cpu")
    for _ in range(setup.warm_up + setup.steps + 1):
        dist.all_reduce(torch.zeros(256))


def test_a_wrong_result_ends_the_probe(on_ranks: OnRanks) -> None:
    options: dict[str, OptionValue] = {"collectives": "all_reduce", "min_bytes": 1024, "max_bytes": 1024}
    with pytest.raises(RuntimeError, match=r"^all_reduce of 1024 bytes: 256 of 256 elements are wrong on rank 0"):
        on_ranks(2, run_probe_beside_zeros, small_probe(CollectivesSpec(), options, ranks=2))
