"""Checks of 2 and of 8 GPUs: links, every strategy on NCCL, overlap, bubbles, blame, clocks, counters, contexts."""

from __future__ import annotations

from statistics import median

import pytest

from collectors.metrics import probes, results
from collectors.traces.cross_rank.matching import match
from collectors.traces.timeline import Timeline, load
from tests.gpu.readings import RunReader, nvidia_smi, run, run_together, script
from tests.gpu.session import Session
from tests.gpu.test_first import drill

pytestmark = pytest.mark.timeout(60)
on_2_and_8 = pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.gpu2), pytest.param(8, marks=pytest.mark.gpu8)], indirect=True
)


_HOPPER = "NVIDIA/nccl-tests issue 212: 450 GB/s is the line rate, 370 reached, 480 with NVLink SHARP on 8 GPUs"
_BLACKWELL = (
    "NVIDIA/nccl issue 1807: 900 GB/s is the line rate; NCCL counts on 722 of it, all_reduce on 8 B200 reached 830"
)
LINKS = {
    "A100": (300, 200, "NVIDIA/nccl-tests issues 149 and 178: 200 to 208 GB/s of 300"),
    "H100": (450, 370, _HOPPER),
    "H200": (450, 370, f"{_HOPPER}; issue 272: 475 on 8 H200"),
    "B200": (900, 722, _BLACKWELL),
    "B300": (900, 722, f"{_BLACKWELL}; NVLink 5, too"),
}
"""By a part of the GPU's name: NVLink's line rate one way between a GPU and its switch in GB/s, the bus bandwidth that
nccl-tests published of collectives that no switch adds up, and the source of both."""
NOT_SXM = ("PCIe", "NVL", "40GB PCIE", "GH200")
"""GPUs of these names have other links."""
LEAST_OF_PUBLISHED = 0.6
"""Wide: other machines, fewer GPUs, and messages of 1 GiB where the figures are of up to 16."""
SWITCH_ADDS = 1.25
"""Times the line rate, which a switch that adds may reach by bus bandwidth's definition: 480 of 450 on 8, more on 2."""
BUBBLE_APART = 0.05
"""Share of the ranks' time. Source: docs/cost_models/pipeline.md, where the gap to the simulation is below 0.03."""
CLOCKS_NS = 5000
"""Ranks of one host have one clock. Source: on real traces of 8 V100 ends of a collective agree within 1 to 7 us."""
COUNTED = (0.98, 1.10)
"""Counted bytes over sent bytes: data without the protocol's own (nvml.h); NCCL's own flags are sent as well."""


@on_2_and_8
def test_bus_bandwidth(gpu: Session, ranks: int) -> None:
    """Large collectives on NVLink, compared with what nccl-tests published for its generation."""
    # Two sizes: from three on a link is fitted, which needs scipy.
    least, most = (65536, 262144) if gpu.is_rehearsal else (268435456, 1073741824)
    options = (
        "collectives=all_reduce,all_gather,reduce_scatter",
        f"min_bytes={least}",
        f"max_bytes={most}",
        "factor=4",
    )
    words = (word for option in options for word in ("--option", option))
    measured = run(gpu, "collectives", "--ranks", str(ranks), *words, "--steps", gpu.count(20))
    name = measured.summary.hardware
    link = next((link for part, link in LINKS.items() if part in name and not any(no in name for no in NOT_SXM)), None)
    for (collective, _, size), rate in measured.values(probes.RUN_COLLECTIVE_BUS_BANDWIDTH).items():
        if int(size) != most:
            continue
        what = f"{collective} of {most / 2**20:g} MiB"
        gpu.figure(what, rate / 1e9, "GB/s busbw")
        if link is not None:
            line_gb, published_gb, source = link
            low, high = LEAST_OF_PUBLISHED * published_gb, line_gb * (SWITCH_ADDS if collective == "all_reduce" else 1)
            gpu.within(what, rate / 1e9, low=low, high=high, unit="GB/s busbw", source=source)


GROUPS = {
    "data": ("ddp", "zero1", "zero2", "fsdp"),
    "pipelines": ("one_f_one_b", "interleaved", "zero_bubble"),
    "others": ("tensor_parallel", "ring_attention", "ulysses", "parameter_server"),
}
"""Strategies that run at the same time."""


@on_2_and_8
@pytest.mark.parametrize("group", GROUPS)
def test_strategies(gpu: Session, ranks: int, group: str) -> None:
    """Every strategy of one axis once on NCCL, tiny: it ends well, and counts what its law expects."""
    stages = ranks if group == "pipelines" else 2  # Interleaved stages hold two layers each.
    programs = {}
    for name in GROUPS[group]:
        # One rank of the parameter server is the server.
        batch = 4 * (ranks - 1) if name == "parameter_server" else 4 * ranks
        microbatches = 2 * ranks if group == "pipelines" else None
        programs[name] = _tiny(gpu, name, ranks, batch=batch, layers=2 * stages, microbatches=microbatches)
    run_together(gpu, programs)


@pytest.mark.gpu8
def test_meshes(gpu: Session) -> None:
    """Every strategy of several axes once on NCCL, tiny, as above."""
    microbatches = {"hsdp": None, "three_d": 4}
    programs = {
        name: _tiny(gpu, name, 8, batch=32, layers=4, microbatches=count) for name, count in microbatches.items()
    }
    run_together(gpu, programs)


def _tiny(gpu: Session, name: str, ranks: int, *, batch: int, layers: int, microbatches: int | None) -> tuple[str, ...]:
    shape = ("--layers", str(layers), "--heads", "8", "--kv-heads", "8", "--batch", str(batch))
    pipelined = () if microbatches is None else ("--option", f"microbatches={microbatches}")
    steps = ("--steps", gpu.count(5), "--trace-steps", "2")
    return gpu.observed(name, "--ranks", str(ranks), *shape, *steps, *pipelined)


@on_2_and_8
@pytest.mark.parametrize("fault", ["kill", "raise", "hang", "leave"])
def test_blame(gpu: Session, ranks: int, fault: str) -> None:
    """Fire drills on NCCL: the last rank is named, and its peers end."""
    drill(gpu, "ddp", fault, ranks)


@on_2_and_8
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "one_f_one_b"])
def test_ending(gpu: Session, ranks: int, strategy: str) -> None:
    """A snapshot is the last work that a rank queues, and its peers wait for it: nobody hangs."""
    words: tuple[str, ...] = (
        "--ranks",
        str(ranks),
        "--limit",
        "40",
        "--steps",
        gpu.count(5),
        "--trace-steps",
        "1",
        "--memory-snapshot",
    )
    if strategy == "one_f_one_b":
        words += ("--layers", str(max(4, ranks)), "--batch", str(4 * ranks), "--option", f"microbatches={2 * ranks}")
    (completed,) = gpu.programs.run(gpu.observed(strategy, *words))
    reader = RunReader(completed)
    source = "a rank waits for its device and leaves its group before it ends (ProcessGroupNCCL's warning)"
    gpu.holds("run", reader.is_done, seen=str(reader), expected="done", source=source)


@on_2_and_8
def test_clocks(gpu: Session, ranks: int) -> None:
    """How far the ends of each all_reduce lie apart on ranks of one host, whose clocks are taken as equal."""
    words = ("--ranks", str(ranks), "--precision", gpu.half, "--steps", "5", "--trace-steps", "3")
    folder = run(gpu, "ddp", *gpu.shape("125m", 4 * ranks), *words).folder
    timelines = [load(folder / f"rank{rank}.timeline.npz") for rank in range(ranks)]
    names = {timeline.names[number] for timeline in timelines for number in timeline.name}
    copies = ", ".join(sorted(name for name in names if name.startswith("Memcpy"))) or "none"
    gpu.figure("copies seen", copies, compare="a peer's memory: Memcpy PtoP, else DtoD")
    apart_ns = ends_apart_ns(timelines)
    assert apart_ns, f"no all_reduce is on all {ranks} ranks"
    source = f"median of {len(apart_ns)}, widest {max(apart_ns) / 1e3:.4g} us; real traces of 8 V100: 1 to 7 us"
    gpu.within("ends apart", median(apart_ns), high=CLOCKS_NS, unit="ns", source=source)


def ends_apart_ns(timelines: list[Timeline]) -> list[int]:
    """Return the time from the first to the last rank's end of each all_reduce on all ranks but a window's first."""
    by_rank = {timeline.rank: timeline for timeline in timelines}
    apart_ns = []
    for collective in match(timelines).matched:
        if collective.collective == "all_reduce" and not collective.is_first and len(collective.ranks) == len(by_rank):
            pairs = zip(collective.ranks, collective.rows, strict=True)
            ends_ns = [int(by_rank[rank].end_ns[row]) for rank, row in pairs]
            apart_ns.append(max(ends_ns) - min(ends_ns))
    return apart_ns


@on_2_and_8
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_overlap(gpu: Session, ranks: int, strategy: str) -> None:
    """How much communication runs while computation does."""
    words = ("--ranks", str(ranks), "--precision", gpu.half, "--steps", gpu.count(10), "--trace-steps", gpu.count(3))
    traced = run(gpu, strategy, *gpu.shape("1b", 4 * ranks), *words)
    gpu.figure("median step", 1e3 * traced.value(results.RUN_STEP_SECONDS), "ms")
    source = "both start communication before computing ends"
    gpu.within("overlap / communication", traced.value(results.RUN_OVERLAP_RATIO), low=0.1, source=source)
    for waiting in traced.values(results.RUN_WAITING_RATIO).values():
        gpu.figure("waiting / time in collectives", waiting)


@on_2_and_8
def test_bubble(gpu: Session, ranks: int) -> None:
    """The bubble of 1F1B, compared with the simulation of the measured stages, and with the schedule's law."""
    microbatches = 4 * ranks
    words = ("--ranks", str(ranks), "--precision", gpu.half, "--steps", gpu.count(10), "--trace-steps", gpu.count(3))
    shape = ("--batch", str(microbatches)) if gpu.is_rehearsal else gpu.shape("1b", microbatches)
    deep = ("--layers", str(max(4, ranks) if gpu.is_rehearsal else 3 * ranks))
    pipeline = run(gpu, "one_f_one_b", *shape, *deep, *words, "--option", f"microbatches={microbatches}")
    measured = pipeline.value(results.RUN_BUBBLE_RATIO, account="measured")
    expected = pipeline.value(results.RUN_BUBBLE_RATIO, account="expected")
    law = (ranks - 1) / (microbatches + ranks - 1)
    gpu.figure("bubble", measured, compare=f"(p-1)/(m+p-1) = {law:.4g} of equal stages")
    source = f"the schedule simulated with the measured stages: {expected:.4g}"
    gpu.within("measured less expected", measured - expected, low=-BUBBLE_APART, high=BUBBLE_APART, source=source)


@pytest.mark.gpu2
def test_counters(gpu: Session) -> None:
    """The GPUs' NVLink counters, compared with the bytes of messages of known size."""
    size = ("--size", "1000000", "--count", "3") if gpu.is_rehearsal else ("--size", str(1 << 30), "--count", "20")
    messages = script(gpu, "messages", *size)
    if not messages["counted_bytes"]:
        gpu.figure("NVLink counters", "none answers", compare="PCIe, or a driver that does not count")
    for direction, counted in messages["counted_bytes"].items():
        share, (low, high) = counted / messages["sent_bytes"], COUNTED
        gpu.within(
            f"counted {direction} / sent", share, low=low, high=high, source="bytes of data, nvml.h; KiB counters"
        )


@pytest.mark.gpu2
def test_contexts(gpu: Session) -> None:
    """On how many GPUs each rank of the parameter server has a context: its messages may open more."""
    most: dict[str, int] = {}
    words = ("--ranks", "2", "--steps", gpu.count(400), "--trace-steps", "0")
    with gpu.during(gpu.observed("parameter_server", *words)) as running:
        running.first_line()
        for _ in range(0 if gpu.is_rehearsal else 12):
            text = nvidia_smi(gpu, "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader")
            pids = [pid for pid, _ in {tuple(line.split(",")) for line in text.splitlines() if "," in line}]
            most |= {pid: max(most.get(pid, 0), pids.count(pid)) for pid in pids}
            gpu.programs.run(("sleep", "1"))
    if not most:
        gpu.figure("contexts of a process", "nvidia-smi shows no process", compare="as in a container")
        return
    gpu.within("contexts of a process, at most", max(most.values()), high=1, source="a rank has one GPU")
