"""Differences between two readings of a machine, in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.machine.gpus import Gpu
from bench.machine.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference. field: its name for people. before, now: the values in words."""

    field: str
    before: str
    now: str


def differences(before: Machine, now: Machine) -> tuple[Difference, ...]:
    """Return all differences between the machines, in the order of Machine's fields.

    Two unknown values differ if their reasons do. GPUs are identified by UUID, so a GPU that was replaced by one of the
    same kind shows. Links are compared if both GPUs are in both readings.
    """
    return (*_plain(before, now), *_gpus(before, now), *_links(before, now), *_environment(before, now))


def _gibibytes(value: int) -> str:
    # Rounded, since the kernel's own share of memory varies by some MiB from boot to boot.
    return f"{value / 2**30:.1f} GiB"


def _state(is_dirty: bool) -> str:
    return "with changes" if is_dirty else "without changes"


_LATER = frozenset({"torch_hip_version", "cuda_driver_version"})
"""Fields that older records of machines lack: None without a reason is no difference."""
_PLAIN: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("hostname", "hostname", str),
    ("system", "system", str),
    ("kernel", "kernel", str),
    ("architecture", "architecture", str),
    ("python_version", "Python", str),
    ("own_version", "parallel-observatory", str),
    ("commit", "commit", str),
    ("is_dirty", "source tree", _state),
    ("torch_version", "torch", str),
    ("torch_cuda_version", "CUDA of torch", str),
    ("torch_hip_version", "ROCm of torch", str),
    ("nccl_version", "NCCL", str),
    ("driver_version", "driver", str),
    ("cuda_driver_version", "CUDA of driver", str),
    ("cpu", "CPU", str),
    ("usable_cores", "usable cores", str),
    ("physical_cores", "physical cores", str),
    ("memory_bytes", "memory", _gibibytes),
)


def _plain(before: Machine, now: Machine) -> Iterator[Difference]:
    for field, name, words in _PLAIN:
        if field in _LATER and not all(_was_asked(machine, field) for machine in (before, now)):
            continue
        yield from _changed(name, *(_words(machine, field, words) for machine in (before, now)))


def _was_asked(machine: Machine, field: str) -> bool:
    return getattr(machine, field) is not None or field in machine.absent


def _words(machine: Machine, field: str, words: Callable[[Any], str]) -> str:
    value = getattr(machine, field)
    return _unknown(machine, field) if value is None else words(value)


def _unknown(machine: Machine, field: str) -> str:
    return f"unknown ({machine.absent[field]})" if field in machine.absent else "unknown"


def _changed(field: str, before: str, now: str) -> Iterator[Difference]:
    if before != now:
        yield Difference(field=field, before=before, now=now)


def _gpus(before: Machine, now: Machine) -> Iterator[Difference]:
    old, new = ({gpu.uuid: gpu for gpu in machine.gpus} for machine in (before, now))
    if not old.keys() & new.keys():  # If no GPU stayed, one line says more than a line for each.
        yield from _changed("GPUs", _all_gpus(before), _all_gpus(now))
        if old and _all_gpus(before) == _all_gpus(now):
            yield Difference(field="GPUs", before="others of the same kind", now=_all_gpus(now))
        return
    for uuid in dict.fromkeys((*old, *new)):
        gpu = old.get(uuid) or new[uuid]
        yield from _changed(f"GPU {gpu.index}", _one_gpu(before, old.get(uuid)), _one_gpu(now, new.get(uuid)))


def _all_gpus(machine: Machine) -> str:
    if "gpus" in machine.absent and not machine.gpus:
        return _unknown(machine, "gpus")
    counts = Counter(gpu.name for gpu in machine.gpus)
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or "none"


def _one_gpu(machine: Machine, gpu: Gpu | None) -> str:
    if gpu is None:
        return "not there"
    field = f"gpus[{gpu.index}].memory_bytes"
    memory = _unknown(machine, field) if gpu.memory_bytes is None else _gibibytes(gpu.memory_bytes)
    return f"{gpu.name}, {memory}, index {gpu.index}, {gpu.uuid}"


def _links(before: Machine, now: Machine) -> Iterator[Difference]:
    if "links" in before.absent or "links" in now.absent:
        if before.gpus and now.gpus:  # Otherwise the absent GPUs are a difference already.
            yield from _changed("links of GPUs", *(_links_absent(machine) for machine in (before, now)))
        return
    old, new = (_kinds(machine) for machine in (before, now))
    # One line for all pairs of GPUs whose link changed in the same way.
    pairs = defaultdict(list)
    for pair in old.keys() & new.keys():
        if old[pair] != new[pair]:
            pairs[old[pair], new[pair]].append(pair)
    indices = {gpu.uuid: gpu.index for gpu in now.gpus}
    for kinds, changed in sorted(pairs.items()):
        names = sorted(sorted(indices[uuid] for uuid in pair) for pair in changed)
        listed = ", ".join(f"{first}-{second}" for first, second in names)
        yield Difference(field=f"link of GPUs {listed}", before=kinds[0], now=kinds[1])


def _links_absent(machine: Machine) -> str:
    return _unknown(machine, "links") if "links" in machine.absent else "known"


def _kinds(machine: Machine) -> dict[frozenset[str], str]:
    """Return the kind of each link by the UUIDs of its ends, without MIG instances of one GPU, which share an index."""
    uuids = {gpu.index: gpu.uuid for gpu in machine.gpus}
    return {
        frozenset((uuids[link.first], uuids[link.second])): link.kind
        for link in machine.links
        if link.first != link.second
    }


def _environment(before: Machine, now: Machine) -> Iterator[Difference]:
    for name in sorted(before.environment.keys() | now.environment.keys()):
        words = (machine.environment.get(name, "not set") for machine in (before, now))
        yield from _changed(name, *words)
