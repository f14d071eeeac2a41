"""A recording replayed: values over time, laps, events, what is lost; and the recording that comes with the program."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pynvml
import pytest

from collectors.nvml.library import NVMLError, code_of
from collectors.nvml.recorder import AnswerTrack, BadRecording, DriverEvent, Hang, NodeRecording, load, save
from collectors.nvml.replay import RecordedNvml
from tests.collectors.nvml.nodes import FakeClock, a_gpu, a_node, eight_gpus


def _nvml(recording: NodeRecording, clock: FakeClock) -> RecordedNvml:
    nvml = RecordedNvml(recording, clock_s=clock.seconds, wait=lambda _: None)
    nvml.nvmlInit()
    return nvml


@pytest.mark.parametrize(("at_s", "value"), [(0.0, 10), (4.9, 10), (5.0, 30), (99.0, 30)])
def test_a_value_holds_until_the_next(at_s: float, value: int) -> None:
    assert AnswerTrack(at_s=[0.0, 5.0], values=[10, 30]).at(at_s) == value


@pytest.mark.parametrize(("at_s", "value"), [(0.0, 10), (2.5, 20), (5.0, 30), (99.0, 30)])
def test_a_line_goes_straight_from_value_to_value(at_s: float, value: int) -> None:
    assert AnswerTrack(at_s=[0.0, 5.0], values=[10, 30], is_line=True).at(at_s) == value


def test_a_counter_grows_on_in_the_next_lap_and_a_level_begins_anew() -> None:
    counter = AnswerTrack(at_s=[0.0, 5.0], values=[10, 30], is_line=True, is_counter=True)
    assert [counter.at(2.5, lap=lap) for lap in (0, 1, 2)] == [20, 40, 60]
    assert AnswerTrack(at_s=[0.0, 5.0], values=[10, 30], is_line=True).at(2.5, lap=2) == 20


def test_time_begins_with_the_start_of_nvml() -> None:
    clock = FakeClock(now_s=1000.0)
    gpu = a_gpu()
    gpu.tracks["nvmlDeviceGetPowerUsage"] = AnswerTrack(at_s=[0.0, 60.0], values=[1, 2])
    nvml = _nvml(a_node(gpu), clock)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetPowerUsage(handle) == 1
    clock.now_s += 60
    assert nvml.nvmlDeviceGetPowerUsage(handle) == 2


def test_a_question_that_was_refused_is_refused_with_its_code() -> None:
    nvml = _nvml(a_node(a_gpu(refusals={"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NO_PERMISSION})), FakeClock())
    with pytest.raises(NVMLError) as refusal:
        nvml.nvmlDeviceGetPowerUsage(nvml.nvmlDeviceGetHandleByIndex(0))
    assert code_of(refusal.value) == pynvml.NVML_ERROR_NO_PERMISSION


def test_events_come_once_each_in_order_and_again_in_the_next_lap() -> None:
    clock = FakeClock()
    events = [
        DriverEvent(at_s=10.0, kind=8, data=31),
        DriverEvent(at_s=5.0, kind=8, data=13),
        DriverEvent(at_s=5.0, kind=2, data=0),
    ]
    nvml = _nvml(a_node(a_gpu(events=events)), clock)
    listening = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), 8, listening)

    def heard() -> list[int]:
        found = []
        with suppress(pynvml.NVMLError_Timeout):
            while True:
                found.append(nvml.nvmlEventSetWait_v2(listening, 500).eventData)
        return found

    told = []
    for clock.now_s in (0.0, 6.0, 7.0, 12.0, 700.0):
        told.append(heard())
    assert told == [[], [13, 0], [], [31], [13, 0, 31]]


def test_events_of_gpus_that_are_not_listened_to_or_are_lost_by_then_are_not_told() -> None:
    clock = FakeClock()
    late = DriverEvent(at_s=20.0, kind=8, data=31)
    nvml = _nvml(a_node(a_gpu(events=[late]), a_gpu(events=[late], lost_from_s=10.0)), clock)
    listening = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(1), 8, listening)
    clock.now_s = 30.0
    with pytest.raises(pynvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(listening, 500)


def test_a_set_of_events_is_told_nothing_that_was_before_it() -> None:
    clock = FakeClock()
    nvml = _nvml(
        a_node(a_gpu(events=[DriverEvent(at_s=5.0, kind=8, data=13), DriverEvent(at_s=20.0, kind=8, data=31)])), clock
    )
    clock.now_s = 10.0
    listening = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), 8, listening)
    clock.now_s = 30.0
    assert nvml.nvmlEventSetWait_v2(listening, 500).eventData == 31


def test_a_question_hangs_from_the_time_on_that_was_recorded_until_it_is_over() -> None:
    clock, waited = FakeClock(now_s=10.0), list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        clock.now_s += seconds

    gpu = a_gpu(hang=Hang(from_s=20.0, until_s=21.0))
    nvml = RecordedNvml(a_node(gpu, a_gpu()), clock_s=clock.seconds, wait=wait)
    nvml.nvmlInit()
    hanging, other = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    for clock.now_s in (30.0, 630.0):  # The second is in the next lap.
        nvml.nvmlDeviceGetPowerUsage(other)
        assert waited == []
        nvml.nvmlDeviceGetPowerUsage(hanging)
        assert sum(waited) == pytest.approx(1.0, abs=0.11)
        waited.clear()


def test_a_question_that_hangs_is_let_go_at_the_end_of_nvml() -> None:
    clock, is_waiting = FakeClock(), threading.Event()
    gpu = a_gpu(hang=Hang(from_s=0.0, until_s=1.0))
    nvml = RecordedNvml(a_node(gpu), clock_s=clock.seconds, wait=lambda _: is_waiting.set())
    nvml.nvmlInit()
    refusals: list[int | None] = []

    def ask() -> None:
        try:
            nvml.nvmlDeviceGetHandleByIndex(0)
        except NVMLError as error:
            refusals.append(code_of(error))

    thread = threading.Thread(target=ask)
    thread.start()
    is_waiting.wait()
    nvml.nvmlShutdown()
    thread.join()
    assert refusals == [pynvml.NVML_ERROR_UNINITIALIZED]


def test_a_second_start_of_nvml_goes_on_where_the_recording_is() -> None:
    clock = FakeClock()
    nvml = _nvml(a_node(a_gpu(lost_from_s=100.0)), clock)
    clock.now_s = 100.0
    nvml.nvmlInit()
    with pytest.raises(NVMLError, match="lost"):
        nvml.nvmlDeviceGetHandleByIndex(0)


def test_a_level_begins_anew_in_the_next_lap() -> None:
    clock = FakeClock()
    gpu = a_gpu()
    gpu.tracks["nvmlDeviceGetPowerUsage"] = AnswerTrack(at_s=[0.0, 60.0], values=[1, 2])
    nvml = _nvml(a_node(gpu), clock)
    clock.now_s = 610.0
    assert nvml.nvmlDeviceGetPowerUsage(nvml.nvmlDeviceGetHandleByIndex(0)) == 1


def test_a_gpu_that_was_lost_stays_lost_in_the_next_lap() -> None:
    clock = FakeClock()
    nvml = _nvml(a_node(a_gpu(lost_from_s=100.0)), clock)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceGetPowerUsage(handle)
    for clock.now_s in (100.0, 650.0):
        with pytest.raises(NVMLError, match="lost"):
            nvml.nvmlDeviceGetPowerUsage(handle)


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(eight_gpus(), tmp_path / "node.json")
    assert load(tmp_path / "node.json") == eight_gpus()


@pytest.mark.parametrize("text", ["", "{}", '{"gpus": 3}'])
def test_a_file_that_is_no_recording_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(BadRecording, match=r"bad\.json: not a recording of NVML"):
        load(tmp_path / "bad.json")


def test_a_recording_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text('{"schema_version": 9, "note": "", "duration_s": 1, "system": {}, "gpus": []}')
    with pytest.raises(BadRecording, match="schema version 9, this program reads up to 1"):
        load(tmp_path / "new.json")


def test_within_its_duration_everything_happens() -> None:
    gpus = eight_gpus().gpus
    assert {event.data for gpu in gpus for event in gpu.events} == {0, 63, 94, 79}
    assert [gpu.lost_from_s for gpu in gpus].count(None) == 7
    (hang,) = (gpu.hang for gpu in gpus if gpu.hang is not None)
    assert hang.until_s - hang.from_s > 6 * 60, "an alert that is held for five minutes is not seen"
    assert all(track.at_s == sorted(track.at_s) for gpu in gpus for track in gpu.tracks.values())
    assert max(at_s for gpu in gpus for track in gpu.tracks.values() for at_s in track.at_s) <= eight_gpus().duration_s
