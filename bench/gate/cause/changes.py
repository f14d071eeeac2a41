"""What changed between two runs of a series: hardware, software, settings, hosts, commit; the rarest change first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from bench.machine.fingerprint import OF_A_JOB
from bench.machine.machine import Machine
from bench.machine.machine_diff import MachineDifference, differences

Kind = Literal[
    "hardware",
    "driver",
    "NCCL",
    "torch",
    "container",
    "limits",
    "topology",
    "system",
    "environment",
    "hosts",
    "commit",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order in which changes are told that are equally rare, or of which no history tells how rare they are."""
LEAST_NIGHTS = 10
"""Nights from which on it is counted how often a field changes: a tenth of fewer is less than one change."""
RARE_RATIO = 0.1
"""Share of the nights on which a field may change at most to be a rare change."""
_OFTEN: frozenset[Kind] = frozenset({"hosts", "commit"})
"""What is expected to change, so that it is named only where it was counted."""
_KINDS: Mapping[str, Kind] = {
    "CPU": "hardware",
    "architecture": "hardware",
    "physical cores": "hardware",
    "memory": "hardware",
    "driver": "driver",
    "CUDA of driver": "driver",
    "NCCL": "NCCL",
    "torch": "torch",
    "CUDA of torch": "torch",
    "ROCm of torch": "torch",
    "container image": "container",
    "CPU limit": "limits",
    "memory limit": "limits",
    "usable cores": "limits",
    "system": "system",
    "kernel": "system",
    "Python": "system",
    "nodes of this machine": "system",
    "hostname": "hosts",
    "hosts": "hosts",
    "commit": "commit",
    "source tree": "commit",
    "parallel-observatory": "commit",
}
"""Kinds by topic; those of GPUs are in `_topic`, and all others are variables of the environment."""
_CARRIED_BY: Mapping[str, tuple[str, ...]] = {
    "CUDA of driver": ("driver",),
    "CUDA of torch": ("torch", "container image"),
    "ROCm of torch": ("torch", "container image"),
    "torch": ("container image",),
    "NCCL": ("container image",),
    "Python": ("container image",),
    "parallel-observatory": ("commit",),
    "source tree": ("commit",),
    "GPUs": ("hosts", "hostname"),
    "links": ("GPUs", "hosts", "hostname"),
}
"""What comes along with another change, and is no change of its own beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is known of where and of what a run was measured.

    machine: of its first node; None where it cannot be read. nodes: of its other nodes, by number, where the run's
    folder is there. started_ns: Unix time.
    """

    run: str
    started_ns: int
    machine: Machine | None
    hosts: tuple[str, ...] = ()
    commit: str | None = None
    nodes: Mapping[int, Machine] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change.

    topic: what changed, without a number: the same of all GPUs. hosts: those that it is of, where not all are alike.
    changed_on: on how many of the last `nights` nights the topic changed, this change among them; None where too few
    nights are known, and of nodes other than the first, whose machines the history does not have. began_ns: Unix time
    of the first run with the change; None where no run between tells.
    carried_by: the topic of another change that brings this one along.
    """

    kind: Kind
    topic: str
    field: str
    before: str
    now: str
    hosts: tuple[str, ...] = ()
    changed_on: int | None = None
    nights: int = 0
    began_ns: int | None = None
    carried_by: str | None = None

    @property
    def is_rare(self) -> bool:
        """Whether it may explain a change of a figure by itself: it is known, of its own, and happens seldom."""
        return self._is_own and self.changed_on is not None and self.changed_on <= RARE_RATIO * self.nights

    @property
    def may_be_rare(self) -> bool:
        """Whether it is rare, or may be for all that is known: nobody counted how often it happens."""
        return self.is_rare or (self._is_own and self.changed_on is None and self.kind not in _OFTEN)

    @property
    def _is_own(self) -> bool:
        return self.carried_by is None and "unknown" not in (self.before[:7], self.now[:7])


def changes_between(good: Reading, bad: Reading, past: Sequence[Reading]) -> tuple[Change, ...]:
    """Return what changed from the good run to the bad one: the rarest first, what is not counted behind what is rare.

    past: readings of the nights up to the bad run, oldest first, which tell how often each field changes.
    """
    times = _times(past)
    nights = sum(reading.machine is not None for reading in past) - 1
    hosts_of: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    of_first = {_topic(difference.field)[1] for difference in _of_first_node(good, bad)}
    for host, difference in _of_all_nodes(good, bad):
        hosts_of[difference.field, difference.before, difference.now] += [] if host is None else [host]
    topics = {_topic(field)[1] for field, _, _ in hosts_of}
    hosts = set(bad.hosts)
    changes = []
    for (field, before, now), where in hosts_of.items():
        kind, topic = _topic(field)
        on = times.get(topic, []) if topic in of_first else []
        within = [time_ns for time_ns in on if good.started_ns < time_ns <= bad.started_ns]
        changes.append(
            Change(
                kind=kind,
                topic=topic,
                field=field,
                before=before,
                now=now,
                hosts=tuple(where) if where and set(where) != hosts else (),
                changed_on=max(1, len(on)) if topic in of_first and nights >= LEAST_NIGHTS else None,
                nights=max(0, nights),
                began_ns=max(within, default=None),
                carried_by=next((other for other in _CARRIED_BY.get(topic, ()) if other in topics), None),
            )
        )
    return tuple(
        sorted(changes, key=lambda change: (not change.is_rare, change.changed_on or 0, KINDS.index(change.kind)))
    )


def topics_of(changes: Iterable[Change]) -> tuple[str, ...]:
    """Return the topics of the changes, in their order, each once."""
    return tuple(dict.fromkeys(change.topic for change in changes))


def _times(past: Sequence[Reading]) -> dict[str, list[int]]:
    """Return the times of the runs on which each topic changed on the first node, oldest first."""
    known = [reading for reading in past if reading.machine is not None]
    times: dict[str, list[int]] = defaultdict(list)
    for before, now in pairwise(known):
        for topic in {_topic(difference.field)[1] for difference in _of_first_node(before, now)}:
            times[topic].append(now.started_ns)
    return times


def _topic(field: str) -> tuple[Kind, str]:
    """Return kind and topic of a difference."""
    if field in _KINDS:
        return _KINDS[field], field
    for beginning, kind, topic in (
        ("power limit of", "limits", "power limit"),
        ("clock limit of", "limits", "clock limit"),
        ("link of", "topology", "links"),
        ("links of", "topology", "links"),
        ("GPU ", "hardware", "GPUs"),
        ("GPUs", "hardware", "GPUs"),
    ):
        if field.startswith(beginning):
            return kind, topic  # type: ignore[return-value]  # A tuple of literals has no literal types.
    return "environment", field


def _of_all_nodes(good: Reading, bad: Reading) -> Iterator[tuple[str | None, MachineDifference]]:
    """Yield the differences of all nodes, each with its host; None where it belongs to the run."""
    host = None if bad.machine is None else bad.machine.hostname
    for difference in _of_first_node(good, bad):
        yield (None if difference.field in ("hosts", "commit") else host), difference
    for number, now in (bad.nodes or {}).items():
        before = (good.nodes or {}).get(number)
        if before is None:
            continue
        for difference in _of_machines(before, now):
            # Another node has other GPUs, which `hosts` tells.
            is_of_gpu = _topic(difference.field)[1] in ("GPUs", "links")
            if difference.field not in ("hostname", "commit") and (before.hostname == now.hostname or not is_of_gpu):
                yield now.hostname, difference


def _of_first_node(before: Reading, now: Reading) -> Iterator[MachineDifference]:
    if before.hosts and now.hosts and before.hosts != now.hosts:
        gone = [host for host in before.hosts if host not in now.hosts]
        new = [host for host in now.hosts if host not in before.hosts]
        is_order = not gone and not new
        yield MachineDifference(
            field="hosts",
            before=" ".join(before.hosts) if is_order else " ".join(gone) or "none",
            now="the same in another order" if is_order else " ".join(new) or "none",
        )
    if before.commit is not None and now.commit is not None and before.commit != now.commit:
        yield MachineDifference(field="commit", before=before.commit[:12], now=now.commit[:12])
    if before.machine is None or now.machine is None:
        return
    for difference in _of_machines(before.machine, now.machine):
        is_told = (difference.field == "hostname" and before.hosts and now.hosts) or (
            difference.field == "commit" and before.commit is not None and now.commit is not None
        )
        if not is_told:
            yield difference


def _of_machines(before: Machine, now: Machine) -> Iterator[MachineDifference]:
    """Yield the differences, without variables that every job sets; a replaced GPU is one difference."""
    replaced: dict[str, MachineDifference] = {}
    for difference in differences(before, now):
        if difference.field in OF_A_JOB:
            continue
        if difference.field.startswith("GPU ") and "absent" in (difference.before, difference.now):
            other = replaced.pop(difference.field, None)
            if other is None:
                replaced[difference.field] = difference
                continue
            gone, new = (other, difference) if other.now == "absent" else (difference, other)
            difference = MachineDifference(field=difference.field, before=gone.before, now=new.now)
        yield difference
    yield from replaced.values()
