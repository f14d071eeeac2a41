"""Times over several levels, against answers made by hand and against the law of one link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import (
    CommunicationBackend,
    Link,
    collective_time_s,
    wire_factor,
    wire_messages,
)
from workloads.cost_models.interconnect import (
    Interconnect,
    MeshAxis,
    NetworkLevel,
    axis_time_s,
    mesh_axes,
    message_time_s,
    one_level,
    traffic_times_s,
)
from workloads.cost_models.terms import Collective, Transfer

GIGABYTE = 10**9


def level(name: str, ranks: int, gigabytes_per_second: float = 1.0, latency_s: float = 0.0) -> NetworkLevel:
    link = Link(bandwidth_bytes_per_second=gigabytes_per_second * 1e9, latency_s=latency_s)
    return NetworkLevel(name=name, ranks=ranks, link=link)


CLUSTER = Interconnect(levels=(level("node", 8, 300), level("cluster", 64, 50)))


def time_ms(collective: Collective, axis: MeshAxis, backend: CommunicationBackend = "nccl") -> float:
    return 1e3 * axis_time_s(collective, GIGABYTE, axis, CLUSTER, backend)


def groups_of(axis: MeshAxis) -> Iterator[range]:
    """Yield the ranks of each group, in order."""
    block = axis.size * axis.stride
    for start in range(0, axis.ranks, block):
        for offset in range(axis.stride):
            yield range(start + offset, start + block, axis.stride)


def enumerated_s(
    collective: Collective,
    payload_bytes: int,
    axis: MeshAxis,
    interconnect: Interconnect,
    backend: CommunicationBackend,
) -> float:
    """Return the time of a collective by the loads of each message of each group, as the docstrings define them."""
    below = [1, *(each.ranks for each in interconnect.levels[:-1])]
    links = [each.link for each in interconnect.levels if isinstance(each.link, Link)]
    total_s = 0.0
    for sent, messages, is_in_turn in phases_of(collective, axis.size, backend):
        loads: Counter[tuple[int, str, int]] = Counter()
        slowest_s = 0.0
        for group in groups_of(axis):
            hops_s = []
            for source, destination, nths in ((group[source], group[other], nths) for source, other, nths in sent):
                meeting = max(number for number, ranks in enumerate(below) if source // ranks != destination // ranks)
                hops_s.append(links[meeting].latency_s)
                for number in range(meeting + 1):
                    loads[number, "out", source // below[number]] += nths
                    loads[number, "in", destination // below[number]] += nths
            slowest_s = max(slowest_s, messages * (sum(hops_s) / len(hops_s) if is_in_turn else max(hops_s)))
        bandwidths = [each.bandwidth_bytes_per_second for each in links]
        busiest = max(nths / bandwidths[number] for (number, _, _), nths in loads.items())
        total_s += slowest_s + payload_bytes * busiest / axis.size
    return total_s


def phases_of(
    collective: Collective, ranks: int, backend: CommunicationBackend
) -> list[tuple[list[tuple[int, int, int]], int, bool]]:
    """Return each phase's messages (source, destination, nths of the tensor), how many follow each other, and whether
    they go from hop to hop."""
    others, messages = range(1, ranks), wire_messages(collective, ranks, backend)
    match collective, backend:
        case ("broadcast", "gloo"):
            return [([(member - (1 << member.bit_length() - 1), member, ranks) for member in others], messages, False)]
        case ("broadcast", "nccl"):
            return [([(member - 1, member, ranks) for member in others], messages, True)]
        case ("reduce", "gloo"):
            ring = [(member, (member - 1) % ranks, ranks - 1) for member in range(ranks)]
            return [(ring, ranks - 1, True), *phases_of("gather", ranks, backend)]
        case ("reduce", "nccl"):
            return [([(member, member - 1, ranks) for member in others], messages, True)]
        case ("all_to_all", _):
            pairs = [(member, other, 1) for member, other in product(range(ranks), repeat=2) if member != other]
            return [(pairs, messages, False)]
        case ("gather", _):
            return [([(member, 0, 1) for member in others], messages, False)]
        case ("scatter", _):
            return [([(0, member, 1) for member in others], messages, False)]
        case ("send", _):
            return [([(member - 1, member, ranks) for member in others], messages, False)]
    nths = round(wire_factor(collective, ranks, backend) * ranks)
    return [([(member, (member + 1) % ranks, nths) for member in range(ranks)], messages, True)]


LEVELS = [
    Interconnect(levels=(level("node", 48, 7, 2.0),)),
    Interconnect(levels=(level("node", 1, 300, 1.0), level("cluster", 48, 50, 3.0))),
    Interconnect(levels=(level("node", 4, 300, 1.0), level("cluster", 48, 50, 3.0))),
    Interconnect(levels=(level("node", 6, 3, 9.0), level("cluster", 48, 50, 4.0))),
    Interconnect(levels=(level("node", 2, 90, 1.0), level("rack", 6, 7, 5.0), level("hall", 48, 11, 2.0))),
    Interconnect(levels=(level("node", 4, 90, 1.0), level("rack", 16, 7, 5.0), level("hall", 48, 11, 2.0))),
    Interconnect(levels=(level("node", 5, 90, 1.0), level("rack", 25, 7, 5.0), level("hall", 50, 1, 2.0))),
]


@pytest.mark.parametrize("interconnect", LEVELS)
@pytest.mark.parametrize("backend", get_args(CommunicationBackend))
def test_groups_that_are_alike_cost_what_all_groups_one_by_one_do(
    interconnect: Interconnect, backend: CommunicationBackend
) -> None:
    meshes = [
        MeshAxis(size=size, stride=stride, repeats=repeats)
        for size, stride, repeats in product((2, 3, 4, 6, 8, 12, 16), (1, 2, 3, 4, 6, 8, 12, 16), (1, 2, 3, 4))
        if size * stride * repeats <= 48
    ]
    for axis, collective in product(meshes, get_args(Collective)):
        expected_s = enumerated_s(collective, GIGABYTE, axis, interconnect, backend)
        elapsed_s = axis_time_s(collective, GIGABYTE, axis, interconnect, backend)
        assert elapsed_s == pytest.approx(expected_s, rel=1e-12), (collective, axis)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("backend", get_args(CommunicationBackend))
@pytest.mark.parametrize("collective", get_args(Collective))
def test_on_one_level_it_is_the_law_of_one_link(
    collective: Collective, backend: CommunicationBackend, ranks: int
) -> None:
    link = Link(bandwidth_bytes_per_second=300 * GIGABYTE, latency_s=5e-6)
    expected_s = collective_time_s(collective, GIGABYTE, ranks, link, backend, calls=3)
    elapsed_s = axis_time_s(collective, GIGABYTE, MeshAxis(size=ranks), one_level(link, 8), backend, calls=3)
    assert elapsed_s == pytest.approx(expected_s)


def test_inside_a_node_a_gigabyte_on_eight_gpus_takes_5_8_ms() -> None:
    assert time_ms("all_reduce", MeshAxis(size=8, repeats=8)) == pytest.approx(5.833, abs=1e-3)


def test_a_ring_over_two_nodes_leaves_each_once_and_takes_the_slow_links_time() -> None:
    assert time_ms("all_reduce", MeshAxis(size=16)) == pytest.approx(2 * 15 / 16 / 50 * 1e3)


def test_eight_groups_share_the_link_by_which_they_leave_their_node() -> None:
    assert time_ms("all_reduce", MeshAxis(size=2, stride=8)) == pytest.approx(8 * 1 / 50 * 1e3)


def test_two_groups_that_interleave_in_a_node_share_its_link() -> None:
    assert time_ms("all_reduce", MeshAxis(size=8, stride=2)) == pytest.approx(2 * (2 * 7 / 8) / 50 * 1e3)


def test_groups_of_other_nodes_cost_nothing() -> None:
    assert time_ms("all_reduce", MeshAxis(size=16, repeats=4)) == time_ms("all_reduce", MeshAxis(size=16))


def test_all_to_all_over_two_nodes_sends_half_of_each_ranks_data_out() -> None:
    assert time_ms("all_to_all", MeshAxis(size=16)) == pytest.approx(8 * 0.5 / 50 * 1e3)


def test_a_root_gathers_over_its_nodes_link_what_other_nodes_hold() -> None:
    assert time_ms("gather", MeshAxis(size=16)) == pytest.approx(0.5 / 50 * 1e3)
    assert time_ms("scatter", MeshAxis(size=16)) == pytest.approx(0.5 / 50 * 1e3)


def test_gloos_reduce_pays_its_ring_and_then_its_gather() -> None:
    expected_ms = (15 / 16 + 1 / 2) / 50 * 1e3
    assert time_ms("reduce", MeshAxis(size=16), "gloo") == pytest.approx(expected_ms)


def test_gloos_broadcast_leaves_the_first_node_once_for_each_of_its_ranks() -> None:
    assert time_ms("broadcast", MeshAxis(size=16), "gloo") == pytest.approx(8 / 50 * 1e3)


def test_stages_of_a_node_each_send_to_the_next_node_over_its_one_link() -> None:
    assert time_ms("send", MeshAxis(size=8, stride=8)) == pytest.approx(8 / 50 * 1e3)


def test_a_unit_that_two_groups_straddle_carries_both() -> None:
    # Of groups 0-5 and 6-11 on nodes of 4, the second node holds a part of each.
    nodes = Interconnect(levels=(level("node", 4, 300), level("cluster", 12, 50)))
    elapsed_s = axis_time_s("all_gather", GIGABYTE, MeshAxis(size=6, repeats=2), nodes, "nccl")
    assert elapsed_s == pytest.approx(2 * 5 / 6 / 50)


def test_a_third_level_is_crossed_by_way_of_the_second() -> None:
    # A slow node link carries what goes on to another rack, too.
    racks = Interconnect(levels=(level("node", 2, 300), level("rack", 4, 1), level("hall", 8, 100)))
    assert axis_time_s("send", GIGABYTE, MeshAxis(size=2, stride=4), racks, "nccl") == pytest.approx(2.0)


def test_a_ring_pays_the_mean_latency_of_its_hops() -> None:
    # Of the hops 0-1, 1-2, 2-3, 3-0 two leave a node; an all_gather of 4 takes 3 messages.
    nodes = Interconnect(levels=(level("node", 2, 1, latency_s=1.0), level("cluster", 4, 1, latency_s=5.0)))
    assert axis_time_s("all_gather", 0, MeshAxis(size=4), nodes, "nccl") == pytest.approx(3 * 3.0)


def test_messages_that_travel_at_once_pay_the_latency_of_the_slowest() -> None:
    nodes = Interconnect(levels=(level("node", 2, 1, latency_s=1.0), level("cluster", 4, 1, latency_s=5.0)))
    assert axis_time_s("all_to_all", 0, MeshAxis(size=4), nodes, "nccl", calls=2) == pytest.approx(2 * 5.0)


def test_an_axis_divides_all_ranks_into_groups_a_stride_apart() -> None:
    groups = [list(group) for group in groups_of(MeshAxis(size=2, stride=2, repeats=2))]
    assert groups == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_the_last_axis_of_a_mesh_is_the_innermost() -> None:
    assert mesh_axes({"data": 2, "pipeline": 4, "tensor": 8}) == {
        "data": MeshAxis(size=2, stride=32, repeats=1),
        "pipeline": MeshAxis(size=4, stride=8, repeats=2),
        "tensor": MeshAxis(size=8, stride=1, repeats=8),
    }


def test_a_strategys_traffic_is_told_by_axis() -> None:
    mesh = {"data": 2, "pipeline": 4, "tensor": 8}
    transfers = [
        Transfer(collective="all_reduce", axis="data", payload_bytes=GIGABYTE),
        Transfer(collective="all_reduce", axis="tensor", payload_bytes=GIGABYTE),
        Transfer(collective="all_reduce", axis="tensor", payload_bytes=GIGABYTE),
    ]
    times_s = traffic_times_s(transfers, mesh, CLUSTER, "nccl")
    assert list(times_s) == ["data", "pipeline", "tensor"]
    assert times_s["data"] == pytest.approx(8 / 50)
    assert times_s["pipeline"] == 0
    assert times_s["tensor"] == pytest.approx(2 * 2 * 7 / 8 / 300)


def test_each_call_of_a_transfer_pays_its_latency() -> None:
    late = Interconnect(levels=(level("node", 2, 1, latency_s=1.0),))
    transfers = [Transfer(collective="all_reduce", axis="data", payload_bytes=0, calls=calls) for calls in (3, 4)]
    assert traffic_times_s(transfers, {"data": 2}, late, "nccl") == {"data": pytest.approx(2 * 7)}


def test_a_transfer_over_an_axis_that_the_mesh_has_not_is_refused() -> None:
    transfers = [Transfer(collective="send", axis="pipe", payload_bytes=1)]
    with pytest.raises(ValueError, match="over axis 'pipe', which the mesh does not have; its axes are data, tensor"):
        traffic_times_s(transfers, {"data": 2, "tensor": 2}, CLUSTER, "nccl")


def test_a_mesh_that_finds_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="the mesh has 128 ranks and level cluster holds 64"):
        time_ms("send", MeshAxis(size=2, stride=64))


def test_levels_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="level node holds 8 ranks and cluster 64; it must hold a multiple"):
        Interconnect(levels=(level("cluster", 64), level("node", 8)))


def test_a_level_that_does_not_hold_whole_units_is_refused() -> None:
    with pytest.raises(ValueError, match="level cluster holds 12 ranks and node 8"):
        Interconnect(levels=(level("node", 8), level("cluster", 12)))


def test_no_level_and_no_rank_are_refused() -> None:
    with pytest.raises(ValueError, match="an interconnect has no level"):
        Interconnect(levels=())
    with pytest.raises(ValueError, match="level node holds 0 ranks"):
        Interconnect(levels=(level("node", 0),))
    with pytest.raises(ValueError, match="a mesh axis of size 0, stride 1 and 1 repeats has no rank"):
        MeshAxis(size=0)


def test_an_axis_that_is_cut_has_its_groups_side_by_side() -> None:
    whole = MeshAxis(size=4, stride=2, repeats=3)
    assert [list(group) for group in groups_of(whole.cut(2))][:4] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert whole.cut(2).ranks == whole.ranks
    with pytest.raises(ValueError, match="an axis of 4 ranks cannot be cut into groups of 3"):
        whole.cut(3)


def test_a_transfer_among_fewer_ranks_costs_what_they_pay() -> None:
    nodes = Interconnect(levels=(level("node", 2, 100), level("cluster", 4, 1)))
    near = Transfer(collective="all_gather", axis="data", payload_bytes=GIGABYTE, ranks=2)
    assert traffic_times_s([near], {"data": 4}, nodes, "nccl") == {"data": pytest.approx(1 / 2 / 100)}


UNKNOWN = Absent(reason="nothing was measured across nodes")


def test_an_axis_crosses_the_levels_on_which_its_ranks_are_apart() -> None:
    def crossed(axis: MeshAxis) -> list[str]:
        return [each.name for each in CLUSTER.crossed(axis)]

    assert crossed(MeshAxis(size=8, repeats=8)) == ["node"]
    assert crossed(MeshAxis(size=8, stride=8)) == ["node", "cluster"]
    assert crossed(MeshAxis(size=16, repeats=4)) == ["node", "cluster"]
    assert crossed(MeshAxis(size=6, repeats=4)) == ["node", "cluster"]  # Ranks 6 to 11 are on two nodes.
    assert crossed(MeshAxis(size=1, repeats=64)) == []


def test_a_level_without_a_link_is_missed_only_by_axes_that_cross_it() -> None:
    known = level("node", 8, 300)
    cluster = Interconnect(levels=(known, NetworkLevel(name="cluster", ranks=64, link=UNKNOWN)))
    inside = MeshAxis(size=8, repeats=8)
    assert cluster.links(inside, "all_reduce") == (known.link,)
    assert axis_time_s("all_reduce", GIGABYTE, inside, cluster, "nccl") == axis_time_s(
        "all_reduce", GIGABYTE, inside, CLUSTER, "nccl"
    )
    assert cluster.links(MeshAxis(size=8, stride=8), "all_reduce") == UNKNOWN
    with pytest.raises(ValueError, match="nothing was measured across nodes"):
        axis_time_s("all_reduce", GIGABYTE, MeshAxis(size=8, stride=8), cluster, "nccl")


def test_an_inner_link_that_is_unknown_is_as_fast_as_what_was_measured_over_it() -> None:
    outer = level("cluster", 64, 50)
    half = Interconnect(levels=(NetworkLevel(name="node", ranks=8, link=UNKNOWN), outer))
    assert half.links(MeshAxis(size=64), "all_reduce") == (outer.link, outer.link)
    assert half.links(MeshAxis(size=8, repeats=8), "all_reduce") == UNKNOWN
    expected_s = axis_time_s("all_reduce", GIGABYTE, MeshAxis(size=64), CLUSTER, "nccl")
    assert axis_time_s("all_reduce", GIGABYTE, MeshAxis(size=64), half, "nccl") == expected_s


def test_a_message_of_all_groups_shares_the_nodes_link() -> None:
    axis = MeshAxis(size=4, stride=4)  # Nodes of 8: stages 0 and 1 are on the first node, 2 and 3 on the second.
    cluster = Interconnect(levels=(level("node", 8, 300, 1.0), level("cluster", 16, 50, 3.0)))
    inside_s = message_time_s(GIGABYTE, axis, cluster, source=0, destination=1)
    across_s = message_time_s(GIGABYTE, axis, cluster, source=2, destination=1)
    assert inside_s == pytest.approx(1.0 + 1 / 300)
    assert across_s == pytest.approx(3.0 + 4 / 50)
    assert message_time_s(GIGABYTE, axis, cluster, source=1, destination=1) == 0


# Links of single collectives.


def test_each_collective_takes_its_own_link_and_the_others_that_of_all() -> None:
    slow = Link(bandwidth_bytes_per_second=100e9, latency_s=1.0)
    node = replace(level("node", 8, 300), by_collective=(("all_gather", slow), ("send", slow)))
    axis, inside = MeshAxis(size=8), Interconnect(levels=(node,))
    assert axis_time_s("all_gather", 0, axis, inside, "nccl") == 7 * 1.0
    assert axis_time_s("all_gather", GIGABYTE, axis, inside, "nccl") - 7 == pytest.approx(7 / 8 / 100)
    assert axis_time_s("reduce_scatter", GIGABYTE, axis, inside, "nccl") == pytest.approx(7 / 8 / 300)
    assert message_time_s(0, axis, inside, source=0, destination=1) == 1.0


def test_a_collective_over_two_levels_takes_the_link_of_its_own_where_a_level_has_one() -> None:
    slow = Link(bandwidth_bytes_per_second=10e9)
    outer = replace(level("cluster", 16, 50), by_collective=(("all_gather", slow),))
    nodes = Interconnect(levels=(level("node", 8, 300), outer))
    assert nodes.links(MeshAxis(size=16), "all_gather") == (nodes.levels[0].link, slow)
    assert nodes.links(MeshAxis(size=16), "all_reduce") == (nodes.levels[0].link, outer.link)


def test_a_collective_with_a_link_needs_no_other() -> None:
    known = Link(bandwidth_bytes_per_second=10e9)
    node = NetworkLevel(name="node", ranks=8, link=UNKNOWN, by_collective=(("all_gather", known),))
    inside = Interconnect(levels=(node,))
    assert inside.links(MeshAxis(size=8), "all_gather") == (known,)
    assert inside.links(MeshAxis(size=8), "all_reduce") == UNKNOWN


def test_a_scaled_level_scales_the_links_of_all_collectives() -> None:
    of_all, own = Link(bandwidth_bytes_per_second=8.0, latency_s=4.0), Link(bandwidth_bytes_per_second=2.0)
    node = NetworkLevel(name="node", ranks=2, link=of_all, by_collective=(("send", own),))
    scaled = node.scaled(0.5, latency=2.0)
    assert scaled.link == Link(bandwidth_bytes_per_second=4.0, latency_s=8.0)
    assert scaled.by_collective == (("send", Link(bandwidth_bytes_per_second=1.0)),)
    assert replace(node, link=UNKNOWN).scaled(0.5).link == UNKNOWN
