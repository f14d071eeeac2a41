"""The check of several nodes before they measure: differences between them, unhealthy nodes, slow nodes.

Each node is judged by its peers, because nothing else shows what is normal here: by the value that most nodes have, or
by the median of the others' rates. Each finding contains its evidence.
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
from bench.errors import InfrastructureFailed, plural
from bench.machine.machine import Machine
from bench.machine.machine_diff import MachineDifference
from bench.store.files import read_small
from collectors.files import in_words, replace_file

SCHEMA_VERSION = 1
PREFLIGHT = "preflight.json"
"""File in the folder of a suite run: the result of the check before it."""

SLOW_RATIO = 0.9
"""A node is slow if its matrix product or copy is below this share of its peers' median in each trial, and below three
quarters of all their trials. GPUs of one kind at one power limit differ by a few per cent."""
SLOW_LINK_RATIO = 0.8
"""A pair is slow if it is below this share of the upper quartile of all pairs in each trial, and below each trial of
the pair at that quartile. Faults only slow pairs down, so the fast pairs show what is normal."""
CLOCK_ODD_S, CLOCK_WRONG_S = 1.0, 60.0
"""A clock that is off by more than the first is reported; beyond the second, the node's times are meaningless."""
LEAST_DISK_BYTES = 2**30
LEAST_MEMORY_RATIO = 0.5
"""Share of the peers' median: with less, other work runs on the node, or a dead process left memory behind."""
LEAST_GPU_FREE_RATIO = 0.9
"""Share of a GPU's memory: with less, another process holds it; torch itself is not loaded on it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A node's rate by trial: FLOP/s of a matrix product, or bytes/s of a copy, of the node's slowest rank."""

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
    """Bytes/s by trial that two nodes send to each other at the same time, in their slowest lane."""

    nodes: tuple[int, int]
    trials: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median of the trials."""
        return median(self.trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """A node that answered. changed: differences of its machine since the last good check of this host."""

    number: int
    name: str
    machine: Machine
    check: NodeCheck
    changed: tuple[MachineDifference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinding:
    """A problem of a node, in words with the evidence.

    node: None for a link between two nodes, for a problem of no single node, and for a node that did not answer.
    is_fatal: measurements with this node are meaningless or cannot start.
    """

    node: int | None
    text: str
    is_fatal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All that is known about the nodes. absent: what was not measured, with the reason."""

    engine: str
    time_ns: int
    nodes: tuple[FleetNode, ...]
    rates: tuple[Rate, ...] = ()
    pairs: tuple[PairRate, ...] = ()
    absent: tuple[str, ...] = ()
    findings: tuple[NodeFinding, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def name(self, number: int) -> str:
        """Return the name of the node with this number."""
        return next(node.name for node in self.nodes if node.number == number)

    @property
    def shares_machines(self) -> bool:
        """Whether several nodes are simulated on one machine."""
        return len({node.machine.hostname for node in self.nodes}) < len(self.nodes)

    @property
    def bad(self) -> tuple[int, ...]:
        """The numbers of nodes with a finding."""
        return tuple(sorted({finding.node for finding in self.findings if finding.node is not None}))


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
"""Fields of a machine that should be equal on all nodes, each with its name, and whether a difference is fatal."""


def judge(fleet: Fleet, failed: Iterable[NodeFinding] = ()) -> tuple[NodeFinding, ...]:
    """Return all findings, by node and then in the order of the checks. failed: findings of failed measurements."""
    findings = [*_unlike(fleet), *_sick(fleet), *_off_clocks(fleet), *failed]
    if not fleet.shares_machines:  # On a shared machine, chance decides which node gets less.
        findings += [*_slow(fleet), *_slow_pairs(fleet)]
    return tuple(
        sorted(findings, key=lambda finding: (finding.node is None, -1 if finding.node is None else finding.node))
    )


def _unlike(fleet: Fleet) -> Iterator[NodeFinding]:
    """Yield each value that differs from that of most nodes."""
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
    """Return the distinct limits of a node's GPUs."""
    values = [getattr(gpu, name) for gpu in node.check.now.gpus]
    return " and ".join(sorted({f"{value / scale:g} {unit}" for value in values if value is not None})) or None


def _minority(
    fleet: Fleet, name: str, value_of: Callable[[FleetNode], object], *, is_fatal: bool = False
) -> Iterator[NodeFinding]:
    """Yield the nodes whose value differs from the most frequent one.

    If two values are equally frequent, the value of the node with the lowest number counts.
    """
    values = {node.number: value_of(node) for node in fleet.nodes}
    counts = Counter(value for value in values.values() if value is not None)
    if not counts or (set(values.values()) == set(counts) and len(counts) == 1):
        return
    usual = counts.most_common(1)[0][0]
    for number, value in values.items():
        if value != usual:
            words = "is unknown" if value is None else f"is {value}"
            others = plural(counts[usual], "other node")
            yield NodeFinding(node=number, text=f"its {name} {words}, but {usual} on {others}", is_fatal=is_fatal)


def _sick(fleet: Fleet) -> Iterator[NodeFinding]:
    for node in fleet.nodes:
        now, number = node.check.now, node.number
        if now.disk_bytes is not None and now.disk_bytes < LEAST_DISK_BYTES:
            yield NodeFinding(
                node=number,
                text=f"its disk has only {_gib(now.disk_bytes)} free for runs; make room",
                is_fatal=True,
            )
        peers = [peer.check.now.memory_bytes for peer in fleet.nodes if peer.number != number]
        if peers and now.memory_bytes < LEAST_MEMORY_RATIO * median(peers):
            yield NodeFinding(
                node=number,
                text=f"{_gib(now.memory_bytes)} of its memory is available, but {_gib(int(median(peers)))} on others",
            )
        for line in now.small_limits:
            yield NodeFinding(node=number, text=f"its limit is too small: {line}")
        sizes = {gpu.index: gpu.memory_bytes for gpu in node.machine.gpus}
        for gpu in now.gpus:
            size = sizes.get(gpu.index)
            if gpu.uncorrected_errors:
                yield NodeFinding(
                    node=number, text=f"GPU {gpu.index} has {gpu.uncorrected_errors} uncorrected ECC errors"
                )
            if gpu.pending_rows:
                yield NodeFinding(
                    node=number, text=f"GPU {gpu.index} needs a reset to replace rows of its memory (ECC)"
                )
            if gpu.has_failed_rows:
                text = f"GPU {gpu.index} has memory rows that could not be replaced (ECC); replace the GPU"
                yield NodeFinding(node=number, text=text)
            if size and gpu.free_bytes is not None and gpu.free_bytes < LEAST_GPU_FREE_RATIO * size:
                yield NodeFinding(
                    node=number,
                    text=f"GPU {gpu.index} has {_gib(gpu.free_bytes)} of {_gib(size)} free: another process holds it",
                )
        if "gpus" in now.absent:
            yield NodeFinding(node=number, text=f"its GPUs do not answer: {now.absent['gpus']}", is_fatal=True)


def _off_clocks(fleet: Fleet) -> Iterator[NodeFinding]:
    """Yield the clocks that differ from the others' median by more than the messages' delay can explain.

    With an even number of others, the nearer of the two middle values counts: among three clocks, the two that agree
    are right. With two nodes, the one further from the runner's own clock is reported.
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
            duration = f"{abs(off_s) / 60:.1f} min" if abs(off_s) >= 60 else f"{abs(off_s):.1f} s"
            yield NodeFinding(
                node=node.number,
                text=f"its clock is {duration} {way} the others'; synchronise its time (NTP)",
                is_fatal=sure_s > CLOCK_WRONG_S,
            )


def _slow(fleet: Fleet) -> Iterator[NodeFinding]:
    for rate in fleet.rates:
        peers = [peer for peer in fleet.rates if peer.what == rate.what and peer.node != rate.node]
        peer_rates = [peer.value for peer in peers]
        slowest_quarter = quantiles([value for peer in peers for value in peer.trials], n=4)[0] if peers else 0.0
        if peer_rates and max(rate.trials) < min(SLOW_RATIO * median(peer_rates), slowest_quarter):
            share = 100 * rate.value / median(peer_rates)
            yield NodeFinding(
                node=rate.node,
                text=f"{rate.what}: {in_units(rate.value, rate.unit)}, {share:.0f} % of its peers' median"
                f" {in_units(median(peer_rates), rate.unit)}",
            )


def _slow_pairs(fleet: Fleet) -> Iterator[NodeFinding]:
    """Yield the nodes all of whose pairs are slow, and the slow pairs of other nodes."""
    if len(fleet.pairs) < 3:
        return
    by_rate = sorted(fleet.pairs, key=lambda pair: pair.value)
    fast = by_rate[-(-3 * (len(by_rate) - 1) // 4)]
    usual = fast.value
    limit = min(SLOW_LINK_RATIO * usual, *fast.trials)
    slow = {pair.nodes: pair for pair in fleet.pairs if max(pair.trials) < limit}
    explained_pairs: set[tuple[int, int]] = set()
    for node in fleet.nodes:
        node_pairs = [pair.nodes for pair in fleet.pairs if node.number in pair.nodes]
        if (
            node_pairs
            and all(nodes in slow for nodes in node_pairs)
            and not all(pair.nodes in slow for pair in fleet.pairs)
        ):
            explained_pairs |= set(node_pairs)
            rates = " and ".join(
                f"{in_units(slow[nodes].value, 'bytes/s')} with {fleet.name(sum(nodes) - node.number)}"
                for nodes in node_pairs
            )
            yield NodeFinding(
                node=node.number, text=f"its network: {rates}; other pairs reach {in_units(usual, 'bytes/s')}"
            )
    for nodes, pair in slow.items():
        if nodes not in explained_pairs:
            names = " and ".join(fleet.name(number) for number in nodes)
            yield NodeFinding(
                node=None,
                text=f"between {names}: {in_units(pair.value, 'bytes/s')}; other pairs reach"
                f" {in_units(usual, 'bytes/s')}",
            )


def lines_of(fleet: Fleet) -> list[str]:
    """Return a line for each finding, for what was not measured, and for each change since the last good check."""
    lines = [
        finding.text if finding.node is None else f"{fleet.name(finding.node)} is bad: {finding.text}"
        for finding in fleet.findings
    ]
    lines += fleet.absent
    if not lines:
        lines = [f"{plural(len(fleet.nodes), 'node')}, no problems"]
    for node in fleet.nodes:
        lines += [
            f"{node.name} has changed since its last good check: {difference.field} was {difference.before} and is now"
            f" {difference.now}"
            for difference in node.changed
        ]
    return lines


def in_units(value: float, unit: str) -> str:
    """Return a rate in words, for example 12.3 GB/s."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{'B/s' if unit == 'bytes/s' else unit}"
    return f"{value:.3g} {'B/s' if unit == 'bytes/s' else unit}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


# Each suite run stores its check, so that the next check can be compared with the last good one.


def save(fleet: Fleet, folder: Path) -> None:
    """Write the check into the folder of a suite run.

    Raises:
        InfrastructureFailed: the file cannot be written.
    """
    try:
        content = msgspec.json.format(msgspec.json.encode(fleet), indent=2) + b"\n"
        replace_file(folder / PREFLIGHT, content)
    except OSError as error:
        raise InfrastructureFailed(f"{folder / PREFLIGHT} cannot be written: {error.strerror}") from None


def read(folder: Path) -> Fleet | str | None:
    """Return the check before a suite run; the reason if it cannot be read; None if there was no check."""
    path = folder / PREFLIGHT
    try:
        return msgspec.json.decode(read_small(path), type=Fleet)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"{path} cannot be read: {in_words(error)}"


def last_good(folders: Iterable[Path]) -> dict[str, Machine]:
    """Return the machine of each host as recorded by the newest check without a finding against the host.

    folders: the folders of suite runs, newest first.
    """
    machines: dict[str, Machine] = {}
    for folder in folders:
        fleet = read(folder)
        if isinstance(fleet, Fleet):
            for node in fleet.nodes:
                if node.number not in fleet.bad:
                    machines.setdefault(node.machine.hostname, node.machine)
    return machines
