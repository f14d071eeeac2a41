"""Nodes are judged by their peers: what is unlike, sick, off or slow is named with its evidence, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.engines.agent_link import NodeCheck
from bench.errors import InfrastructureFailed
from bench.machine.doctor import fleet
from bench.machine.doctor.fleet import Fleet, FleetNode, NodeFinding, PairRate, Rate, judge, last_good
from bench.machine.gpus import Gpu
from bench.machine.machine_diff import MachineDifference
from bench.machine.node_now import GpuNow, NodeNow
from tests.bench.made.examples import make_machine

GPU = Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", memory_bytes=100 << 30)
NOW = NodeNow(
    memory_bytes=100 << 30,
    disk_bytes=100 << 30,
    cpu_governor="performance",
    gpus=(
        GpuNow(index=0, uuid="GPU-0", free_bytes=99 << 30, clock_limit_hertz=1_980_000_000, power_limit_watts=700.0),
    ),
)


def _node(number: int, now: dict[str, Any] | None = None, offset_s: float = 0.0, **machine: Any) -> FleetNode:
    return FleetNode(
        number=number,
        name=f"n{number}",
        machine=replace(make_machine(), hostname=f"n{number}", gpus=(GPU,), **machine),
        check=NodeCheck(now=replace(NOW, **(now or {})), offset_s=offset_s, offset_error_s=0.01),
    )


def _fleet(*nodes: FleetNode, **changes: Any) -> Fleet:
    return Fleet(engine="slurm", time_ns=1, nodes=nodes, **changes)


def _four(odd: FleetNode, **changes: Any) -> Fleet:
    """Four nodes; that of the odd one's number is replaced by it."""
    return _fleet(*(odd if number == odd.number else _node(number) for number in range(4)), **changes)


def test_nodes_that_are_alike_have_no_finding() -> None:
    assert judge(_four(_node(0))) == ()


@pytest.mark.parametrize(
    ("machine", "text", "is_fatal"),
    [
        ({"torch_version": "2.12.0"}, "its torch is 2.12.0, but 2.13.0 on 3 other nodes", True),
        ({"own_version": "0.0.9"}, "its parallel-observatory is 0.0.9, but 0.1.0 on 3 other nodes", True),
        ({"own_version": None}, "its parallel-observatory is unknown, but 0.1.0 on 3 other nodes", True),
        ({"kernel": "5.15"}, "its kernel is 5.15, but 6.1 on 3 other nodes", False),
        ({"cpu": "Intel"}, "its CPU is Intel, but AMD EPYC on 3 other nodes", False),
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_the_one_that_differs_from_most_is_named(
    machine: dict[str, Any], text: str, is_fatal: bool, number: int
) -> None:
    assert judge(_four(_node(number, **machine))) == (NodeFinding(node=number, text=text, is_fatal=is_fatal),)


def test_of_two_that_differ_the_second_is_named() -> None:
    (found,) = judge(_fleet(_node(0, driver_version="580"), _node(1, driver_version="570")))
    assert found == NodeFinding(node=1, text="its driver is 570, but 580 on 1 other node")


@pytest.mark.parametrize(
    ("now", "text", "is_fatal"),
    [
        ({"disk_bytes": 100 << 20}, "its disk has only 0.1 GiB free for runs; make room", True),
        ({"memory_bytes": 40 << 30}, "40.0 GiB of its memory is available, but 100.0 GiB on others", False),
        (
            {"small_limits": ("/dev/shm: 64 MiB, but needed: 546 MiB",)},
            "its limit is too small: /dev/shm: 64 MiB, but needed: 546 MiB",
            False,
        ),
        ({"cpu_governor": "powersave"}, "its CPU governor is powersave, but performance on 3 other nodes", False),
        ({"gpus": (replace(NOW.gpus[0], uncorrected_errors=2),)}, "GPU 0 has 2 uncorrected ECC errors", False),
        (
            {"gpus": (replace(NOW.gpus[0], pending_rows=1),)},
            "GPU 0 needs a reset to replace rows of its memory (ECC)",
            False,
        ),
        (
            {"gpus": (replace(NOW.gpus[0], has_failed_rows=True),)},
            "GPU 0 has memory rows that could not be replaced (ECC); replace the GPU",
            False,
        ),
        (
            {"gpus": (replace(NOW.gpus[0], free_bytes=50 << 30),)},
            "GPU 0 has 50.0 GiB of 100.0 GiB free: another process holds it",
            False,
        ),
        (
            {"gpus": (replace(NOW.gpus[0], clock_limit_hertz=1_500_000_000),)},
            "its clock limit of GPUs is 1500 MHz, but 1980 MHz on 3 other nodes",
            False,
        ),
        (
            {"gpus": (replace(NOW.gpus[0], power_limit_watts=500.0),)},
            "its power limit of GPUs is 500 W, but 700 W on 3 other nodes",
            False,
        ),
        ({"absent": {"gpus": "NVML: Unknown Error"}}, "its GPUs do not answer: NVML: Unknown Error", True),
    ],
)
def test_a_sick_node_is_named(now: dict[str, Any], text: str, is_fatal: bool) -> None:
    assert judge(_four(_node(1, now))) == (NodeFinding(node=1, text=text, is_fatal=is_fatal),)


@pytest.mark.parametrize(
    ("offset_s", "words", "is_fatal"),
    [(-5.0, "5.0 s behind", False), (300.0, "5.0 min ahead of", True)],
)
def test_a_clock_that_is_off_is_told_and_minutes_are_fatal(offset_s: float, words: str, is_fatal: bool) -> None:
    text = f"its clock is {words} the others'; synchronise its time (NTP)"
    assert judge(_four(_node(3, offset_s=offset_s))) == (NodeFinding(node=3, text=text, is_fatal=is_fatal),)


def test_less_than_a_second_is_no_finding() -> None:
    assert judge(_four(_node(3, offset_s=0.9))) == ()


def _two(offset_s: float) -> Fleet:
    return _fleet(_node(0), _node(1, offset_s=offset_s))


@pytest.mark.parametrize(
    ("offset_s", "words", "is_fatal"),
    [(1.5, "1.5 s ahead of", False), (-59.0, "59.0 s behind", False), (100.0, "1.7 min ahead of", True)],
)
def test_of_two_clocks_the_one_that_is_further_from_the_runner_s_is_told_with_the_whole_difference(
    offset_s: float, words: str, is_fatal: bool
) -> None:
    text = f"its clock is {words} the others'; synchronise its time (NTP)"
    assert judge(_two(offset_s)) == (NodeFinding(node=1, text=text, is_fatal=is_fatal),)
    (found,) = judge(_fleet(_node(0, offset_s=offset_s), _node(1)))
    assert found == NodeFinding(node=0, text=text, is_fatal=is_fatal)


def test_of_three_clocks_the_two_that_agree_are_right() -> None:
    (found,) = judge(_fleet(_node(0), _node(1, offset_s=100.0), _node(2)))
    assert (found.node, found.text[:30]) == (1, "its clock is 1.7 min ahead of ")


def test_one_clock_alone_is_compared_with_none() -> None:
    assert judge(_fleet(_node(0, offset_s=500.0))) == ()


def test_a_runner_whose_own_clock_is_off_blames_no_node() -> None:
    assert judge(_fleet(*(_node(number, offset_s=-400.0) for number in range(3)))) == ()


def _rates(*trials: tuple[float, ...]) -> tuple[Rate, ...]:
    return tuple(Rate(node=node, what="matmul", unit="FLOP/s", trials=one) for node, one in enumerate(trials))


def test_a_node_that_is_slow_in_each_trial_is_named_with_its_share() -> None:
    usual = (99e9, 100e9, 101e9)
    found = judge(_four(_node(0), rates=_rates(usual, usual, (79e9, 80e9, 81e9), usual)))
    assert found == (NodeFinding(node=2, text="matmul: 80 GFLOP/s, 80 % of its peers' median 100 GFLOP/s"),)


@pytest.mark.parametrize("trials", [(60e9, 80e9, 100e9), (93e9, 94e9, 95e9)])
def test_one_slow_trial_or_a_few_per_cent_are_no_finding(trials: tuple[float, ...]) -> None:
    usual = (99e9, 100e9, 101e9)
    assert judge(_four(_node(0), rates=_rates(usual, trials, usual, usual))) == ()


def test_speeds_of_nodes_that_share_a_machine_are_not_judged() -> None:
    slow = _rates((99e9, 100e9, 101e9), (49e9, 50e9, 51e9))
    assert len(judge(_fleet(_node(0), _node(1), rates=slow))) == 1
    second = replace(_node(1), machine=replace(_node(1).machine, hostname="n0"))
    assert judge(_fleet(_node(0), second, rates=slow)) == ()


def _pairs(**rates: float) -> tuple[PairRate, ...]:
    """By the numbers of both nodes, such as p01, the rate in Mbyte/s."""
    return tuple(
        PairRate(nodes=(int(name[1]), int(name[2])), trials=(0.99e6 * rate, 1e6 * rate, 1.01e6 * rate))
        for name, rate in rates.items()
    )


def test_a_node_all_of_whose_pairs_are_slow_is_named() -> None:
    found = judge(_four(_node(0), pairs=_pairs(p01=100, p12=50, p23=40, p03=100)))
    assert found == (
        NodeFinding(node=2, text="its network: 50 MB/s with n1 and 40 MB/s with n3; other pairs reach 100 MB/s"),
    )


def test_of_three_nodes_the_slow_one_is_named() -> None:
    nodes = [_node(number) for number in range(3)]
    (found,) = judge(_fleet(*nodes, pairs=_pairs(p01=50, p12=50, p02=100)))
    assert found.node == 1


def test_one_slow_pair_is_a_link_s_and_no_node_s() -> None:
    found = judge(_four(_node(0), pairs=_pairs(p01=100, p12=50, p23=100, p03=100)))
    assert found == (NodeFinding(node=None, text="between n1 and n2: 50 MB/s; other pairs reach 100 MB/s"),)
    assert _four(_node(0), findings=found).bad == ()


def test_two_nodes_have_one_pair_and_nothing_to_compare_it_with() -> None:
    assert judge(_fleet(_node(0), _node(1), pairs=_pairs(p01=1))) == ()


def test_what_was_found_is_kept_and_the_last_good_machine_of_each_host_found_again(tmp_path: Path) -> None:
    older, newer, none = (tmp_path / name for name in ("a", "b", "c"))
    for folder in (older, newer, none):
        folder.mkdir()
    first = _fleet(_node(0, kernel="6.0"), _node(1, kernel="6.0"))
    bad = NodeFinding(node=1, text="its disk is full", is_fatal=True)
    second = _fleet(_node(0), _node(1), findings=(bad,), pairs=_pairs(p01=3), absent=("copies is absent: it failed",))
    fleet.save(first, older)
    fleet.save(second, newer)
    assert fleet.read(newer) == second
    assert fleet.read(none) is None
    found = last_good([none, newer, older])
    assert {host: machine.kernel for host, machine in found.items()} == {"n0": "6.1", "n1": "6.0"}


def test_a_record_that_cannot_be_read_says_so_and_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / fleet.PREFLIGHT).write_text("{")
    assert f"{tmp_path / fleet.PREFLIGHT} cannot be read: " in str(fleet.read(tmp_path))
    assert last_good([tmp_path]) == {}


def test_a_record_that_cannot_be_written_is_the_infrastructure_s(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailed, match=r"preflight\.json cannot be written: No such file"):
        fleet.save(_fleet(_node(0)), tmp_path / "gone")


def test_each_line_names_its_node() -> None:
    changed = replace(_node(1), changed=(MachineDifference(field="driver", before="570", now="580"),))
    found = _fleet(_node(0), changed, findings=(NodeFinding(node=0, text="its disk is full"),))
    assert fleet.lines_of(found) == [
        "n0 is bad: its disk is full",
        "n1 has changed since its last good check: driver was 570 and is now 580",
    ]
    assert fleet.lines_of(_fleet(_node(0))) == ["1 node, no problems"]


def test_where_something_was_not_measured_nothing_is_called_well() -> None:
    assert fleet.lines_of(_fleet(_node(0), absent=("copies is absent: it failed",))) == ["copies is absent: it failed"]
