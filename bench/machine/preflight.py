"""Whether a case fits into memory and on the cores, before anything of it is allocated or started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.case import Case
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.gpus import Gpu, GpuMemory, Holder
from collectors.nvml.queries import names_all_processes
from workloads.cost_models.memory import FULL_BYTES, HALF_BYTES, INDEX_BYTES
from workloads.cost_models.peak_memory import Prediction
from workloads.options import parts

# What the control groups of this process leave it of memory: those of a container, or of a job on a cluster.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """How a version of control groups names its files. cache: the line of memory.stat that counts files' pages."""

    place: str
    limit: str
    usage: str
    cache: str


_SECOND = _Files(place="sys/fs/cgroup", limit="memory.max", usage="memory.current", cache="inactive_file")
_FIRST = _Files(
    place="sys/fs/cgroup/memory",
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    cache="total_inactive_file",
)


def left_in_groups(root: Path = Path("/")) -> list[int]:
    """Bytes that each group with a limit leaves, from the process's own up to the root; pages of files can be had back.

    root: where /proc and /sys are. Groups without a limit, or that cannot be read, are left out.
    """
    return [
        left
        for files, name in _groups(root)
        for folder in _upwards(root / files.place, name)
        if (left := _left(folder, files)) is not None
    ]


def _groups(root: Path) -> Iterator[tuple[_Files, str]]:
    """The process's group in either version; the root's where nothing tells it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/", "0:memory:/"]
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            yield _SECOND, name
        elif "memory" in controllers.split(","):
            yield _FIRST, name


def _upwards(place: Path, name: str) -> Iterator[Path]:
    folder = place / name.lstrip("/")
    yield folder
    while folder != place:
        folder = folder.parent
        yield folder


def _left(folder: Path, files: _Files) -> int | None:
    try:
        limit, usage = int((folder / files.limit).read_text()), int((folder / files.usage).read_text())
    except (OSError, ValueError):  # There is no such group, or it has no limit ("max").
        return None
    return max(0, limit - usage + _cache(folder, files))


def _cache(folder: Path, files: _Files) -> int:
    try:
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(counts.get(files.cache, 0))
    except (OSError, ValueError):
        return 0


PROCESS_BYTES = 16_000_000
"""Memory of its own that a rank or a loader's worker has at the least, beside its tensors and what it shares with the
server that it was forked from. Measured: a worker has 16 MB and a rank 20, torch 2.13 on a CPU."""
PARTS_JUDGED = 1000
"""The law of the peak looks at each part of a batch; with more parts it is not asked, and the smaller bound holds."""
HOLDERS_NAMED = 4
"""Processes on one GPU that a message names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What ranks on one device hold at the same moment, at the least. what: of that, in words."""

    what: str
    size_bytes: int


def least_bytes(case: Case, rank: int) -> int:
    """What a rank needs at the least at any moment: a probe's buffers, or training's states, on a CPU with the rest of
    what lives at the peak of a step where a law says so.

    Before its first step it may hold more than its states: every strategy makes the model whole, and divides it then.
    """
    return max(need.size_bytes for need in _needs(case, [rank]))


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that new processes of this machine can have without swapping; less where a container's limit says so."""
    return min([psutil.virtual_memory().available, *left_in_groups(root)])


def process_name(pid: int) -> str | None:
    """The name of a process that the driver numbers; None where its numbers are not those of this container."""
    with suppress(psutil.Error):
        return str(psutil.Process(pid).name()) if names_all_processes() else None
    return None


def check_processes(case: Case, *, host_bytes: int, cores: int) -> list[str]:
    """Refuse more processes than memory holds; what else is to be said of them, a line each.

    cores: those that this process may use.

    Raises:
        Misuse: with how many there would be.
    """
    workers = int(case.options.get("workers", 0))
    processes = case.ranks * (1 + workers)
    if processes * PROCESS_BYTES > host_bytes:
        who = f"{case.ranks} rank(s)" + (f" with {workers} worker(s) each" if workers else "")
        raise Misuse(
            f"{case.strategy}: {who} take {_gigabytes(processes * PROCESS_BYTES)} before they hold anything, and this"
            f" machine has available {_gigabytes(host_bytes)}; take fewer"
        )
    notices = []
    threads = case.ranks * case.threads
    if case.device == "cpu" and threads > cores:
        who = f"{case.ranks} ranks" + (f" of {case.threads} threads" if case.threads > 1 else "")
        notices.append(f"{who} share {cores} core(s) and wait for each other there: no speed of as many cores")
    if workers > 1 and case.ranks * workers > cores:
        who = f"{case.ranks} rank(s) with {workers} worker(s) each"
        notices.append(f"{who} load batches on {cores} core(s): they hold each other and the ranks up")
    return notices


def check_memory(
    case: Case,
    *,
    host_bytes: int,
    gpus: Sequence[Gpu],
    memory: Sequence[GpuMemory] = (),
    name_of: Callable[[int], str | None] = process_name,
) -> None:
    """Refuse a case whose ranks cannot hold what they need, all on one node.

    host_bytes: for ranks on the CPU. gpus: those that ranks take in turn. memory: of each of these, what is free now.

    Raises:
        Misuse: the memory is too small; with what is needed and what is there.
        InfrastructureFailed: it would do, but other processes hold too much of a GPU; with who they are.
    """
    if case.device == "cpu":
        _refuse_beyond(_needs(case, range(case.ranks)), case, host_bytes, "this machine has available")
        return
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    if case.model is not None and sizes and len(sizes) == len(gpus):
        _refuse_beyond([_tokens(case)], case, sum(sizes), f"{len(gpus)} GPU(s) have")
    for position, gpu in enumerate(gpus):
        ranks = range(case.ranks)[position :: len(gpus)]
        if gpu.memory_bytes is not None:
            _refuse_beyond([_most(case, ranks)], case, gpu.memory_bytes, f"GPU {gpu.index} has")
    for position, (gpu, now) in enumerate(zip(gpus, memory, strict=False)):
        need = _most(case, range(case.ranks)[position :: len(gpus)])
        if now.free_bytes is not None and need.size_bytes > now.free_bytes:
            whole_bytes = now.free_bytes if gpu.memory_bytes is None else gpu.memory_bytes
            raise InfrastructureFailed(
                f"{case.strategy}: {need.what} and GPU {gpu.index} has {_gigabytes(now.free_bytes)} free of"
                f" {_gigabytes(whole_bytes)}: {told_holders(now.holders, name_of)};"
                " wait for them, end them, or hide the GPU by CUDA_VISIBLE_DEVICES"
            )


def _refuse_beyond(needs: Iterable[_Need], case: Case, there_bytes: int, whose: str) -> None:
    """Refuse the first need that is too large, so that those which are told last need no sense where it is."""
    smaller = f"smaller sizes (`observatory list {case.strategy}` shows the options)"
    for need in needs:
        if need.size_bytes > there_bytes:
            how = smaller if case.model is None else "a smaller shape"
            raise Misuse(
                f"{case.strategy}: {need.what} and {whose} {_gigabytes(there_bytes)}; take {how}, or fewer ranks here"
            )


def _most(case: Case, ranks: Sequence[int]) -> _Need:
    return max(_needs(case, ranks), key=lambda need: need.size_bytes)


def _needs(case: Case, ranks: Sequence[int]) -> Iterator[_Need]:
    """What these ranks hold together, at each moment that may be the worst: they build at the same time."""
    card = case.card()
    if card.kind == "probe":
        yield _need("buffers of", "take", ranks, sum(card.working_bytes(case, rank) for rank in ranks))
        return
    states = [card.states(case, rank) for rank in ranks]
    held = sum(one.parameters_bytes + one.gradients_bytes + one.optimizer_bytes for one in states)
    built = sum(card.building_bytes(case, rank) for rank in ranks)
    yield _need("parameters, gradients and optimizer state of", "take", ranks, held)
    yield _need("the model, made whole on each of", "before it is divided, takes", ranks, built)
    if case.device != "cpu":
        return  # What lives there at the peak is the kernels' choice.
    if len(ranks) == case.ranks:
        yield _tokens(case)
    peak = card.peak(case) if parts(case) <= PARTS_JUDGED else None
    if isinstance(peak, Prediction):
        # Ranks of a pipeline hold less than the one that the law is of; all others hold as much, at the same time.
        alike = 1 if card.pipeline(case) is not None else len(ranks)
        live = alike * (peak.gradients_bytes + peak.activations_bytes + peak.temporary_bytes)
        kept = sum(one.parameters_bytes + one.optimizer_bytes for one in states)
        yield _need("what lives in a step, activations included, of", "takes", ranks, kept + live)


def _tokens(case: Case) -> _Need:
    """What all ranks together hold of one part of a batch, however they share it: its numbers, the residual stream, and
    the logits."""
    shape = case.shape
    tokens = shape.batch * shape.sequence // parts(case)
    size_bytes = tokens * (INDEX_BYTES + FULL_BYTES * shape.width + HALF_BYTES * shape.vocabulary)
    what = f"a batch of {shape.batch} sequences of {shape.sequence} tokens takes at least {_gigabytes(size_bytes)}"
    return _Need(what=what, size_bytes=size_bytes)


def _need(what: str, takes: str, ranks: Sequence[int], size_bytes: int) -> _Need:
    return _Need(what=f"{what} {len(ranks)} rank(s) {takes} {_gigabytes(size_bytes)}", size_bytes=size_bytes)


def told_holders(holders: Sequence[Holder], name_of: Callable[[int], str | None] = process_name) -> str:
    """Who holds a GPU's memory, the largest first."""
    if not holders:
        return "others hold the rest, and NVML names none of them (another container's, or just ended ones)"
    ordered = sorted(holders, key=lambda one: one.memory_bytes or 0, reverse=True)
    named = [_holder(one, name_of(one.pid)) for one in ordered[:HOLDERS_NAMED]]
    more = [f"{len(ordered) - HOLDERS_NAMED} more"] if len(ordered) > HOLDERS_NAMED else []
    return ", ".join([*named, *more])


def _holder(holder: Holder, name: str | None) -> str:
    who = f"process {holder.pid}" + ("" if name is None else f" ({name})")
    return f"{who} holds {'some' if holder.memory_bytes is None else _gigabytes(holder.memory_bytes)}"


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:,.1f} MB"
