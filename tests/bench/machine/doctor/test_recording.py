"""A machine's NVML goes into a file whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import InfrastructureFailed, Misuse
from bench.machine.doctor.record import record_to
from collectors.nvml.fields import fields_of
from collectors.nvml.library import Nvml
from collectors.nvml.recorder import NodeRecording, field_question, load
from tests.collectors.nvml.nodes import FakeClock, FakeFault, a_gpu, a_node, replayed


def _record(
    node: NodeRecording,
    path: Path,
    said: list[str] | None = None,
    nvml: Nvml | None = None,
    *,
    per_link: bool = False,
) -> None:
    clock = FakeClock()

    def wait(seconds: float) -> None:
        clock.now_s += seconds

    record_to(
        path,
        5,
        per_link=per_link,
        on_notice=(list[str]() if said is None else said).append,
        nvml=nvml or replayed(node, clock),
        clock_s=clock.seconds,
        wait=wait,
    )


def test_a_recording_is_a_file_that_can_be_replayed(tmp_path: Path) -> None:
    path, said = tmp_path / "node.json", list[str]()
    _record(a_node(a_gpu(), a_gpu()), path, said)
    recording = load(path)
    assert (len(recording.gpus), recording.duration_s) == (2, 5)
    assert recording.note.startswith("5 s of a real machine, by `observatory doctor --record` ")
    assert said[0] == "recording NVML for 5 s"
    assert said[1].startswith(
        f"{path}: 2 GPUs, {path.stat().st_size:,} B; it contains process IDs, but no UUIDs or serial numbers"
    )
    assert list(tmp_path.iterdir()) == [path]


def _questions(path: Path) -> set[str]:
    gpu = load(path).gpus[0]
    return {*gpu.tracks, *gpu.refusals}


def test_each_nvlink_is_asked_for_where_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    _record(a_node(a_gpu()), path)
    usual = _questions(path)
    _record(a_node(a_gpu()), path, per_link=True)
    extra = {field_question(one.number, one.scope) for one in fields_of("590.48.01", per_link=1)} - usual
    assert extra
    assert extra <= _questions(path)


def test_a_node_without_gpus_has_nothing_to_record(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("older")
    with pytest.raises(InfrastructureFailed, match=r"^nothing to record: NVML: driver 590\.48\.01 shows no GPU"):
        _record(a_node(), tmp_path / "node.json")
    assert (tmp_path / "node.json").read_text() == "older"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_recording_that_is_interrupted_leaves_the_older_file(tmp_path: Path) -> None:
    path, clock = tmp_path / "node.json", FakeClock()
    path.write_text("older")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_to(
            path,
            5,
            on_notice=print,
            nvml=FakeFault(replayed(a_node(a_gpu()), clock)).spoilt,
            clock_s=clock.seconds,
            wait=interrupt,
        )
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    said = list[str]()
    with pytest.raises(Misuse, match=r"none/node.json: No such file or directory; choose a file in a folder that you"):
        _record(a_node(a_gpu()), tmp_path / "none" / "node.json", said)
    assert said == []
