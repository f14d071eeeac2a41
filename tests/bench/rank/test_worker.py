"""What a rank does at its supervisor's word, and when that is gone."""

from __future__ import annotations

from multiprocessing import Pipe
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.rank import worker
from bench.rank.gpu_of_rank import Binding
from bench.rank.messages import ABORT, DUMP
from bench.rank.worker import obey_supervisor
from collectors.files import sync_folder
from collectors.sample_log import Ended, SampleLog, read
from tests.bench.made.examples import make_probe
from tests.bench.rank.test_joining import make_order
from tests.collectors.files_and_sockets.simulated_disk import SimulatedDisk


def _minded(*messages: bytes, broken: str = "") -> list[str]:
    """What the rank did, in order. broken: what fails."""
    done: list[str] = []

    def do(what: str) -> None:
        done.append(what)
        if what == broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    ours, theirs = Pipe()
    for message in messages:
        ours.send_bytes(message)
    ours.close()
    obey_supervisor(theirs, dump=lambda: do("dump"), abort=lambda: do("abort"), end=lambda: do("end"))
    return done


def test_a_rank_whose_supervisor_is_gone_ends_its_group() -> None:
    assert _minded() == ["end"]


def test_communicators_are_aborted_before_the_rank_is_killed_and_nothing_is_heard_after_that() -> None:
    assert _minded(DUMP, ABORT, DUMP) == ["dump", "abort", "end"]


@pytest.mark.parametrize("broken", ["dump", "abort"])
def test_a_rank_goes_on_minding_its_supervisor_though_its_device_cannot_be_asked(
    broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _minded(DUMP, DUMP, ABORT, broken=broken) == ["dump", "dump", "abort", "end"]
    assert "an illegal memory access" in capsys.readouterr().err


@pytest.mark.parametrize("error", [None, RuntimeError("Connection closed by peer")], ids=["done", "failed"])
def test_a_rank_leaves_when_its_whole_log_is_on_the_disk(
    error: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, left_behind = tmp_path / "rank0.jsonl", []
    disk = SimulatedDisk(monkeypatch)

    def probe(*_: object) -> None:
        if error is not None:
            raise error

    def leave(*_: object) -> None:
        sync_folder(tmp_path)
        left_behind.append(disk.after_power_loss(log))

    monkeypatch.setattr(worker, "run_probe", probe)
    monkeypatch.setattr(worker, "dump_flight_record", lambda *_, **__: None)
    monkeypatch.setattr(worker, "give_up", leave)
    order = replace(make_order(tmp_path, rank=0, device="cpu", backend="gloo"), case=make_probe())
    code = worker.work(order, SampleLog(log), Binding())
    if error is None:
        leave()
    assert code == (0 if error is None else 1)
    assert left_behind == [log.read_bytes()]
    assert isinstance(read(log).records[-1], Ended)
