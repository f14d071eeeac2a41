"""The probe `pairs` measures each pair of a ring once, no rank in two at a time, and notices what came wrongly."""

from __future__ import annotations

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.probes.small_probes import FakeRecord, FakeStopwatch, IdleStopwatch, SmallProbe, small_probe
from workloads.core.mesh import make_mesh
from workloads.probes.collectives import probe_pairs
from workloads.probes.spec import PairsSpec, rounds
from workloads.spec import Precision

SIZE_BYTES = 4096


def _probe(setup: SmallProbe, stopwatch: FakeStopwatch) -> FakeRecord:
    record = FakeRecord()
    probe_pairs(setup, make_mesh(PairsSpec().mesh(setup), "cpu"), record, stopwatch)
    return record


def _probed(setup: SmallProbe) -> tuple[FakeRecord, list[tuple[int, int]]]:
    stopwatch = FakeStopwatch()
    return _probe(setup, stopwatch), stopwatch.asked


@pytest.mark.parametrize(
    ("ranks", "stride"), [(2, 1), (3, 1), (4, 1), (5, 1), (8, 1), (6, 3), (6, 2), (12, 4), (64, 8)]
)
def test_rounds_have_each_pair_once_and_no_rank_twice_at_a_time(ranks: int, stride: int) -> None:
    found = rounds(ranks, stride)
    pairs = [pair for together in found for pair in together]
    places = ranks // stride
    assert len(pairs) == len(set(pairs)) == (places if places > 2 else 1) * stride
    for together in found:
        busy = [rank for pair in together for rank in pair]
        assert len(busy) == len(set(busy))
    for first, second in pairs:
        assert first < second
        assert first % stride == second % stride
        assert (second - first) // stride in (1, places - 1)
    assert len(found) == {2: 1}.get(places, 2 + places % 2)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_both_ranks_of_a_pair_record_it_and_all_ranks_time_each_round(on_ranks: OnRanks, ranks: int) -> None:
    setup = small_probe(PairsSpec(), {"size_bytes": SIZE_BYTES}, ranks=ranks)
    for rank, (record, asked) in enumerate(on_ranks(ranks, _probed, setup)):
        expected = [pair for together in rounds(ranks, 1) for pair in together if rank in pair]
        assert [labels for _, labels in record.taken] == [
            {"pair": f"{first}-{second}", "size": "4096"} for first, second in expected
        ]
        assert all(figures.keys() == {"pair_s"} for figures, _ in record.taken)
        assert len(record.taken) == PairsSpec().measurements(setup)
        assert asked == [(setup.warm_up, setup.steps)] * len(rounds(ranks, 1))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_comes_is_right_in_every_precision(on_ranks: OnRanks, precision: Precision) -> None:
    on_ranks(2, _probed, small_probe(PairsSpec(), {"size_bytes": SIZE_BYTES}, ranks=2, precision=precision))


def _probed_idly(setup: SmallProbe) -> str:
    try:
        _probe(setup, IdleStopwatch())
    except RuntimeError as error:
        return str(error)
    return "nothing"


def test_an_exchange_that_was_never_made_is_noticed(on_ranks: OnRanks) -> None:
    said = on_ranks(2, _probed_idly, small_probe(PairsSpec(), {"size_bytes": SIZE_BYTES}, ranks=2))
    assert said[1].startswith("rank 1 did not get what rank 0 sent in 4096 bytes")


@pytest.mark.parametrize(
    ("options", "ranks", "refused"),
    [
        ({"stride": 3}, 4, "option stride is 3 and ranks is 4; ranks may be 6, 9, 12 and so on"),
        ({"stride": 4}, 4, "option stride is 4 and ranks is 4; ranks may be 8, 12, 16 and so on"),
        (
            {"size_bytes": 1022},
            2,
            "option size_bytes is 1022, which is not a multiple of 4, the bytes of an element in fp32; 1024 would fit",
        ),
    ],
)
def test_what_makes_no_ring_is_refused(options: dict[str, int], ranks: int, refused: str) -> None:
    assert PairsSpec().refusals(small_probe(PairsSpec(), options, ranks=ranks)) == [refused]
