"""Traces of eight ranks, written and read again, give what was true of them to the nanosecond."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from collectors.traces.analyzers.collectives import collectives
from collectors.traces.analyzers.stragglers import stragglers
from collectors.traces.analyzers.summary import summary
from collectors.traces.reading.reader import read_trace
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.generated import Truth, generate
from tests.collectors.traces.made.written import write_trace

RANKS = 8
SLOW = 6


@cache
def _truth() -> Truth:
    return generate(2024, ranks=RANKS, steps=6, straggler=SLOW, cause="host", delay_ns=3_141_592)


@cache
def _read() -> tuple[Timeline, ...]:
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"rank{rank}.json.gz" for rank in range(RANKS)]
        for timeline, path in zip(_truth().timelines, paths, strict=True):
            write_trace(timeline, path)
        return tuple(read_trace(path) for path in paths)


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_written_trace_is_read_as_it_was(rank: int) -> None:
    written, read = _truth().timelines[rank], _read()[rank]
    assert read.rank == rank
    assert read.about.world_size == RANKS
    for column in ("kind", "start_ns", "end_ns", "stream", "correlation", "sequence"):
        assert getattr(read, column).tolist() == getattr(written, column).tolist()
    assert [read.names[name] for name in read.name] == [written.names[name] for name in written.name]
    assert [read.calls[call] for call in read.call if call >= 0] == [
        written.calls[call] for call in written.call if call >= 0
    ]


@pytest.mark.parametrize("rank", range(RANKS))
def test_the_division_of_each_rank_is_exact(rank: int) -> None:
    truth = _truth()
    share = next(share for share in summary(_read()).shares if share.rank == rank and share.stretch.part == "trace")
    found = share.breakdown
    assert found.compute_ns == truth.together_ns(rank, "compute")
    assert found.communication_ns == truth.together_ns(rank, "communication")
    assert found.overlap_ns == truth.together_ns(rank, "compute", "communication") > 0
    assert found.idle_ns == truth.idle_ns(rank) > 0
    assert found.step_ns == truth.together_ns(rank)
    assert share.work_ns["compute"] == truth.work_ns(rank, "compute") > found.compute_ns


@pytest.mark.parametrize("rank", range(1, RANKS))
def test_clocks_are_recovered_within_the_residual(rank: int) -> None:
    alignment = collectives(_read()).alignment
    assert alignment.residual_ns is not None
    assert alignment.residual_ns <= 5_000
    assert abs(alignment.offset_ns[rank] - _truth().offset_ns(rank)) <= alignment.residual_ns
    assert abs(_truth().offset_ns(rank)) > 1_000_000


def test_with_the_true_offsets_all_waits_and_transfers_are_exact() -> None:
    truth = _truth()
    read = [timeline.moved(-truth.ahead_ns[timeline.rank]) for timeline in _read()]
    found = {(time.matched.group, time.matched.sequence): time for time in collectives(read).times}
    assert len(found) == len(truth.collectives)
    for true in truth.collectives:
        time = found[true.group, true.sequence]
        last_ns = max(true.arrival_ns.values())
        assert dict(zip(time.matched.ranks, time.wait_ns, strict=True)) == {
            rank: last_ns - arrival_ns for rank, arrival_ns in true.arrival_ns.items()
        }
        assert dict(zip(time.matched.ranks, time.transfer_ns, strict=True)) == {
            rank: end_ns - last_ns for rank, end_ns in true.end_ns.items()
        }


def test_the_straggler_and_its_cause_are_named_whatever_the_clocks() -> None:
    found = stragglers(_read()).straggler
    assert found is not None
    assert (found.rank, found.cause, found.names[0]) == (SLOW, "host", "aten::nonzero")
