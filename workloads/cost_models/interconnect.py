"""The interconnect as levels, each of units that hold the next smaller: the time of a mesh axis' collectives over it.

A node holds ranks, a cluster holds nodes. Each level's link joins the units below it: every unit has one, and all that
enters or leaves the unit passes over it. A message between two ranks passes the links of all levels up to the first
whose unit holds both.

All groups of an axis communicate at once, as ranks of one program do. What they send over one link shares it, and the
link that takes longest for its bytes decides: 8 groups of stride 8, one through each GPU of a node, leave the node over
the one link that the node has, an eighth for each. A group that is alone on a link may use all of it, however many
cards the link is made of, as nccl does with a ring for each card.
Not covered: collectives of two axes at the same time; a switch that is slower than its links together; and hierarchical
algorithms, which send 2 (N - 1) / N of the data over the links of N nodes, where the flat ring of n ranks here sends
2 (n - 1) / n: half as much on 2 nodes, and little less from 8 on.
Source: Leiserson 1985, Fat-trees (the load factor: bytes that must cross a cut over the cut's capacity, which bounds
the time from below).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from workloads.cost_models.communication import CommunicationBackend, Link, wire_factor, wire_messages
from workloads.cost_models.terms import Collective, Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Units of equally many consecutive ranks, such as nodes.

    ranks: that one unit holds.
    link: between a unit of the next smaller level (of the innermost: a rank) and the others in the same unit. A node's
        link is all of its network cards together.
    """

    name: str
    ranks: int
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """An axis as the world's ranks see it: groups of `size` ranks, `stride` apart.

    stride: ranks of all axes inside it, and so the groups that interleave.
    repeats: ranks of all axes outside it, and so how often the pattern stands beside itself.

    Raises:
        ValueError: one of them is below 1.
    """

    size: int
    stride: int = 1
    repeats: int = 1

    def __post_init__(self) -> None:
        if min(self.size, self.stride, self.repeats) < 1:
            raise ValueError(
                f"a mesh axis of size {self.size}, stride {self.stride} and {self.repeats} repeats has no rank; each"
                " must be 1 or more"
            )

    @property
    def ranks(self) -> int:
        """All ranks of the world."""
        return self.size * self.stride * self.repeats

    def cut(self, size: int) -> MeshAxis:
        """The axis in groups of fewer ranks, which lie next to each other on it.

        Raises:
            ValueError: they do not divide it.
        """
        if size < 1 or self.size % size:
            raise ValueError(f"an axis of {self.size} ranks cannot be cut into groups of {size}")
        return MeshAxis(size=size, stride=self.stride, repeats=self.repeats * (self.size // size))

    def groups(self) -> Iterator[range]:
        """The ranks of each group, in order."""
        block = self.size * self.stride
        for start in range(0, self.ranks, block):
            for offset in range(self.stride):
                yield range(start + offset, start + block, self.stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """Levels, innermost first; ranks are numbered so that each unit's follow each other.

    Raises:
        ValueError: there is no level, or a unit does not hold a whole number, 2 or more, of the next smaller.
    """

    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("an interconnect has no level; give one or more, innermost first")
        if self.levels[0].ranks < 1:
            raise ValueError(f"level {self.levels[0].name} holds {self.levels[0].ranks} ranks; it must be 1 or more")
        for inner, outer in pairwise(self.levels):
            if outer.ranks <= inner.ranks or outer.ranks % inner.ranks:
                raise ValueError(
                    f"level {outer.name} holds {outer.ranks} ranks and {inner.name} {inner.ranks}; it must hold a"
                    " multiple, twice or more: give levels innermost first"
                )

    @property
    def ranks(self) -> int:
        """Ranks that find room."""
        return self.levels[-1].ranks

    def meeting(self, one: int, other: int) -> int:
        """Number of the innermost level with a unit that holds both ranks."""
        return next(number for number, level in enumerate(self.levels) if one // level.ranks == other // level.ranks)

    def level_of(self, axis: MeshAxis) -> Level:
        """The innermost level whose units hold each group of the axis whole.

        Raises:
            ValueError: the mesh has more ranks than the interconnect.
        """
        self.check_room(axis)
        return self.levels[max(self.meeting(group[0], group[-1]) for group in axis.groups())]

    def check_room(self, axis: MeshAxis) -> None:
        """Nothing, where all ranks of the axis' world find room.

        Raises:
            ValueError: the mesh has more ranks than the interconnect.
        """
        if axis.ranks > self.ranks:
            raise ValueError(
                f"the mesh has {axis.ranks} ranks and level {self.levels[-1].name} holds {self.ranks}; describe a level"
                " that holds them all"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """A part of a collective that begins when the part before it is done, among members 0 to n - 1 of a group.

    sent: from which member to which, and how many nths of the tensor.
    messages: that follow each other.
    is_in_turn: the messages go from hop to hop round a ring, and so pay the mean latency of its hops; else the slowest.
    """

    sent: Sequence[tuple[int, int, int]]
    messages: int
    is_in_turn: bool = False


def mesh_axes(axes: Mapping[str, int]) -> dict[str, MeshAxis]:
    """Each axis of a mesh, given by name and size, outermost first; the last axis' neighbours are neighbours in rank.

    Raises:
        ValueError: an axis has no rank.
    """
    sizes = list(axes.values())
    return {
        name: MeshAxis(size=size, stride=math.prod(sizes[place + 1 :]), repeats=math.prod(sizes[:place]))
        for place, (name, size) in enumerate(axes.items())
    }


def axis_time_s(
    collective: Collective,
    payload_bytes: int,
    axis: MeshAxis,
    interconnect: Interconnect,
    backend: CommunicationBackend,
    *,
    calls: int = 1,
) -> float:
    """Time of collectives, one after another, that all groups of an axis run at once.

    On one level this is `communication.collective_time_s`, without the rounding to whole bytes.
    payload_bytes, calls: as there.

    Raises:
        ValueError: the mesh has more ranks than the interconnect.
    """
    interconnect.check_room(axis)
    if axis.size == 1:
        return 0.0
    whole_s = 0.0
    for phase in _phases(collective, axis.size, backend):
        share_s = max(_nths_per_bandwidth(phase, axis, interconnect)) / axis.size
        whole_s += calls * _latency_s(phase, axis, interconnect) + payload_bytes * share_s
    return whole_s


def traffic_times_s(
    transfers: Sequence[Transfer],
    axes: Mapping[str, int],
    interconnect: Interconnect,
    backend: CommunicationBackend,
) -> dict[str, float]:
    """Time of a strategy's transfers in one step, by mesh axis, each after the other and nothing hidden.

    axes: name and size, outermost first, as a card's mesh gives them.

    Raises:
        ValueError: a transfer's axis is not in the mesh, or the mesh has more ranks than the interconnect.
    """
    placed = mesh_axes(axes)
    times_s = dict.fromkeys(axes, 0.0)
    for transfer in transfers:
        if transfer.axis not in placed:
            raise ValueError(
                f"{transfer.collective} is over axis {transfer.axis!r}, which the mesh has not; its axes are"
                f" {', '.join(axes)}"
            )
        axis = placed[transfer.axis]
        times_s[transfer.axis] += axis_time_s(
            transfer.collective,
            transfer.payload_bytes,
            axis if transfer.ranks is None else axis.cut(transfer.ranks),
            interconnect,
            backend,
            calls=transfer.calls,
        )
    return times_s


def _phases(collective: Collective, ranks: int, backend: CommunicationBackend) -> list[_Phase]:
    """What a collective sends, as `wire_factor` counts it; member 0 is the root."""
    members, others = range(ranks), range(1, ranks)
    messages = wire_messages(collective, ranks, backend)
    chain = [(member - 1, member, ranks) for member in others]
    match collective, backend:
        case ("broadcast", "gloo"):
            # Of a member's number the highest bit is the level at which it is reached, the rest who sends to it.
            tree = [(member ^ (1 << member.bit_length() - 1), member, ranks) for member in others]
            return [_Phase(sent=tree, messages=messages)]
        case ("broadcast", "nccl"):
            return [_Phase(sent=chain, messages=messages, is_in_turn=True)]
        case ("reduce", "gloo"):
            ring = [(member, (member - 1) % ranks, ranks - 1) for member in members]
            return [_Phase(sent=ring, messages=ranks - 1, is_in_turn=True), *_phases("gather", ranks, backend)]
        case ("reduce", "nccl"):
            up = [(higher, lower, nths) for lower, higher, nths in chain]
            return [_Phase(sent=up, messages=messages, is_in_turn=True)]
        case ("all_to_all", _):
            pairs = [(one, other, 1) for one in members for other in members if one != other]
            return [_Phase(sent=pairs, messages=messages)]
        case ("gather", _):
            return [_Phase(sent=[(member, 0, 1) for member in others], messages=messages)]
        case ("scatter", _):
            return [_Phase(sent=[(0, member, 1) for member in others], messages=messages)]
        case ("send", _):
            return [_Phase(sent=chain, messages=messages)]
        case _:
            nths = int(wire_factor(collective, ranks, backend) * ranks)
            ring = [(member, (member + 1) % ranks, nths) for member in members]
            return [_Phase(sent=ring, messages=messages, is_in_turn=True)]


def _nths_per_bandwidth(phase: _Phase, axis: MeshAxis, interconnect: Interconnect) -> list[float]:
    """Of each link and direction: what passes over it in nths of the tensor, divided by its bandwidth."""
    below = [1, *(level.ranks for level in interconnect.levels)]
    loads: Counter[tuple[int, str, int]] = Counter()
    for group in axis.groups():
        for source, destination, nths in phase.sent:
            for number in range(interconnect.meeting(group[source], group[destination]) + 1):
                loads[number, "out", group[source] // below[number]] += nths
                loads[number, "in", group[destination] // below[number]] += nths
    links = [level.link for level in interconnect.levels]
    return [nths / links[number].bandwidth_bytes_per_second for (number, _, _), nths in loads.items()]


def _latency_s(phase: _Phase, axis: MeshAxis, interconnect: Interconnect) -> float:
    """Latency of the messages that follow each other, in the group that pays most."""
    slowest_s = 0.0
    for group in axis.groups():
        hops_s = [
            interconnect.levels[interconnect.meeting(group[source], group[destination])].link.latency_s
            for source, destination, _ in phase.sent
        ]
        hop_s = sum(hops_s) / len(hops_s) if phase.is_in_turn else max(hops_s)
        slowest_s = max(slowest_s, phase.messages * hop_s)
    return slowest_s
