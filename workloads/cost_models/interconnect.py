"""Interconnect as nested levels of units, and the time of collectives over a mesh axis on it.

A node holds ranks, a cluster holds nodes. Each level's link joins the units below it: every unit has one, and all
traffic that enters or leaves the unit passes over it. A message between two ranks passes the links of all levels up to
the first level with a unit that holds both.

All groups of an axis communicate at once, as ranks of one program do. They share a link that several of them use, and
the link that takes longest for its bytes decides: 8 groups of stride 8, one through each GPU of a node, leave the node
over its one link, each with an eighth of the bandwidth. A group that is alone on a link may use all of it, however many
network cards the link has, as NCCL does with one ring per card.
Not covered: collectives of two axes at the same time; a switch that is slower than its links together; and hierarchical
algorithms, which send 2 (N - 1) / N of the data over the links of N nodes, where the flat ring of n ranks here sends 2
(n - 1) / n: half as much on 2 nodes, and little less from 8 nodes on.
Source: Leiserson 1985, Fat-trees (the load factor: bytes that must cross a cut over the cut's capacity, which bounds
the time from below).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise

from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import CommunicationBackend, Link, wire_factor, wire_messages
from workloads.cost_models.terms import Collective, Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """Units of equally many consecutive ranks, such as nodes.

    ranks: number of ranks in one unit.
    link: joins a unit of the next smaller level (a rank, for the innermost level) to the others in the same unit; or
    why it is unknown. A node's link, on the level above it, is all of its network cards together.
    by_collective: the link as individual collectives reach it, at most one entry each; the others reach `link`. A
    library may copy or add on its way, so that collectives reach different shares of the same wires.
    """

    name: str
    ranks: int
    link: Link | Absent
    by_collective: tuple[tuple[Collective, Link], ...] = ()

    def link_of(self, collective: Collective) -> Link | Absent:
        """Return the link as a collective reaches it."""
        return dict(self.by_collective).get(collective, self.link)

    def scaled(self, bandwidth: float, latency: float = 1.0) -> NetworkLevel:
        """Return the level with this share of each known bandwidth, and of each latency."""

        def scale(link: Link) -> Link:
            return Link(
                bandwidth_bytes_per_second=bandwidth * link.bandwidth_bytes_per_second,
                latency_s=latency * link.latency_s,
            )

        return replace(
            self,
            link=self.link if isinstance(self.link, Absent) else scale(self.link),
            by_collective=tuple((collective, scale(link)) for collective, link in self.by_collective),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """A mesh axis in terms of world ranks: groups of `size` ranks, `stride` apart.

    stride: product of the sizes of all inner axes, and so the number of interleaved groups.
    repeats: product of the sizes of all outer axes, and so how often the pattern repeats.

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
        """Number of ranks in the world."""
        return self.size * self.stride * self.repeats

    def cut(self, size: int) -> MeshAxis:
        """Return the axis cut into smaller groups of ranks that are adjacent on it.

        Raises:
            ValueError: the size does not divide the axis.
        """
        if size < 1 or self.size % size:
            raise ValueError(f"an axis of {self.size} ranks cannot be cut into groups of {size}")
        return MeshAxis(size=size, stride=self.stride, repeats=self.repeats * (self.size // size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """Levels, innermost first; the ranks of each unit are consecutive.

    Raises:
        ValueError: there is no level, or a unit does not hold a whole number, 2 or more, of the next smaller.
    """

    levels: tuple[NetworkLevel, ...]

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
        """Number of ranks that the interconnect has room for."""
        return self.levels[-1].ranks

    @property
    def part_sizes(self) -> list[int]:
        """Number of ranks in a part that a level's link joins: 1 for the innermost level, then a unit of the level
        below."""
        return [1, *(level.ranks for level in self.levels[:-1])]

    def crossed(self, axis: MeshAxis) -> tuple[NetworkLevel, ...]:
        """Return the levels whose links the axis's messages pass, innermost first; none for an axis of one rank."""
        if axis.size == 1:
            return ()
        starts, _ = _distinct_starts(axis, self.part_sizes)
        groups = [range(start, start + axis.size * axis.stride, axis.stride) for start in starts]
        return tuple(
            level
            for level, size in zip(self.levels, self.part_sizes, strict=True)
            if any(group[0] // size != group[-1] // size for group in groups)
        )

    def links(self, axis: MeshAxis, collective: Collective) -> tuple[Link, ...] | Absent:
        """Return the collective's link of each level that the axis crosses, innermost first, or why the outermost's is
        unknown.

        An inner link that is unknown is taken to be the next outer one, which was measured over both: it is at least as
        fast, so that the outer link decides.
        """
        links: list[Link] = []
        for level in reversed(self.crossed(axis)):
            link = level.link_of(collective)
            if isinstance(link, Link):
                links.append(link)
            elif links:
                links.append(links[-1])
            else:
                return link
        return tuple(reversed(links))


def one_level(link: Link, ranks: int, *, name: str = "node") -> Interconnect:
    """Return the interconnect of ranks that are all joined by equal links.

    Raises:
        ValueError: there is no rank.
    """
    return Interconnect(levels=(NetworkLevel(name=name, ranks=ranks, link=link),))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """One phase of a collective among members 0 to n - 1 of a group; it begins when the phase before it is done.

    pairs: source and destination of each message; None if each member sends to each other one.
    nths: of the tensor, in each message.
    messages: number of consecutive messages.
    is_in_turn: messages go from hop to hop round a ring, and so pay the mean latency of its hops; otherwise the
    largest.
    """

    pairs: Sequence[tuple[int, int]] | None
    nths: int
    messages: int
    is_in_turn: bool = False

    def crossing(self, part_of: Sequence[int]) -> tuple[Counter[int], Counter[int]]:
        """Return how many messages leave each part, and how many enter it. part_of: the part of each member.

        Example: of ring 0-1-2-3-0 on parts [0, 0, 1, 1], message 1-2 leaves part 0, and 3-0 leaves part 1.
        """
        if self.pairs is None:
            members = Counter(part_of)
            crossing = Counter({part: count * (len(part_of) - count) for part, count in members.items()})
            return crossing, crossing
        ends = ((part_of[source], part_of[destination]) for source, destination in self.pairs)
        between = [(source, destination) for source, destination in ends if source != destination]
        return Counter(source for source, _ in between), Counter(destination for _, destination in between)


def mesh_axes(axes: Mapping[str, int]) -> dict[str, MeshAxis]:
    """Return each axis of a mesh that is given by name and size, outermost first.

    Neighbours on the last axis have adjacent ranks.

    Raises:
        ValueError: an axis has no rank.
    """
    sizes = list(axes.values())
    return {
        name: MeshAxis(size=size, stride=math.prod(sizes[number + 1 :]), repeats=math.prod(sizes[:number]))
        for number, (name, size) in enumerate(axes.items())
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
    """Return the time of consecutive collectives that all groups of an axis run at once.

    On one level this is `communication.collective_time_s`, without the rounding to whole bytes.
    payload_bytes, calls: as there.

    Raises:
        ValueError: the mesh has more ranks than the interconnect, or crosses a level whose link is unknown.
    """
    total_s = 0.0
    for messages, hop_s, byte_s in _phase_times(collective, axis, interconnect, backend):
        total_s += calls * messages * hop_s + payload_bytes * byte_s
    return total_s


@lru_cache(maxsize=256)
def _phase_times(
    collective: Collective, axis: MeshAxis, interconnect: Interconnect, backend: CommunicationBackend
) -> tuple[tuple[int, float, float], ...]:
    """Return consecutive messages of each phase, the time of one without its bytes, and that of a byte of the tensor.

    Raises:
        ValueError: as `axis_time_s`.
    """
    links = _known_links(collective, axis, interconnect)
    if axis.size == 1:
        return ()
    phases = _phases(collective, axis.size, backend)
    return tuple((phase.messages, *_hop_and_byte_s(phase, axis, interconnect, links)) for phase in phases)


def message_time_s(
    payload_bytes: int, axis: MeshAxis, interconnect: Interconnect, *, source: int, destination: int
) -> float:
    """Return the time of a message between two members of an axis, which all groups of the axis send at once.

    Its links are those of `send`.
    source, destination: positions on the axis, counted from 0.

    Raises:
        ValueError: as `axis_time_s`.
    """
    hop_s, byte_s = _message_times(axis, interconnect, source, destination)
    return hop_s + payload_bytes * byte_s


@lru_cache(maxsize=1024)
def _message_times(axis: MeshAxis, interconnect: Interconnect, source: int, destination: int) -> tuple[float, float]:
    """Return the time of a message without its bytes, and that of a byte."""
    links = _known_links("send", axis, interconnect)
    if source == destination:
        return 0.0, 0.0
    phase = _Phase(pairs=[(source, destination)], nths=axis.size, messages=1)
    return _hop_and_byte_s(phase, axis, interconnect, links)


def _known_links(collective: Collective, axis: MeshAxis, interconnect: Interconnect) -> tuple[Link, ...]:
    if axis.ranks > interconnect.ranks:
        raise ValueError(
            f"the mesh has {axis.ranks} ranks and level {interconnect.levels[-1].name} holds {interconnect.ranks};"
            " describe a level that holds them all"
        )
    links = interconnect.links(axis, collective)
    if isinstance(links, Absent):
        raise ValueError(links.reason)
    return links


def transfer_axis(transfer: Transfer, axes: Mapping[str, int]) -> MeshAxis:
    """Return the ranks that take part in a transfer: its axis, or the groups into which the transfer cuts it.

    axes: name and size, outermost first, as the mesh of a spec gives them.

    Raises:
        ValueError: the axis is not in the mesh, or the transfer's groups do not divide it.
    """
    if transfer.axis not in axes:
        raise ValueError(
            f"{transfer.collective} is over axis {transfer.axis!r}, which the mesh does not have; its axes are"
            f" {', '.join(axes)}"
        )
    axis = mesh_axes(axes)[transfer.axis]
    return axis if transfer.ranks is None else axis.cut(transfer.ranks)


def transfer_time_s(
    transfer: Transfer, axes: Mapping[str, int], interconnect: Interconnect, backend: CommunicationBackend
) -> float:
    """Return the time of a transfer in one step, not hidden; see `axis_time_s`. axes: as in `transfer_axis`."""
    axis = transfer_axis(transfer, axes)
    return axis_time_s(transfer.collective, transfer.payload_bytes, axis, interconnect, backend, calls=transfer.calls)


def traffic_times_s(
    transfers: Sequence[Transfer],
    axes: Mapping[str, int],
    interconnect: Interconnect,
    backend: CommunicationBackend,
) -> dict[str, float]:
    """Return the time of a strategy's transfers in one step, by mesh axis, one after another and none hidden.

    axes: name and size, outermost first, as the mesh of a spec gives them.

    Raises:
        ValueError: as `transfer_axis` and `axis_time_s`.
    """
    times_s = dict.fromkeys(axes, 0.0)
    for transfer in transfers:
        transfer_s = transfer_time_s(transfer, axes, interconnect, backend)
        times_s[transfer.axis] += transfer_s
    return times_s


def _phases(collective: Collective, ranks: int, backend: CommunicationBackend) -> list[_Phase]:
    """Return the messages of a collective, phase by phase, as `wire_factor` counts them; member 0 is the root."""
    members, others = range(ranks), range(1, ranks)
    messages = wire_messages(collective, ranks, backend)
    line = [(member - 1, member) for member in others]
    match collective, backend:
        case ("broadcast", "gloo"):
            # Binomial tree: the highest bit of a member's number is the level that reaches it, the rest is its sender.
            # Member 6 = 0b110 receives from 0b010 = 2 at level 2.
            tree = [(member ^ (1 << member.bit_length() - 1), member) for member in others]
            return [_Phase(pairs=tree, nths=ranks, messages=messages)]
        case ("broadcast", "nccl"):
            return [_Phase(pairs=line, nths=ranks, messages=messages, is_in_turn=True)]
        case ("reduce", "gloo"):
            ring = [(member, (member - 1) % ranks) for member in members]
            scattered = _Phase(pairs=ring, nths=ranks - 1, messages=ranks - 1, is_in_turn=True)
            return [scattered, *_phases("gather", ranks, backend)]
        case ("reduce", "nccl"):
            up = [(higher, lower) for lower, higher in line]
            return [_Phase(pairs=up, nths=ranks, messages=messages, is_in_turn=True)]
        case ("all_to_all", _):
            return [_Phase(pairs=None, nths=1, messages=messages)]
        case ("gather", _):
            return [_Phase(pairs=[(member, 0) for member in others], nths=1, messages=messages)]
        case ("scatter", _):
            return [_Phase(pairs=[(0, member) for member in others], nths=1, messages=messages)]
        case ("send", _):
            return [_Phase(pairs=line, nths=ranks, messages=messages)]
        case _:
            nths = int(wire_factor(collective, ranks, backend) * ranks)
            ring = [(member, (member + 1) % ranks) for member in members]
            return [_Phase(pairs=ring, nths=nths, messages=messages, is_in_turn=True)]


def _hop_and_byte_s(
    phase: _Phase, axis: MeshAxis, interconnect: Interconnect, links: Sequence[Link]
) -> tuple[float, float]:
    """Return the latency of one message in the group that pays most, and the time of a byte of the tensor.

    Example: on 2 nodes of 4 ranks, the links join parts of [1, 4] ranks. A message from rank 1 to rank 6 crosses parts
    of both sizes, and so loads four links: out of rank 1 and into rank 6 at level 0, out of node 0 and into node 1 at
    level 1.
    links: of the levels that the axis crosses, innermost first.
    """
    starts, alike = _distinct_starts(axis, interconnect.part_sizes)
    sizes = interconnect.part_sizes[: len(links)]
    slowest_s = busiest_s = 0.0
    # At each level, the messages out of each part and those into it, of all groups.
    loads: list[tuple[Counter[int], Counter[int]]] = [(Counter(), Counter()) for _ in sizes]
    for start in starts:
        group = range(start, start + axis.size * axis.stride, axis.stride)
        crossing: list[int] = []
        for size, (all_out, all_into) in zip(sizes, loads, strict=True):
            out, into = phase.crossing([rank // size for rank in group])
            all_out.update(out)
            all_into.update(into)
            crossing.append(out.total())
        # A message that crosses parts of one level, but none of the next, is a hop over that level's link.
        hops = [count - outer for count, outer in pairwise((*crossing, 0))]
        latencies_s = [link.latency_s for link in links]
        if phase.is_in_turn:
            hop_s = sum(count * late_s for count, late_s in zip(hops, latencies_s, strict=True)) / crossing[0]
        else:
            hop_s = max(late_s for count, late_s in zip(hops, latencies_s, strict=True) if count)
        slowest_s = max(slowest_s, hop_s)
    for number, (link, (all_out, all_into)) in enumerate(zip(links, loads, strict=True)):
        groups = alike if number else 1  # A rank is in one group only.
        messages = groups * max((*all_out.values(), *all_into.values()), default=0)
        busiest_s = max(busiest_s, messages * phase.nths / axis.size / link.bandwidth_bytes_per_second)
    return slowest_s, busiest_s


def _distinct_starts(axis: MeshAxis, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the first rank of groups that stand for all, and for how many groups each of them stands.

    Groups whose members are in the same parts, one by one, load the same links alike: with a stride of 8 on nodes of 4,
    groups 0-3 are alike, and so are groups 4-7. And a repetition on other parts of the outermost size adds load to no
    link: with that stride, groups 4-7 are on other nodes than groups 0-3.
    """
    outermost = sizes[-1]
    alike = math.gcd(axis.stride, sizes[min(1, len(sizes) - 1)])
    if axis.stride % outermost == 0:
        return list(range(0, outermost, alike)), alike
    block = axis.size * axis.stride
    period = min(axis.ranks, math.lcm(block, outermost))
    starts = (range(first, first + axis.stride, alike) for first in range(0, period, block))
    return list(chain.from_iterable(starts)), alike
