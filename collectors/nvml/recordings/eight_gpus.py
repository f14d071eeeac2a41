"""Writes the recording of an invented node: eight GPUs, and all that happens to them within ten minutes.

    python -m collectors.nvml.recordings.eight_gpus

The load is that of an H200 (driver 590.48.01, nvidia-smi under gpu_burn); the course of events is made up. All GPUs
train; GPU 2 runs into its power limit, GPU 3 grows hot and slows down, the driver of GPU 4 hangs, GPU 5 has an
uncorrected memory error and waits for a reset, GPU 6 falls off the bus, GPU 7 is split by MIG. Of the 18 NVLinks of a
GPU the first two report their own bytes.

Alerts on the agent itself (a collector that is late or has failed, an agent that is gone) do not fire here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
from pynvml import NVML_ERROR_NOT_SUPPORTED

from collectors.nvml.fields import ALL_LINKS
from collectors.nvml.recorder import (
    EIGHT_GPUS,
    AnswerTrack,
    DriverEvent,
    Hang,
    NodeRecording,
    RecordedGpu,
    field_question,
    question_of,
    save,
)

# Tracks computed from the load of a GPU over time.

Course = list[tuple[float, float]]
"""(time in seconds, share of the full load); between two points the load changes linearly."""


def fields(values: dict[int, int]) -> dict[str, AnswerTrack]:
    """Return tracks of fields with constant values, by field number."""
    return {field_question(number, 0): always(value) for number, value in values.items()}


def always(value: Any) -> AnswerTrack:
    """Return the track of one constant value."""
    return AnswerTrack(at_s=[0.0], values=[value])


def at(*points: tuple[float, Any], is_line: bool = False, is_counter: bool = False) -> AnswerTrack:
    """Return a track of (time in seconds, value) points."""
    return AnswerTrack(
        at_s=[float(at_s) for at_s, _ in points],
        values=[value for _, value in points],
        is_line=is_line,
        is_counter=is_counter,
    )


def times(full: float) -> Callable[[float], float]:
    """Return a function from load to that share of the full value, to two decimals."""
    return lambda load: round(full * load, 2)


def straight(course: Course, value: Callable[[float], Any]) -> AnswerTrack:
    """Return a track that interpolates between the values at the course's points."""
    return at(*((at_s, value(load)) for at_s, load in course), is_line=True)


def stepped(course: Course, value: Callable[[float], Any]) -> AnswerTrack:
    """Return a track whose values hold until the course's next point; repeated values are left out."""
    values = [(at_s, value(load)) for at_s, load in course]
    changes = [values[0], *(later for earlier, later in pairwise(values) if later[1] != earlier[1])]
    return at(*changes)


def grown(course: Course, rate: Callable[[float], float], *, begun: int) -> AnswerTrack:
    """Return a counter's track: the integral of a rate per second over the course, by the trapezoidal rule."""
    points: list[tuple[float, int]] = [(course[0][0], begun)]
    count = float(begun)
    for (earlier_s, earlier), (later_s, later) in pairwise(course):
        count += (rate(earlier) + rate(later)) / 2 * (later_s - earlier_s)
        points.append((later_s, round(count)))
    return at(*points, is_line=True, is_counter=True)


DURATION_S = 600.0
_TOTAL_BYTES, _RESERVED_BYTES = 150_754_820_096, 643_825_664
_LINKS, _TOLD_LINKS = 18, 2
_NVLINK_BYTES_PER_SECOND = 210e9
_NVLINK_FIELDS = (138, 139)
_EVENT_KINDS = 0x1 | 0x2 | 0x8
_POWER_MW = (76_250, 627_400)
_POWER_LIMIT_MW = 700_000
_HOT_S, _COOL_S, _BROKEN_S, _LOST_S = 240.0, 360.0, 300.0, 420.0
_HANG_S = (125.0, 515.0)
"""Long enough for an alert with a hold of five minutes to fire, after a scrape and an evaluation."""


def eight_gpus() -> NodeRecording:
    """Return the recording, always the same."""
    return NodeRecording(
        note="made by collectors/nvml/recordings/eight_gpus.py, not measured",
        duration_s=DURATION_S,
        system={
            "nvmlSystemGetDriverVersion": always("590.48.01"),
            "nvmlSystemGetCudaDriverVersion": always(13010),
        },
        gpus=[_gpu(index) for index in range(8)],
    )


def _gpu(index: int) -> RecordedGpu:
    course = _course(index)
    gpu = RecordedGpu(
        tracks={**_identity(index), **_use(index, course), **_counters(course), **_monitors(course), **_health()},
        latencies_us=_latencies(),
        event_kinds=_EVENT_KINDS,
    )
    story = {2: _capped, 3: _hot, 4: _hanging, 5: _broken, 6: _lost, 7: _split}.get(index)
    return gpu if story is None else story(gpu)


def _course(index: int) -> Course:
    """Return the load: idle, then training steps of slightly different load, with a pause for a checkpoint."""
    course: Course = [(0.0, 0.0), (20.0 + index, 0.0)]
    for number, at_s in enumerate(range(30, 580, 30)):
        wobble = (7 * number + 3 * index) % 10 / 100
        course.append((at_s + index / 10, 0.3 if at_s == 390 else 1.0 - wobble))
    return [*course, (585.0, 0.0), (DURATION_S, 0.0)]


def _identity(index: int) -> dict[str, AnswerTrack]:
    return {
        "nvmlDeviceGetName": always("NVIDIA H200"),
        "nvmlDeviceGetUUID": always(f"GPU-00000000-0000-0000-0000-{index:012d}"),
        "nvmlDeviceGetSerial": always(f"{index:013d}"),
        "nvmlDeviceGetPciInfo_v3": always({"busId": f"00000000:{0x10 + 0x11 * index:02X}:00.0"}),
        "nvmlDeviceGetVbiosVersion": always("96.00.BC.00.02"),
        "nvmlDeviceGetPersistenceMode": always(1),
        "nvmlDeviceGetNumaNodeId": always(index // 4),
        "nvmlDeviceGetMigMode": always([0, 0]),
        "nvmlDeviceGetMaxPcieLinkGeneration": always(5),
        "nvmlDeviceGetMaxPcieLinkWidth": always(16),
        "nvmlDeviceGetCurrPcieLinkGeneration": always(5),
        "nvmlDeviceGetCurrPcieLinkWidth": always(16),
        **{question_of("nvmlDeviceGetNvLinkState", link): always(1) for link in range(_LINKS)},
        **{question_of("nvmlDeviceGetNvLinkVersion", link): always(6) for link in range(_LINKS)},
        "nvmlDeviceGetGpuFabricInfoV": always({"state": 3, "cliqueId": 0}),
        **{
            question_of("nvmlDeviceGetMaxClockInfo", clock): always(mhz)
            for clock, mhz in ((1, 1980), (2, 3201), (3, 1545))
        },
        **fields({187: 200_000, 188: _POWER_LIMIT_MW, 189: _POWER_LIMIT_MW, 190: _POWER_LIMIT_MW}),
    }


def _use(index: int, course: Course) -> dict[str, AnswerTrack]:
    idle_mw, full_mw = _POWER_MW
    return {
        "nvmlDeviceGetUtilizationRates": stepped(
            course, lambda load: {"gpu": 100 if load > 0 else 0, "memory": round(45 * load)}
        ),
        "nvmlDeviceGetEncoderUtilization": always([0, 167_000]),
        "nvmlDeviceGetDecoderUtilization": always([0, 167_000]),
        "nvmlDeviceGetMemoryInfo": stepped(course, lambda load: _memory(116_820_000_000 if load > 0 else 0)),
        "nvmlDeviceGetBAR1MemoryInfo": always({"bar1Total": 262_144 << 20, "bar1Used": 2 << 20}),
        "nvmlDeviceGetComputeRunningProcesses_v3": stepped(
            course, lambda load: [{"pid": 4000 + index, "usedGpuMemory": 116_820_000_000}] if load > 0 else []
        ),
        "nvmlDeviceGetProcessUtilization": stepped(
            course, lambda load: [{"pid": 4000 + index, "smUtil": round(92 * load)}] if load > 0 else []
        ),
        "nvmlDeviceGetPowerUsage": straight(course, lambda load: round(idle_mw + (full_mw - idle_mw) * load)),
        field_question(186, 0): straight(course, lambda load: round(idle_mw + (full_mw - idle_mw) * load * 0.998)),
        "nvmlDeviceGetTemperature(0)": straight(course, lambda load: round(33 + 19 * load)),
        field_question(82, 0): straight(course, lambda load: round(31 + 9 * load)),
        "nvmlDeviceGetMarginTemperature": straight(course, lambda load: round(54 - 19 * load)),
        "nvmlDeviceGetClockInfo(1)": stepped(course, lambda load: 1980 if load > 0 else 345),
        "nvmlDeviceGetClockInfo(2)": always(3201),
        "nvmlDeviceGetClockInfo(3)": stepped(course, lambda load: 1545 if load > 0 else 660),
        "nvmlDeviceGetCurrentClocksEventReasons": stepped(course, lambda load: 0 if load > 0 else 1),
    }


def _counters(course: Course) -> dict[str, AnswerTrack]:
    idle_mw, full_mw = _POWER_MW
    tracks = {
        83: grown(course, lambda load: idle_mw + (full_mw - idle_mw) * load, begun=5_000_000_000_125),
        197: grown(course, lambda load: 1.1e9 * load, begun=1 << 40),
        198: grown(course, lambda load: 2.3e9 * load, begun=1 << 41),
    }
    return {
        **{field_question(number, 0): track for number, track in tracks.items()},
        **{field_question(number, ALL_LINKS): _nvlink(course, _LINKS) for number in _NVLINK_FIELDS},
        **{
            field_question(number, link): _nvlink(course, 1) for number in _NVLINK_FIELDS for link in range(_TOLD_LINKS)
        },
        **fields({74: 0, 76: 0, 77: 0, 79: 0, 269: 0, 270: 0, 271: 0}),
    }


def _nvlink(course: Course, links: int) -> AnswerTrack:
    """Return the counter, in KiB, of what so many links have carried in one direction."""
    full = _NVLINK_BYTES_PER_SECOND / 1024 / _LINKS * links
    return grown(course, lambda load: full * load, begun=(1 << 36) // _LINKS * links)


def _monitors(course: Course) -> dict[str, AnswerTrack]:
    shares = {1: 99.2, 2: 91.5, 3: 31.4, 4: 24.0, 5: 61.8, 6: 0.0, 7: 61.8, 9: 0.0, 10: 44.6, 11: 0.0, 12: 9.7, 13: 0.3}
    rates = {20: 1.1e9, 21: 2.3e9, 60: _NVLINK_BYTES_PER_SECOND, 61: _NVLINK_BYTES_PER_SECOND}
    return {
        "nvmlGpmQueryDeviceSupport": always({"isSupportedDevice": 1}),
        "nvmlGpmSampleGet": always(0),
        **{question_of("gpm", number): straight(course, times(full)) for number, full in shares.items()},
        **{question_of("gpm", number): straight(course, times(rate / (1 << 20))) for number, rate in rates.items()},
    }


def _health() -> dict[str, AnswerTrack]:
    """Return the error counters, all 0."""
    numbers = (3, 4, 5, 6, 94, 173, 179, 180, 38, 45, 52, 59, 160, 142, 143, 144, 145, 230)
    return fields(dict.fromkeys(numbers, 0))


def _latencies() -> dict[str, int]:
    """Return latencies of fields on GPUs like H200, by public reports; energy and PCIe ask the GPU, others a cache."""
    dear = {83: 2400, 197: 310, 198: 310, 82: 60, 138: 120, 139: 120}
    return {field_question(number, ALL_LINKS if number in _NVLINK_FIELDS else 0): cost for number, cost in dear.items()}


def _capped(gpu: RecordedGpu) -> RecordedGpu:
    """Lower its power limit, so that it runs at the limit."""
    capped = {
        **fields({190: 450_000}),
        "nvmlDeviceGetPowerUsage": at((0, 76_250), (30, 449_800), (585, 449_800), (595, 76_250), is_line=True),
        field_question(186, 0): at((0, 76_250), (30, 450_100), (585, 450_100), (595, 76_250), is_line=True),
        field_question(74, 0): at((0, 0), (30, 0), (585, 540 * 10**9), is_line=True, is_counter=True),
        "nvmlDeviceGetCurrentClocksEventReasons": at((0, 0x1), (30, 0x4), (585, 0x1)),
        "nvmlDeviceGetClockInfo(1)": at((0, 345), (30, 1620), (300, 1605), (585, 345)),
    }
    return _with(gpu, tracks=capped)


def _hot(gpu: RecordedGpu) -> RecordedGpu:
    """Let its cooling fail for two minutes."""
    held_ns = round((_COOL_S - _HOT_S) * 0.8e9)
    celsius = [(0, 33), (30, 52), (180, 52), (_HOT_S, 87), (_COOL_S, 86), (420, 52), (600, 33)]
    margin = [(at_s, 87 - degrees) for at_s, degrees in celsius]
    reasons = [(0, 0x1), (30, 0x0), (_HOT_S, 0x20 | 0x40), (_COOL_S, 0x0), (585, 0x1)]
    hot = {
        "nvmlDeviceGetTemperature(0)": at(*celsius, is_line=True),
        "nvmlDeviceGetMarginTemperature": at(*margin, is_line=True),
        "nvmlDeviceGetClockInfo(1)": at((0, 345), (30, 1980), (_HOT_S, 1200), (_COOL_S, 1980), (585, 345)),
        "nvmlDeviceGetCurrentClocksEventReasons": at(*reasons),
        field_question(269, 0): at((0, 0), (_HOT_S, 0), (_COOL_S, held_ns), is_line=True, is_counter=True),
        field_question(270, 0): at((0, 0), (_HOT_S, 0), (_COOL_S, held_ns // 2), is_line=True, is_counter=True),
    }
    return _with(gpu, tracks=hot)


def _hanging(gpu: RecordedGpu) -> RecordedGpu:
    """Let its driver hang for a while, then recover."""
    from_s, until_s = _HANG_S
    return _with(gpu, hang=Hang(from_s=from_s, until_s=until_s))


def _broken(gpu: RecordedGpu) -> RecordedGpu:
    """Break a row of its memory: XID 63 says that it is remapped, after the next reset. Its sensor answers nonsense."""
    broken = {
        **{field_question(number, 0): at((0, 0), (_BROKEN_S, 1), is_counter=True) for number in (4, 6, 143)},
        **{field_question(number, 0): at((0, 0), (_BROKEN_S, 1)) for number in (144, 230)},
        field_question(3, 0): at((0, 0), (180, 1), (250, 3), is_counter=True),
        field_question(5, 0): at((0, 12), (180, 13), (250, 15), is_counter=True),
        field_question(82, 0): at((0, 31), (30, 40), (_BROKEN_S, 2**32 - 1), (_BROKEN_S + 120, 40), (585, 31)),
    }
    events = [
        DriverEvent(at_s=_BROKEN_S, kind=0x2, data=0),
        DriverEvent(at_s=_BROKEN_S, kind=0x8, data=63),
        DriverEvent(at_s=_BROKEN_S + 1, kind=0x8, data=94),
    ]
    return _with(gpu, tracks=broken, events=events)


def _lost(gpu: RecordedGpu) -> RecordedGpu:
    """Let it fall off the bus."""
    return _with(gpu, events=[DriverEvent(at_s=_LOST_S, kind=0x8, data=79)], lost_from_s=_LOST_S)


def _split(gpu: RecordedGpu) -> RecordedGpu:
    """Split it by MIG into two instances, which takes utilization, NVLink and GPM away."""
    without = ("Utilization", "NvLink", "Gpm", "gpm", "GpuFabric")
    kept = {name: track for name, track in gpu.tracks.items() if not any(word in name for word in without)}
    kept["nvmlDeviceGetMigMode"] = always([1, 1])
    kept["nvmlDeviceGetMaxMigDeviceCount"] = always(7)
    kept["nvmlDeviceGetComputeRunningProcesses_v3"] = always([])
    return msgspec.structs.replace(
        gpu,
        tracks=kept,
        refusals={"nvmlDeviceGetUtilizationRates": NVML_ERROR_NOT_SUPPORTED},
        instances={str(place): _instance(place) for place in range(2)},
    )


def _instance(place: int) -> RecordedGpu:
    total = 75_161_927_680
    used = at((0, 0), (40 + place, 40_000_000_000))
    memory = [{"total": total, "reserved": 0, "free": total - one, "used": one} for one in used.values]
    process = {"pid": 5000 + place, "usedGpuMemory": 40_000_000_000}
    return RecordedGpu(
        tracks={
            "nvmlDeviceGetName": always("NVIDIA H200 MIG 3g.71gb"),
            "nvmlDeviceGetUUID": always(f"MIG-00000000-0000-0000-0000-{place:012d}"),
            "nvmlDeviceGetGpuInstanceId": always(place + 1),
            "nvmlDeviceGetComputeInstanceId": always(0),
            "nvmlDeviceGetMemoryInfo": AnswerTrack(at_s=used.at_s, values=memory),
            "nvmlDeviceGetComputeRunningProcesses_v3": AnswerTrack(at_s=used.at_s, values=[[], [process]]),
        }
    )


def _with(gpu: RecordedGpu, *, tracks: dict[str, AnswerTrack] | None = None, **changes: Any) -> RecordedGpu:
    return msgspec.structs.replace(gpu, tracks={**gpu.tracks, **(tracks or {})}, **changes)


def _memory(used: int) -> dict[str, int]:
    free = _TOTAL_BYTES - _RESERVED_BYTES - used
    return {"total": _TOTAL_BYTES, "reserved": _RESERVED_BYTES, "free": free, "used": _TOTAL_BYTES - free}


if __name__ == "__main__":
    save(eight_gpus(), EIGHT_GPUS)
