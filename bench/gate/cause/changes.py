"""Find what changed between two runs of a series (hardware, software, settings, hosts, commit), rarest change first."""

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
"""Order of changes that are equally rare, or whose rarity no history shows."""
LEAST_NIGHTS = 10
"""Nights of history needed to count how often a field changes: a tenth of fewer is less than one change."""
RARE_RATIO = 0.1
"""A change is rare if its field changes on at most this share of the nights."""
_OFTEN: frozenset[Kind] = frozenset({"hosts", "commit"})
"""Kinds that are expected to change; such a change is blamed only if history shows that it is rare."""
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
"""Kinds by topic. `_topic` has those of GPUs; every other topic is an environment variable."""
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
"""Topics that follow from another change, and are not a change of their own if that one is present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Where and on what a run was measured, as far as known.

    machine: machine of the first node; None if it cannot be read. nodes: machines of the other nodes, by number, if the
    run's folder still exists. started_ns: Unix time.
    """

    run: str
    started_ns: int
    machine: Machine | None
    hosts: tuple[str, ...] = ()
    commit: str | None = None
    nodes: Mapping[int, Machine] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change between two runs.

    topic: what changed, without a number, and so the same for all GPUs. hosts: the hosts with the change, unless all
    have it. changed_on: on how many of the last `nights` nights the topic changed, this change included; None if too
    few nights are known, or if the change is on a node other than the first, whose machines the history does not have.
    began_ns: Unix time of the first run with the change; None if no run in between shows it. carried_by: topic of
    another change that causes this one.
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
        """Whether it alone may explain a figure's change: its values are known, nothing else brought it, it is rare."""
        return self._is_own and self.changed_on is not None and self.changed_on <= RARE_RATIO * self.nights

    @property
    def may_be_rare(self) -> bool:
        """Whether it is rare or may be rare, because nobody counted how often it happens."""
        return self.is_rare or (self._is_own and self.changed_on is None and self.kind not in _OFTEN)

    @property
    def _is_own(self) -> bool:
        return self.carried_by is None and "unknown" not in (self.before[:7], self.now[:7])


def changes_between(good: Reading, bad: Reading, past: Sequence[Reading]) -> tuple[Change, ...]:
    """Return what changed from the good run to the bad one: rare changes first, by how rarely they happen.

    past: readings of the nights up to the bad run, oldest first; they show how often each field changes.
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
    for (field, before, now), hosts_with_it in hosts_of.items():
        kind, topic = _topic(field)
        times_of_topic = times.get(topic, []) if topic in of_first else []
        within = [time_ns for time_ns in times_of_topic if good.started_ns < time_ns <= bad.started_ns]
        changes.append(
            Change(
                kind=kind,
                topic=topic,
                field=field,
                before=before,
                now=now,
                hosts=tuple(hosts_with_it) if hosts_with_it and set(hosts_with_it) != hosts else (),
                changed_on=max(1, len(times_of_topic)) if topic in of_first and nights >= LEAST_NIGHTS else None,
                nights=max(0, nights),
                began_ns=max(within, default=None),
                carried_by=next((other for other in _CARRIED_BY.get(topic, ()) if other in topics), None),
            )
        )
    return tuple(
        sorted(changes, key=lambda change: (not change.is_rare, change.changed_on or 0, KINDS.index(change.kind)))
    )


def topics_of(changes: Iterable[Change]) -> tuple[str, ...]:
    """Return the unique topics of the changes, in order."""
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
    """Return the kind and the topic of a difference."""
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
    """Yield the differences of all nodes, each with its host; None if the difference belongs to the whole run."""
    host = None if bad.machine is None else bad.machine.hostname
    for difference in _of_first_node(good, bad):
        yield (None if difference.field in ("hosts", "commit") else host), difference
    for number, now in (bad.nodes or {}).items():
        before = (good.nodes or {}).get(number)
        if before is None:
            continue
        for difference in _of_machines(before, now):
            # Another node has other GPUs; the difference of `hosts` already covers that.
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
        is_covered = (difference.field == "hostname" and before.hosts and now.hosts) or (
            difference.field == "commit" and before.commit is not None and now.commit is not None
        )
        if not is_covered:
            yield difference


def _of_machines(before: Machine, now: Machine) -> Iterator[MachineDifference]:
    """Yield the differences, without variables that every job sets; a replaced GPU counts as one difference."""
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
