"""What a supervisor reads of a rank: whether it failed, how far it came, and whether it still moved."""

from __future__ import annotations

import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from bench.case import Case
from bench.engines.node.supervisor import RankProcess, collective_timeout_s
from bench.rank.messages import RankOrder, TrialOrder
from collectors.rank.reached import Reached
from collectors.sample_log import Ended, Reading, Record, SampleLog
from tests.bench.made.examples import make_case
from tests.collectors.made_nccl_record import MadeRecord

NOBODY = 1 << 30
"""Above every number that Linux gives a process."""


class FakeProcess:
    """A process that is there until somebody says that it is gone."""

    def __init__(self, *, target: object, args: tuple[bytes, Connection], name: str, daemon: bool) -> None:
        self.pid, self.sentinel, self.exitcode = NOBODY, -1, 0
        self.is_gone = False

    def start(self) -> None:
        """Nothing is forked."""

    def is_alive(self) -> bool:
        return not self.is_gone


class FakeContext:
    """Of multiprocessing, as far as a rank is made from it."""

    def __init__(self) -> None:
        self.made: list[FakeProcess] = []

    def Pipe(self, duplex: bool = True) -> tuple[Connection, Connection]:  # noqa: N802  # Its own name.
        return Pipe(duplex)

    def Process(self, **arguments: Any) -> FakeProcess:  # noqa: N802  # Its own name.
        self.made.append(FakeProcess(**arguments))
        return self.made[-1]


class Watched:
    """A rank whose process, log and record are made by hand."""

    def __init__(self, folder: Path, case: Case) -> None:
        order = RankOrder(
            run="r",
            trial=0,
            rank=0,
            local_rank=0,
            case=case,
            folder=str(folder),
            store="",
            store_timeout_s=1.0,
            collective_timeout_s=1.0,
        )
        context = FakeContext()
        self.rank = RankProcess(context, order)  # type: ignore[arg-type]
        (self.process,) = context.made
        self._folder = folder
        self._log = SampleLog(folder / "rank0.jsonl")

    def write(self, *records: Record) -> None:
        for record in records:
            self._log.write(record)

    def leave_record(self, content: bytes) -> None:
        (self._folder / "rank0.flight.json").write_bytes(content)


@pytest.fixture
def on_gloo(tmp_path: Path) -> Watched:
    return Watched(tmp_path, make_case())


@pytest.fixture
def on_nccl(tmp_path: Path) -> Watched:
    return Watched(tmp_path, make_case(device="cuda", backend="nccl"))


def _ended(error: str | None = None) -> Ended:
    return Ended(trial=0, time_ns=1, step=3, error_type=None if error is None else "ValueError", error=error)


def test_a_rank_that_says_that_it_failed_has_failed_before_its_process_is_gone(on_nccl: Watched) -> None:
    """With a full GPU it takes the kernel seconds to take it down, and its peers hang meanwhile."""
    assert not on_nccl.rank.has_failed
    on_nccl.write(_ended("no"))
    assert on_nccl.rank.look()
    assert on_nccl.rank.has_failed


def test_a_rank_that_is_gone_without_a_word_has_failed_and_one_that_did_all_has_not(on_gloo: Watched) -> None:
    on_gloo.process.is_gone = True
    assert on_gloo.rank.has_failed
    on_gloo.write(_ended())
    assert not on_gloo.rank.has_failed


def test_a_record_of_nccl_tells_how_far_the_device_came(on_nccl: Watched) -> None:
    on_nccl.leave_record(MadeRecord().collective("nccl:all_reduce").json())
    on_nccl.rank.terminate()
    on_nccl.process.is_gone = True
    end = on_nccl.rank.end()
    assert end.is_hung
    assert end.reached == {"0": Reached(issued=1, started=None, completed=1)}


def test_a_rank_that_crashes_where_it_writes_its_stacks_has_hung(on_gloo: Watched) -> None:
    on_gloo.rank.ask_for_stacks()
    on_gloo.process.is_gone, on_gloo.process.exitcode = True, -11
    assert on_gloo.rank.end().is_hung


def test_a_record_of_gloo_tells_how_many_collectives_were_issued(on_gloo: Watched) -> None:
    on_gloo.leave_record(MadeRecord().collective("gloo:all_reduce", state="scheduled").json())
    on_gloo.process.is_gone = True
    end = on_gloo.rank.end()
    assert end.reached == {"0": Reached(issued=1, started=None, completed=None)}


@pytest.mark.parametrize("record", [None, b'{"entries": [{"rec'])
def test_a_record_that_is_missing_or_broken_tells_nothing(record: bytes | None, on_nccl: Watched) -> None:
    if record is not None:
        on_nccl.leave_record(record)
    on_nccl.process.is_gone = True
    end = on_nccl.rank.end()
    assert end.reached is None


def test_a_rank_that_moved_when_its_time_was_over_moved_however_long_its_end_took(on_nccl: Watched) -> None:
    now_ns = time.time_ns()
    on_nccl.write(
        *(
            Reading(trial=0, time_ns=now_ns - ago_ns, mark="measured", step=step, samples=[])
            for step, ago_ns in enumerate((20_000_000, 10_000_000, 0))
        )
    )
    on_nccl.rank.ask_for_stacks()
    time.sleep(2.2)  # Longer than any grace that a rank of such steps has.
    on_nccl.process.is_gone = True
    assert on_nccl.rank.end().is_moving


@pytest.mark.parametrize(("device", "backend", "is_before"), [("cpu", "gloo", True), ("cuda", "nccl", False)])
def test_nccls_watchdog_does_not_decide_before_the_limit(device: str, backend: str, is_before: bool) -> None:
    """It would end all ranks, also those that could tell whose device stands still."""
    case = make_case(device=device, backend=backend)
    order = TrialOrder(run="r", trial=0, case=case, limit_s=600)
    assert (collective_timeout_s(order) < order.limit_s) is is_before
