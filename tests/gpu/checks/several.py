"""Checks of 2 and of 8 GPUs: links by nccl-tests' definitions, overlap, bubbles, blame on NCCL, clocks, counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collectors.metrics import probes as probes_metrics
from collectors.metrics import results
from tests.gpu.check import Finding, figure, holds, within
from tests.gpu.checks import faults
from tests.gpu.readings import Unreadable, nvidia_smi, ran, summary_of, told
from tests.gpu.session import Program, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What NVLink of a generation carries one way between a GPU and its switch, and what nccl-tests published of it.

    line_gb: line rate. published_gb: bus bandwidth of collectives that no switch adds up. source: of both.
    """

    line_gb: float
    published_gb: float
    source: str


_OF_HOPPER = "NVIDIA/nccl-tests issue 212: 450 GB/s is the line rate, 370 reached, 480 with NVLink SHARP on 8 GPUs"
LINKS: dict[str, Link] = {
    "A100": Link(line_gb=300, published_gb=200, source="NVIDIA/nccl-tests issues 149 and 178: 200 to 208 GB/s of 300"),
    "H100": Link(line_gb=450, published_gb=370, source=_OF_HOPPER),
    "H200": Link(line_gb=450, published_gb=370, source=f"{_OF_HOPPER}; issue 272: 475 on 8 H200"),
}
"""By a part of the GPU's name; one that is not here is told without a bound."""
NOT_SXM = ("PCIe", "NVL", "40GB PCIE", "GH200")
"""GPUs of these names, whose links are others."""
LEAST_OF_PUBLISHED = 0.6
"""Wide: other machines, fewer GPUs, and messages of 1 GiB where the figures are of up to 16."""
SWITCH_ADDS = 1.25
"""Times the line rate, which a switch that adds may reach by bus bandwidth's definition: 480 of 450 on 8, more on 2."""
BUBBLE_APART = 0.05
"""Share of the ranks' time. Source: docs/cost_models/pipeline.md, where the gap to the simulation is below 0.03."""
CLOCKS_NS = 5000
"""Ranks of one host have one clock. Source: on real traces of 8 V100 ends of a collective agree within 1 to 7 us."""
COUNTED = (0.98, 1.10)
"""Counted bytes over those sent: of data, without the protocol's own (nvml.h); NCCL's own flags are sent too."""


def bus_bandwidth(session: Session, *, ranks: int) -> Iterator[Finding]:
    """Large collectives on NVLink, beside what nccl-tests published for its generation."""
    # Two sizes: from three on a link is fitted, which needs scipy.
    sizes = (
        ("min_bytes=65536", "max_bytes=262144")
        if session.is_rehearsal
        else ("min_bytes=268435456", "max_bytes=1073741824")
    )
    words = ("--ranks", str(ranks), "--option", "collectives=all_reduce,all_gather,reduce_scatter")
    options = (word for size in (*sizes, "factor=4") for word in ("--option", size))
    (done,) = session.commands.run(session.observed("collectives", *words, *options, "--steps", session.count(20)))
    run = ran(done)
    rates = run.values(probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH)
    largest = max(int(size) for _, _, size in rates)
    name = run.summary.hardware
    link = next((one for part, one in LINKS.items() if part in name and not any(no in name for no in NOT_SXM)), None)
    for (collective, _, size), rate in rates.items():
        if int(size) != largest:
            continue
        what = f"{collective} of {largest / 2**20:g} MiB"
        if link is None or session.is_rehearsal:
            yield figure(what, rate / 1e9, unit="GB/s busbw", beside="no published figure is known for this hardware")
            continue
        high = SWITCH_ADDS * link.line_gb if collective == "all_reduce" else link.line_gb
        yield within(
            what,
            rate / 1e9,
            low=LEAST_OF_PUBLISHED * link.published_gb,
            high=high,
            unit="GB/s busbw",
            source=f"{LEAST_OF_PUBLISHED:g} of the published to the line rate; {link.source}",
        )


def overlap(session: Session, *, ranks: int) -> Iterator[Finding]:
    """How much communication of ddp and FSDP2 runs beside computing."""
    shape = session.shape("1b", 4 * ranks)
    words = (
        "--ranks",
        str(ranks),
        "--precision",
        session.half,
        "--steps",
        session.count(10),
        "--trace-steps",
        session.count(3),
    )
    for strategy in ("ddp", "fsdp"):
        (done,) = session.commands.run(session.observed(strategy, *shape, *words))
        run = ran(done)
        yield figure(f"{strategy}: median step", 1e3 * run.value(results.RUN_STEP_SECONDS), unit="ms")
        share = run.value(results.RUN_OVERLAP_RATIO)
        if session.is_rehearsal:
            yield figure(f"{strategy}: overlap / communication", share)
        else:
            yield within(
                f"{strategy}: overlap / communication",
                share,
                low=0.1,
                source="both start communication before computing ends",
            )
        waiting = run.values(results.RUN_WAITING_RATIO)
        if waiting:
            yield figure(f"{strategy}: waiting / time in collectives", next(iter(waiting.values())))


def bubble(session: Session, *, ranks: int) -> Iterator[Finding]:
    """The bubble of 1F1B, beside the simulation with the stage times that were measured, and the schedule's law."""
    microbatches = 4 * ranks
    words = (
        "--ranks",
        str(ranks),
        "--precision",
        session.half,
        "--steps",
        session.count(10),
        "--trace-steps",
        session.count(3),
    )
    options = ("--option", f"microbatches={microbatches}")
    shape = ("--batch", str(microbatches)) if session.is_rehearsal else session.shape("1b", microbatches)
    deep = ("--layers", str(max(4, ranks))) if session.is_rehearsal else ("--layers", str(3 * ranks))
    (done,) = session.commands.run(session.observed("one_f_one_b", *shape, *deep, *words, *options))
    run = ran(done)
    measured = run.value(results.RUN_BUBBLE_RATIO, account="measured")
    expected = run.value(results.RUN_BUBBLE_RATIO, account="expected")
    law = (ranks - 1) / (microbatches + ranks - 1)
    yield figure("bubble", measured, beside=f"(p-1)/(m+p-1) = {law:.4g} of equal stages")
    if session.is_rehearsal:
        yield figure("measured less expected", measured - expected)
    else:
        yield within(
            "measured less expected",
            measured - expected,
            low=-BUBBLE_APART,
            high=BUBBLE_APART,
            source=f"the schedule simulated with the measured stages: {expected:.4g}; BUBBLE_APART",
        )


def blame(session: Session, *, ranks: int) -> Iterator[Finding]:
    """Fire drills on NCCL: the last rank dies, raises, hangs, leaves; it is named, and its peers end."""
    yield from faults.drills(session, ranks=ranks, culprit=ranks - 1, faults=("kill", "raise", "hang", "leave"))


def ending(session: Session, *, ranks: int) -> Iterator[Finding]:
    """Ends under load: the last thing a rank does queues work that its peers wait for, and nobody hangs."""
    limit = ("--ranks", str(ranks), "--limit", "40", "--steps", session.count(5), "--trace-steps", "1")
    programs = {
        "ddp with a snapshot": session.observed("ddp", *limit, "--memory-snapshot"),
        "fsdp with a snapshot": session.observed("fsdp", *limit, "--memory-snapshot"),
        "pipeline with a snapshot": session.observed(
            "one_f_one_b",
            *limit,
            *("--layers", str(max(4, ranks)), "--batch", str(4 * ranks), "--option", f"microbatches={2 * ranks}"),
            "--memory-snapshot",
        ),
    }
    for name, done in zip(programs, session.commands.run(*programs.values()), strict=True):
        summary = summary_of(done)
        yield holds(
            name,
            done.code == 0 and summary.outcome == "done",
            seen=f"code {done.code}, {summary.outcome} in {done.elapsed_s:.0f} s"
            + (f": {summary.cause.text}" if summary.cause is not None else ""),
            expected="done",
            source="a rank waits for its device and leaves its group before it ends (ProcessGroupNCCL's warning)",
        )


def clocks(session: Session, *, ranks: int) -> Iterator[Finding]:
    """How far the ends of each all_reduce lie apart on ranks of one host, whose clocks are taken as one."""
    words = ("--ranks", str(ranks), "--precision", session.half, "--steps", "5", "--trace-steps", "3")
    (done,) = session.commands.run(session.observed("ddp", *session.shape("125m", 4 * ranks), *words))
    run = ran(done)
    files = ",".join(str(run.folder / f"rank{rank}.timeline.npz") for rank in range(ranks))
    (looked,) = session.commands.run(session.script("windows", "--files", files))
    found = told(looked)
    if found["apart_ns"] is None:
        raise Unreadable(f"no all_reduce is on all {ranks} ranks; copies seen: {', '.join(found['copies']) or 'none'}")
    text = f"median of {found['all_reduces']} all_reduces, widest {found['widest_apart_ns'] / 1e3:.4g} us"
    if session.is_rehearsal:
        yield figure("ends apart", found["apart_ns"] / 1e3, unit="us", beside=text)
    else:
        yield within(
            "ends apart",
            found["apart_ns"],
            high=CLOCKS_NS,
            unit="ns",
            source=f"{text}; real traces of 8 V100: 1 to 7 us",
        )
    yield figure("copies seen", ", ".join(found["copies"]) or "none", beside="a peer's memory: Memcpy PtoP, else DtoD")


def counters(session: Session) -> Iterator[Finding]:
    """The GPUs' NVLink counters beside the bytes of messages of known size."""
    size = ("--size", "1000000", "--count", "3") if session.is_rehearsal else ("--size", str(1 << 30), "--count", "20")
    (done,) = session.commands.run(session.script("messages", *size))
    found = told(done)
    if not found["counted_bytes"]:
        yield figure("NVLink counters", "none answers", beside="PCIe, or a driver that does not count")
        return
    low, high = COUNTED
    for direction, counted in found["counted_bytes"].items():
        yield within(
            f"counted {direction} / sent",
            counted / found["sent_bytes"],
            low=low,
            high=high,
            source="bytes of data, nvml.h; KiB counters",
        )


def strategies(session: Session, *, ranks: int) -> Iterator[Finding]:
    """Every strategy once on NCCL, tiny: it ends well, and counts what its law expects."""
    wide = ("--ranks", str(ranks), "--batch", str(4 * ranks), "--layers", str(max(4, 2 * ranks)))
    common = (*wide, "--heads", "8", "--kv-heads", "8", "--steps", session.count(5), "--trace-steps", "2")
    pipelined = ("--option", f"microbatches={2 * ranks}")
    more: dict[str, tuple[str, ...]] = {
        "one_f_one_b": pipelined,
        "interleaved": pipelined,
        "zero_bubble": pipelined,
        "three_d": pipelined,
        "parameter_server": ("--batch", str(4 * (ranks - 1))),  # One rank is the server.
    }
    names = ["ddp", "zero1", "zero2", "fsdp", "tensor_parallel", "one_f_one_b", "interleaved", "zero_bubble"]
    names += ["ring_attention", "ulysses", "parameter_server", *(["hsdp", "three_d"] if ranks >= 8 else [])]
    if session.is_rehearsal:
        names = ["fsdp", "ring_attention"]
    at_once = 4 if ranks == 2 else 2
    for first in range(0, len(names), at_once):
        some = names[first : first + at_once]
        programs = [session.observed(name, *common, *more.get(name, ())) for name in some]
        for name, done in zip(some, session.commands.run(*programs), strict=True):
            yield from faults.done_and_counted(name, done)


def fp16_sharded(session: Session, *, ranks: int) -> Iterator[Finding]:
    """FSDP2 in fp16, where an overflow on one rank must be seen by all."""
    words = ("--ranks", str(ranks), "--precision", "fp16", "--steps", session.count(20), "--trace-steps", "0")
    (done,) = session.commands.run(session.observed("fsdp", *words))
    run = ran(done)
    yield holds(
        "run", True, seen=f"done, loss {run.value(results.RUN_LOSS):.4g}", expected="done", source="exit code 0"
    )


def contexts(session: Session) -> Iterator[Finding]:
    """On how many GPUs each rank of the parameter server has a context: its messages may open more."""
    program = session.observed("parameter_server", "--ranks", "2", "--steps", session.count(400), "--trace-steps", "0")
    most: dict[float, int] = {}
    with session.beside(program) as running:
        running.first_line()
        for _ in range(1 if session.is_rehearsal else 12):
            if not session.is_rehearsal:
                query = ("--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader")
                for pid, count in contexts_by_process(nvidia_smi(session.commands, *query)).items():
                    most[pid] = max(most.get(pid, 0), count)
            session.commands.run(Program(("sleep", "1")))
    if not most:
        yield figure("contexts of a process", "nvidia-smi tells of no process", beside="so in a container")
        return
    yield within("contexts of a process, at most", max(most.values()), high=1, source="a rank has one GPU")


def contexts_by_process(text: str) -> dict[float, int]:
    """How many GPUs each process is on, from rows of its number and a GPU's UUID."""
    found: dict[float, set[str]] = {}
    for line in text.splitlines():
        pid, _, uuid = line.partition(",")
        if pid.strip().isdigit():
            found.setdefault(float(pid), set()).add(uuid.strip())
    return {pid: len(uuids) for pid, uuids in found.items()}
