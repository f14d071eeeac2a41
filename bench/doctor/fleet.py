"""What is told of several nodes before they measure: what differs between them, what is sick, who is slow.

A node is judged by its peers, since nothing else tells what is right here: by the value that most have, or by the
median of the others' rates. Each finding has its evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, median_high, median_low, quantiles

import msgspec

from bench.engines.agent_link import NodeCheck
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine
from bench.machine.machine_diff import Difference
from bench.runs.files import read_small
from collectors.errors import in_words
from collectors.files import replace_file

SCHEMA_VERSION = 1
PREFLIGHT = "preflight.json"
"""In the folder of a suite run: what was found before it."""

SLOW_RATIO = 0.9
"""A node is slow whose product or copy is below this share of its peers' median in each trial, and below three quarters
of all their trials. GPUs of one kind at one power limit differ by some per cent."""
SLOW_LINK_RATIO = 0.8
"""A pair is slow that is below this share of what a quarter of the pairs exceed, in each trial, and below each trial of
the pair at that quarter. The sick only slow down, so that a fast one tells what is usual."""
CLOCK_ODD_S, CLOCK_WRONG_S = 1.0, 60.0
"""A clock that is off by more than the first is told; by more than the second, times of this node tell nothing."""
LEAST_DISK_BYTES = 2**30
LEAST_MEMORY_RATIO = 0.5
"""Of the peers' median: with less, other work is on the node, or what died left it behind."""
LEAST_GPU_FREE_RATIO = 0.9
"""Of a GPU's memory: with less, another process holds it; torch itself is not loaded on it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What a node reached: FLOP/s of a product, or bytes/s of a copy; of the slowest of its ranks, by trial."""

    node: int
    what: str
    unit: str
    trials: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median of the trials."""
        return median(self.trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRate:
    """Bytes/s that one node sends to another while that sends to it; of the slowest of their lanes, by trial."""

    nodes: tuple[int, int]
    trials: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median of the trials."""
        return median(self.trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """A node that answered. changed: in what its machine differs from the last good check of this host."""

    number: int
    name: str
    machine: Machine
    check: NodeCheck
    changed: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong with a node, in words with the evidence.

    node: None for a link between two, for what is no node's fault, and for a node that did not answer.
    is_fatal: what is measured with this node tells nothing, or cannot start.
    """

    node: int | None
    text: str
    is_fatal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All that is known of the nodes. absent: what was not measured, with the reason."""

    engine: str
    time_ns: int
    nodes: tuple[FleetNode, ...]
    rates: tuple[Rate, ...] = ()
    pairs: tuple[PairRate, ...] = ()
    absent: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def name(self, number: int) -> str:
        """Return the name of a node."""
        return next(node.name for node in self.nodes if node.number == number)

    @property
    def shares_machines(self) -> bool:
        """Whether several nodes are the same machine, as if."""
        return len({node.machine.hostname for node in self.nodes}) < len(self.nodes)

    @property
    def bad(self) -> tuple[int, ...]:
        """The numbers of nodes with a finding."""
        return tuple(sorted({found.node for found in self.findings if found.node is not None}))


_EQUAL: Mapping[str, tuple[str, bool]] = {
    "own_version": ("parallel-observatory", True),
    "torch_version": ("torch", True),
    "nccl_version": ("NCCL", True),
    "torch_cuda_version": ("CUDA of torch", True),
    "driver_version": ("driver", False),
    "commit": ("commit", False),
    "python_version": ("Python", False),
    "kernel": ("kernel", False),
    "cpu": ("CPU", False),
    "usable_cores": ("usable cores", False),
}
"""Fields of a machine that are the same on all nodes, each with its name, and whether a difference is fatal."""


def judge(fleet: Fleet, failed: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """Return what is wrong, by node and then by how the checks follow each other. failed: measurements that did."""
    found = [*_unlike(fleet), *_sick(fleet), *_off_clocks(fleet), *failed]
    if not fleet.shares_machines:  # Else it is of chance which of them gets less of what they share.
        found += [*_slow(fleet), *_slow_pairs(fleet)]
    return tuple(sorted(found, key=lambda one: (one.node is None, -1 if one.node is None else one.node)))


def _unlike(fleet: Fleet) -> Iterator[Finding]:
    """Yield each value that most nodes have otherwise."""
    for field, (name, is_fatal) in _EQUAL.items():
        yield from _minority(fleet, name, partial(_field, field), is_fatal=is_fatal)
    yield from _minority(fleet, "GPUs", lambda node: node.machine.hardware("cuda") if node.machine.gpus else "none")
    yield from _minority(fleet, "CPU governor", lambda node: node.check.now.cpu_governor)
    for name, scale, unit in (("clock_limit_hertz", 1e6, "MHz"), ("power_limit_watts", 1, "W")):
        words = name.removesuffix("_hertz").removesuffix("_watts").replace("_", " ")
        yield from _minority(fleet, f"{words} of GPUs", partial(_limits, name, scale, unit))


def _field(field: str, node: FleetNode) -> object:
    return getattr(node.machine, field)


def _limits(name: str, scale: float, unit: str, node: FleetNode) -> str | None:
    """Return the different limits of a node's GPUs."""
    values = [getattr(gpu, name) for gpu in node.check.now.gpus]
    return " and ".join(sorted({f"{value / scale:g} {unit}" for value in values if value is not None})) or None


def _minority(
    fleet: Fleet, name: str, value_of: Callable[[FleetNode], object], *, is_fatal: bool = False
) -> Iterator[Finding]:
    """Yield the nodes whose value is not that of most; of two as frequent, that of the node with the lowest number."""
    values = {node.number: value_of(node) for node in fleet.nodes}
    known = Counter(value for value in values.values() if value is not None)
    if not known or (set(values.values()) == set(known) and len(known) == 1):
        return
    usual = known.most_common(1)[0][0]
    for number, value in values.items():
        if value != usual:
            others = known[usual]
            words = "is not known" if value is None else f"is {value}"
            yield Finding(
                node=number, text=f"its {name} {words}, and {usual} on {others} other node(s)", is_fatal=is_fatal
            )


def _sick(fleet: Fleet) -> Iterator[Finding]:
    for node in fleet.nodes:
        now, number = node.check.now, node.number
        if now.disk_bytes is not None and now.disk_bytes < LEAST_DISK_BYTES:
            yield Finding(
                node=number,
                text=f"its disk has {_gib(now.disk_bytes)} left where runs are written; make room",
                is_fatal=True,
            )
        peers = [other.check.now.memory_bytes for other in fleet.nodes if other.number != number]
        if peers and now.memory_bytes < LEAST_MEMORY_RATIO * median(peers):
            yield Finding(
                node=number,
                text=f"{_gib(now.memory_bytes)} of its memory is available, and {_gib(int(median(peers)))} on others",
            )
        sizes = {gpu.index: gpu.memory_bytes for gpu in node.machine.gpus}
        for gpu in now.gpus:
            size = sizes.get(gpu.index)
            if gpu.uncorrected_errors:
                yield Finding(node=number, text=f"GPU {gpu.index} has {gpu.uncorrected_errors} uncorrected ECC errors")
            if gpu.pending_rows:
                yield Finding(
                    node=number, text=f"GPU {gpu.index} waits for a reset to replace rows of its memory (ECC)"
                )
            if gpu.has_failed_rows:
                text = f"rows of GPU {gpu.index}'s memory could not be replaced (ECC); have the GPU replaced"
                yield Finding(node=number, text=text)
            if size and gpu.free_bytes is not None and gpu.free_bytes < LEAST_GPU_FREE_RATIO * size:
                yield Finding(
                    node=number,
                    text=f"GPU {gpu.index} has {_gib(gpu.free_bytes)} of {_gib(size)} free: another process holds it",
                )
        if "gpus" in now.absent:
            yield Finding(node=number, text=f"its GPUs do not answer: {now.absent['gpus']}", is_fatal=True)


def _off_clocks(fleet: Fleet) -> Iterator[Finding]:
    """Yield the clocks that differ from the others' median by more than can be the way's fault.

    Of an even number of others it is the middle one that is nearer: of three clocks the two that agree are right. Of
    two nodes the one that is further from the runner's own clock is to blame.
    """
    offsets_s = {node.number: node.check.offset_s for node in fleet.nodes}
    judged = fleet.nodes
    if len(fleet.nodes) == 2:
        judged = (max(fleet.nodes, key=lambda node: abs(node.check.offset_s)),)
    for node in judged if len(fleet.nodes) > 1 else ():
        others_s = [offset_s for number, offset_s in offsets_s.items() if number != node.number]
        off_s = min((node.check.offset_s - middle(others_s) for middle in (median_low, median_high)), key=abs)
        sure_s = abs(off_s) - node.check.offset_error_s
        if sure_s > CLOCK_ODD_S:
            way = "ahead of" if off_s > 0 else "behind"
            yield Finding(
                node=node.number,
                text=f"its clock is {_duration(abs(off_s))} {way} the others'; have its time synchronised (NTP)",
                is_fatal=sure_s > CLOCK_WRONG_S,
            )


def _slow(fleet: Fleet) -> Iterator[Finding]:
    for rate in fleet.rates:
        others = [other for other in fleet.rates if other.what == rate.what and other.node != rate.node]
        peers = [other.value for other in others]
        slowest_quarter = quantiles([value for other in others for value in other.trials], n=4)[0] if others else 0.0
        if peers and max(rate.trials) < min(SLOW_RATIO * median(peers), slowest_quarter):
            share = 100 * rate.value / median(peers)
            yield Finding(
                node=rate.node,
                text=f"{rate.what}: {in_units(rate.value, rate.unit)}, {share:.0f} % of its peers' median"
                f" {in_units(median(peers), rate.unit)}",
            )


def _slow_pairs(fleet: Fleet) -> Iterator[Finding]:
    """Yield the nodes all of whose pairs are slow, and the slow pairs of other nodes."""
    if len(fleet.pairs) < 3:
        return
    by_rate = sorted(fleet.pairs, key=lambda pair: pair.value)
    fast = by_rate[-(-3 * (len(by_rate) - 1) // 4)]
    usual = fast.value
    limit = min(SLOW_LINK_RATIO * usual, *fast.trials)
    slow = {pair.nodes: pair for pair in fleet.pairs if max(pair.trials) < limit}
    told: set[tuple[int, int]] = set()
    for node in fleet.nodes:
        own = [pair.nodes for pair in fleet.pairs if node.number in pair.nodes]
        if own and all(nodes in slow for nodes in own) and not all(pair.nodes in slow for pair in fleet.pairs):
            told |= set(own)
            rates = " and ".join(
                f"{in_units(slow[nodes].value, 'bytes/s')} with {fleet.name(sum(nodes) - node.number)}" for nodes in own
            )
            yield Finding(
                node=node.number, text=f"its network: {rates}; other pairs reach {in_units(usual, 'bytes/s')}"
            )
    for nodes, pair in slow.items():
        if nodes not in told:
            names = " and ".join(fleet.name(number) for number in nodes)
            yield Finding(
                node=None,
                text=f"between {names}: {in_units(pair.value, 'bytes/s')}; other pairs reach"
                f" {in_units(usual, 'bytes/s')}",
            )


def lines_of(fleet: Fleet) -> list[str]:
    """Return what is wrong, a line each, what was not measured, and what has changed since the last good check."""
    lines = [
        found.text if found.node is None else f"{fleet.name(found.node)} is bad: {found.text}"
        for found in fleet.findings
    ]
    lines += fleet.absent
    if not lines:
        lines = [f"{len(fleet.nodes)} node(s), and nothing is wrong with any"]
    for node in fleet.nodes:
        lines += [
            f"{node.name} has changed since its last good check: {one.field} was {one.before}, and is {one.now}"
            for one in node.changed
        ]
    return lines


def in_units(value: float, unit: str) -> str:
    """Return a rate in words, such as 12.3 Gbytes/s."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{'B/s' if unit == 'bytes/s' else unit}"
    return f"{value:.3g} {'B/s' if unit == 'bytes/s' else unit}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


def _duration(elapsed_s: float) -> str:
    return f"{elapsed_s / 60:.1f} min" if elapsed_s >= 60 else f"{elapsed_s:.1f} s"


# What was found is kept beside a suite run, so that the next check has the last good one to compare with.


def save(fleet: Fleet, folder: Path) -> None:
    """Write what was found into the folder of a suite run.

    Raises:
        InfrastructureFailed: it cannot be written.
    """
    try:
        content = msgspec.json.format(msgspec.json.encode(fleet), indent=2) + b"\n"
        replace_file(folder / PREFLIGHT, content)
    except OSError as error:
        raise InfrastructureFailed(f"{folder / PREFLIGHT} cannot be written: {error.strerror}") from None


def read(folder: Path) -> Fleet | str | None:
    """Return what was found before a suite run; the reason where it cannot be read; None where nothing was checked."""
    path = folder / PREFLIGHT
    try:
        return msgspec.json.decode(read_small(path), type=Fleet)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"{path} cannot be read: {in_words(error)}"


def last_good(folders: Iterable[Path]) -> dict[str, Machine]:
    """Return the machine of each host as the newest check found it that had nothing against the host.

    folders: of suite runs, newest first.
    """
    found: dict[str, Machine] = {}
    for folder in folders:
        fleet = read(folder)
        if isinstance(fleet, Fleet):
            for node in fleet.nodes:
                if node.number not in fleet.bad:
                    found.setdefault(node.machine.hostname, node.machine)
    return found
