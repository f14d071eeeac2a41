"""What a machine answered is written down, and answers the same when it is replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pynvml
import pytest

from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Sample
from collectors.nvml.library import Nvml
from collectors.nvml.recorder import NodeRecording, load, record, save
from tests.collectors.nvml.nodes import FakeClock, a_gpu, a_node, eight_gpus, opened, replayed

SECONDS = 30
OF_READING = {
    gpu_health_metrics.GPU_CALL_SECONDS.name,
    gpu_health_metrics.GPU_CALLS.name,
    gpu_health_metrics.GPU_AGE_SECONDS.name,
}


def _record(nvml: Nvml, clock: FakeClock) -> NodeRecording:
    def wait(seconds: float) -> None:
        clock.now_s += seconds

    return record(nvml, seconds=SECONDS, note="a test", clock_s=clock.seconds, wait=wait)


def _read(recording: NodeRecording) -> list[list[Sample]]:
    clock = FakeClock()
    read = []
    with opened(replayed(recording, clock), clock) as collector:
        for beat in range(SECONDS):
            clock.now_s = float(beat)
            read.append([one for one in collector.read() if one.metric not in OF_READING])
    return read


@pytest.mark.parametrize("index", [0, 5, 7], ids=["healthy", "broken", "split"])
def test_a_recording_of_a_replay_replays_alike(index: int, tmp_path: Path) -> None:
    clock = FakeClock()
    node = a_node(eight_gpus().gpus[index])
    save(_record(replayed(node, clock), clock), tmp_path / "again.json")
    for first, again in zip(_read(node), _read(load(tmp_path / "again.json")), strict=True):
        hidden = {"uuid", "serial"}
        assert _without(again, hidden) == _without(first, hidden)


def _without(samples: list[Sample], hidden: set[str]) -> list[tuple[str, dict[str, str], object]]:
    return [
        (one.metric, {k: v for k, v in one.labels.items() if k not in hidden}, pytest.approx(one.value, rel=1e-6))
        for one in samples
    ]


def test_what_names_the_machine_is_left_out() -> None:
    clock = FakeClock()
    gpu = a_gpu({"nvmlDeviceGetUUID": "GPU-secret", "nvmlDeviceGetSerial": "secret"})
    recording = _record(replayed(a_node(gpu), clock), clock)
    assert "secret" not in repr(recording)


def test_what_was_refused_and_who_was_lost_is_written_down() -> None:
    clock = FakeClock()
    gpu = a_gpu(refusals={"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NO_PERMISSION}, lost_from_s=12.0)
    (recorded,) = _record(replayed(a_node(gpu), clock), clock).gpus
    assert recorded.refusals["nvmlDeviceGetPowerUsage"] == pynvml.NVML_ERROR_NO_PERMISSION
    assert recorded.lost_from_s == 12.0


def test_gpus_are_written_in_their_order_and_one_that_is_lost_from_the_start_is_among_them() -> None:
    clock = FakeClock()
    node = a_node(a_gpu(lost_from_s=0.0), a_gpu({"nvmlDeviceGetPowerUsage": 71_000}))
    lost, other = _record(replayed(node, clock), clock).gpus
    assert lost.lost_from_s == 0.0
    assert other.tracks["nvmlDeviceGetPowerUsage"].values == [71_000]


def test_a_value_that_stays_is_written_once() -> None:
    clock = FakeClock()
    (recorded,) = _record(replayed(a_node(a_gpu()), clock), clock).gpus
    assert recorded.tracks["nvmlDeviceGetName"].at_s == [0.0]
    assert recorded.tracks["field(83)"].is_counter
    assert len(recorded.tracks["field(83)"].at_s) == SECONDS + 1


def test_a_refusal_of_all_monitors_is_written_down_and_fails_no_gpu() -> None:
    class Refusing:
        def __init__(self, nvml: Nvml) -> None:
            self._nvml = nvml

        def __getattr__(self, name: str) -> Any:
            return getattr(self._nvml, name)

        def nvmlGpmMetricsGet(self, wanted: Any) -> Any:  # noqa: N802  # NVML's own name.
            raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)

    clock = FakeClock()
    nvml = cast(Nvml, Refusing(replayed(a_node(a_gpu()), clock)))
    (recorded,) = _record(nvml, clock).gpus
    assert recorded.refusals["nvmlGpmMetricsGet"] == pynvml.NVML_ERROR_IN_USE
    assert len(recorded.tracks["field(83)"].at_s) == SECONDS + 1
