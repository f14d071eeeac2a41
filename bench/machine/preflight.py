"""Preflight checks: whether a case fits into memory and on the cores, before anything is allocated or started."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from bench.case import Case
from bench.errors import InfrastructureFailed, Misuse, plural
from bench.machine.container import UNLIMITED_BYTES, own_groups
from bench.machine.gpus import Gpu, GpuMemory, Holder
from collectors.nvml.queries import names_all_processes
from workloads.core.precision_options import stream_bytes
from workloads.cost_models.cuda.peak import unallocated_bytes
from workloads.cost_models.memory import HALF_BYTES, INDEX_BYTES
from workloads.cost_models.peak_memory import Prediction
from workloads.options import checkpoint_every, loss_chunks, microbatch_count

# Memory limits of this process's control groups: of a container, or of a cluster job.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """File names of one version of control groups. cache: the line of memory.stat that counts inactive file pages."""

    limit: str
    usage: str
    cache: str


_SECOND = _Files(limit="memory.max", usage="memory.current", cache="inactive_file")
_FIRST = _Files(
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    cache="total_inactive_file",
)


def left_in_groups(root: Path = Path("/")) -> list[int]:
    """Return the bytes that each control group with a limit still allows, from the process's own group up to the root.

    Inactive file pages count as free because the kernel can reclaim them. Groups that have no limit or cannot be read
    are left out. root: where /proc and /sys are.
    """
    return [
        size
        for version, folder in own_groups("memory", root)
        for size in _group_headroom(folder, _SECOND if version == 2 else _FIRST)
    ]


def _group_headroom(folder: Path, files: _Files) -> Iterator[int]:
    """Yield the bytes that a group still allows; nothing if the group does not exist or has no limit ("max")."""
    try:
        limit, usage = int((folder / files.limit).read_text()), int((folder / files.usage).read_text())
    except (OSError, ValueError):
        return
    if limit >= UNLIMITED_BYTES:
        return
    cache = 0
    with suppress(OSError, ValueError):
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cache = int(counts.get(files.cache, 0))
    yield max(0, limit - usage + cache)


PROCESS_BYTES = 16_000_000
"""The least memory that a rank or a data loader's worker needs, apart from its tensors and what it shares with the
forkserver. Measured: 16 MB for a worker and 20 MB for a rank, torch 2.13 on a CPU."""
PARTS_JUDGED = 1000
"""The cost model of peak memory visits each part of a batch; with more parts it is skipped for the smaller bound."""
HOLDERS_NAMED = 4
"""How many processes on a GPU a message names; it counts the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """The least that ranks on a device hold at the same moment.

    what: its description in a message. ranks: their number; 0 for what the whole batch needs, whichever rank holds it.
    """

    what: str
    ranks: int
    size_bytes: int


def least_bytes(case: Case, rank: int) -> int:
    """Return the least memory that a rank needs at its worst moment.

    For a probe, its buffers. For training, its states, and what a sharded model gathers at once; on a CPU also what
    else is live at the peak of a step, if a cost model predicts it.
    """
    return max(need.size_bytes for need in _needs(case, [rank]))


def available_bytes(root: Path = Path("/")) -> int:
    """Return the memory available to new processes without swapping, within the limits of control groups."""
    return min([psutil.virtual_memory().available, *left_in_groups(root)])


def process_name(pid: int) -> str | None:
    """Return the name of a process by the driver's PID; None if the driver uses other PIDs than this container."""
    with suppress(psutil.Error):
        return str(psutil.Process(pid).name()) if names_all_processes() else None
    return None


def check_processes(case: Case, *, host_bytes: int, cores: int) -> list[str]:
    """Refuse more processes than fit into memory; return warnings about too few cores, one line each.

    cores: usable by this process.

    Raises:
        Misuse: the processes alone need more than `host_bytes`; the message contains their number.
    """
    workers = int(case.options.get("workers", 0))
    processes = case.ranks * (1 + workers)
    if processes * PROCESS_BYTES > host_bytes:
        who = plural(case.ranks, "rank") + (f" with {plural(workers, 'worker')} each" if workers else "")
        raise Misuse(
            f"{case.strategy}: {who} need {_gigabytes(processes * PROCESS_BYTES)} before they allocate anything,"
            f" but only {_gigabytes(host_bytes)} of memory is available; use fewer"
        )
    notices = []
    threads = case.ranks * case.threads
    if case.device == "cpu" and threads > cores:
        who = plural(case.ranks, "rank") + (f" of {case.threads} threads" if case.threads > 1 else "")
        notices.append(f"{who} share {plural(cores, 'core')} (oversubscribed): speeds are not those of {threads} cores")
    if workers > 1 and case.ranks * workers > cores:
        who = f"{plural(case.ranks, 'rank')} with {workers} workers each"
        notices.append(f"{who} load batches on {plural(cores, 'core')}: they slow each other and the ranks down")
    return notices


def check_memory(
    case: Case,
    *,
    host_bytes: int,
    gpus: Sequence[Gpu],
    memory: Sequence[GpuMemory] = (),
    name_of: Callable[[int], str | None] = process_name,
) -> None:
    """Refuse a case whose ranks, all on one node, cannot hold what they need.

    host_bytes: for ranks on the CPU. gpus: ranks are assigned to them in turn. memory: current free memory of each GPU.

    Raises:
        Misuse: the memory is too small; the message contains what is needed and what is available.
        InfrastructureFailed: the GPU is large enough, but other processes hold too much of it; the message names them.
    """
    if case.device == "cpu":
        _refuse_beyond(_needs(case, range(case.ranks)), case, host_bytes, "available memory is")
        return
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    if case.model is not None and sizes and len(sizes) == len(gpus):
        _refuse_beyond(
            [_tokens(case)], case, sum(sizes), f"{plural(len(gpus), 'GPU')} {'has' if len(gpus) == 1 else 'have'}"
        )
    # Rank r takes GPU r modulo their number.
    for position, gpu in enumerate(gpus):
        ranks = range(case.ranks)[position :: len(gpus)]
        if gpu.memory_bytes is not None:
            _refuse_beyond([_most(case, ranks)], case, gpu.memory_bytes, f"GPU {gpu.index} has")
    # The memory is large enough; the rest may be held by other processes.
    for position, (gpu, now) in enumerate(zip(gpus, memory, strict=False)):
        need = _most(case, range(case.ranks)[position :: len(gpus)])
        if now.free_bytes is not None and need.size_bytes > now.free_bytes:
            whole_bytes = now.free_bytes if gpu.memory_bytes is None else gpu.memory_bytes
            raise InfrastructureFailed(
                f"{case.strategy}: {need.what}, but GPU {gpu.index} has only {_gigabytes(now.free_bytes)} free of"
                f" {_gigabytes(whole_bytes)}: {holders_text(now.holders, name_of)};"
                " wait for them, end them, or hide the GPU with CUDA_VISIBLE_DEVICES"
            )


def beside_tensors(case: Case, peak: Prediction) -> int:
    """Estimate what a rank holds on its GPU besides tensors: CUDA's context, NCCL's buffers and fragmentation."""
    communicators = sum(size > 1 for size in case.spec().mesh(case).values()) if case.backend == "nccl" else 0
    return unallocated_bytes(peak.total_bytes, communicators=communicators)


def warn_of_memory(case: Case, gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield a warning if a step may not fit on a GPU, which only the step itself decides.

    The cost model predicts what torch allocates, but the rest is only an estimate, so nothing is refused. gpus: ranks
    are assigned to them in turn.
    """
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    if case.device == "cpu" or case.model is None or not sizes or microbatch_count(case) > PARTS_JUDGED:
        return
    peak = case.spec().peak(case)
    if not isinstance(peak, Prediction):
        return
    sharing = math.ceil(case.ranks / len(gpus))
    tensors_bytes = sharing * peak.total_bytes
    more_bytes = sharing * beside_tensors(case, peak)
    if tensors_bytes + more_bytes <= min(sizes):
        return
    how = "a smaller batch"
    if case.options["checkpoint"] != "full":
        how += ", or option checkpoint=full"
    elif checkpoint_every(case) > 1:
        how += ", or option checkpoint_every=1"
    ranks = "" if sharing == 1 else f" of {sharing} ranks"
    yield (
        f"{case.title}: a step may need more memory than a GPU has: {_gigabytes(tensors_bytes)} of tensors{ranks}, and"
        f" about {_gigabytes(more_bytes)} for CUDA's context, NCCL and fragmentation, but the GPU has"
        f" {_gigabytes(min(sizes))}; use {how}"
    )


def _refuse_beyond(needs: Iterable[_Need], case: Case, capacity_bytes: int, whose: str) -> None:
    """Refuse the first need that is too large; do not compute later needs, which it may make meaningless."""
    for need in needs:
        if need.size_bytes > capacity_bytes:
            remedy = _remedy(case, need, capacity_bytes)
            raise Misuse(f"{case.strategy}: {need.what}, but {whose} only {_gigabytes(capacity_bytes)}; use {remedy}")


def _remedy(case: Case, need: _Need, capacity_bytes: int) -> str:
    if case.model is None:
        return f"smaller sizes (`observatory list {case.strategy}` shows the options), or fewer ranks"
    if not need.ranks:
        return "a smaller --batch or --sequence"
    spec = case.spec()
    more = replace(case, ranks=2 * case.ranks)
    try:
        is_shared = spec.states(more, 0).parameters_bytes < spec.states(case, 0).parameters_bytes
    except ValueError:  # Twice as many stages do not divide the layers; other numbers may.
        is_shared = True
    if case.device == "cpu" or need.ranks != 1:
        # Ranks that share the states of one model hold as much together, however many they are.
        return "a smaller shape" if is_shared or case.ranks == 1 else "a smaller shape, or fewer ranks"
    # One rank is too much for its device: only more ranks can help, if they hold less each.
    if spec.gathered_bytes(case, 0) > capacity_bytes:
        return "a smaller shape, or three_d, which also divides what is gathered"
    if spec.gathered_bytes(case, 0) + spec.unreduced_bytes(case, 0) > capacity_bytes and "reduce" in case.options:
        return "option reduce=each, or a smaller shape"
    return "a smaller shape, or more ranks" if is_shared else "a smaller shape, or a strategy that shards it"


def _most(case: Case, ranks: Sequence[int]) -> _Need:
    return max(_needs(case, ranks), key=lambda need: need.size_bytes)


def _needs(case: Case, ranks: Sequence[int]) -> Iterator[_Need]:
    """Yield what these ranks hold together at each possible worst moment; before the first step they hold less."""
    spec = case.spec()
    if spec.kind == "probe":
        yield _need("buffers of", "take", ranks, sum(spec.working_bytes(case, rank) for rank in ranks))
        return
    states = [spec.states(case, rank) for rank in ranks]
    states_bytes = sum(
        rank_states.parameters_bytes + rank_states.gradients_bytes + rank_states.optimizer_bytes
        for rank_states in states
    )
    yield _need("parameters, gradients and optimizer state of", "take", ranks, states_bytes)
    kept_bytes = sum(rank_states.parameters_bytes + rank_states.optimizer_bytes for rank_states in states)
    gathered_bytes = sum(spec.gathered_bytes(case, rank) for rank in ranks)
    unreduced_bytes = sum(spec.unreduced_bytes(case, rank) for rank in ranks)
    if gathered_bytes:
        what = "sharded states, and the weights that a step gathers at once, of"
        yield _need(what, "take", ranks, kept_bytes + gathered_bytes)
    if unreduced_bytes:
        what = "sharded states, and gradients that are whole until the last microbatch reduces them, of"
        yield _need(what, "take", ranks, kept_bytes + gathered_bytes + unreduced_bytes)
    if case.device != "cpu":
        return  # On a GPU, `warn_of_memory` compares the peak.
    if len(ranks) == case.ranks:
        yield _tokens(case)
    peak = spec.peak(case) if microbatch_count(case) <= PARTS_JUDGED else None
    if isinstance(peak, Prediction):
        # In a pipeline, other ranks hold less than the predicted rank; elsewhere all hold as much at the same time.
        alike = 1 if spec.pipeline(case) is not None else len(ranks)
        live = alike * (peak.gradients_bytes + peak.activations_bytes + peak.temporary_bytes)
        yield _need("live tensors of a step, activations included, of", "take", ranks, kept_bytes + live)


def _tokens(case: Case) -> _Need:
    """Return the memory of a microbatch, which all ranks hold together, however they share it.

    It consists of token indices, residual stream and logits, of which a loss in chunks holds one chunk at a time.
    """
    shape = case.shape
    tokens = shape.batch * shape.sequence // microbatch_count(case)
    size_bytes = tokens * (INDEX_BYTES + stream_bytes(case) * shape.width)
    size_bytes += tokens // loss_chunks(case) * HALF_BYTES * shape.vocabulary
    what = f"a batch of {shape.batch} sequences of {shape.sequence} tokens takes at least {_gigabytes(size_bytes)}"
    return _Need(what=what, ranks=0, size_bytes=size_bytes)


def _need(what: str, takes: str, ranks: Sequence[int], size_bytes: int) -> _Need:
    what = f"{what} {plural(len(ranks), 'rank')} {takes} {_gigabytes(size_bytes)}"
    return _Need(what=what, ranks=len(ranks), size_bytes=size_bytes)


def holders_text(holders: Sequence[Holder], name_of: Callable[[int], str | None] = process_name) -> str:
    """Return in words which processes hold a GPU's memory, the largest first."""
    if not holders:
        return "other processes hold the rest, but NVML names none (they run in another container, or have just ended)"
    ordered = sorted(holders, key=lambda holder: holder.memory_bytes or 0, reverse=True)
    words = []
    for holder in ordered[:HOLDERS_NAMED]:
        name = name_of(holder.pid)
        size = "some" if holder.memory_bytes is None else _gigabytes(holder.memory_bytes)
        words.append(f"process {holder.pid}{'' if name is None else f' ({name})'} holds {size}")
    if len(ordered) > HOLDERS_NAMED:
        words.append(f"{len(ordered) - HOLDERS_NAMED} more")
    return ", ".join(words)


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:,.1f} MB"
