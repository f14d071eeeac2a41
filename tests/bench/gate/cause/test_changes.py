"""What changed between two runs is listed with the rarest first; one change that carries others is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.gate.cause.changes import Change, Reading, changes_between, topics_of
from bench.gate.cause.likely import likely
from bench.machine.gpus import Gpu, GpuLink
from bench.machine.machine import Machine
from tests.bench.made.examples import make_machine
from tests.bench.made.fake_nights import DAY_NS

NIGHTS = 30


def _machine(**changes: Any) -> Machine:
    return replace(make_machine(), driver_version="550.54", nccl_version="2.27.3", **changes)


def _reading(night: int, machine: Machine | None = None, **changes: Any) -> Reading:
    made = Reading(
        run=f"run{night}", started_ns=night * DAY_NS, machine=machine or _machine(), hosts=("node0",), commit="0" * 40
    )
    return replace(made, **changes)


def _nights(good: Reading, bad: Reading) -> list[Reading]:
    """Thirty nights like the good run, and the bad one."""
    before = [replace(good, run=f"run{night}", started_ns=night * DAY_NS) for night in range(NIGHTS - 1)]
    return [*before, replace(good, started_ns=(NIGHTS - 1) * DAY_NS), replace(bad, started_ns=NIGHTS * DAY_NS)]


def _changes(good: Reading, bad: Reading) -> tuple[Change, ...]:
    past = _nights(good, bad)
    return changes_between(past[-2], past[-1], past)


def _gpus(*uuids: str, **changes: Any) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(index=index, name="NVIDIA H200", uuid=uuid, memory_bytes=1 << 37, **changes)
        for index, uuid in enumerate(uuids)
    )


def _rare(changes: Sequence[Change]) -> tuple[str, ...]:
    return topics_of(one for one in changes if one.is_rare)


def _topics(changes: Sequence[Change]) -> list[str]:
    return [one.topic for one in changes]


def test_runs_that_are_alike_have_no_changes() -> None:
    assert _changes(_reading(0), _reading(1)) == ()


def test_a_change_tells_before_now_how_often_and_since_when() -> None:
    (one,) = _changes(_reading(0), _reading(1, replace(_machine(), driver_version="560.28")))
    assert (one.kind, one.field, one.before, one.now) == ("driver", "driver", "550.54", "560.28")
    assert (one.changed_on, one.nights, one.began_ns) == (1, NIGHTS, NIGHTS * DAY_NS)
    assert one.is_rare


def test_what_changes_seldom_comes_before_what_changes_often() -> None:
    readings = [_reading(night, commit=f"{night:040x}") for night in range(NIGHTS)]
    bad = _reading(NIGHTS, replace(_machine(), environment={"NCCL_ALGO": "Tree"}), commit="f" * 40)
    found = changes_between(readings[-1], bad, [*readings, bad])
    assert _topics(found)[-1] == "commit"
    assert {one.topic: one.changed_on for one in found} == {"OMP_NUM_THREADS": 1, "NCCL_ALGO": 1, "commit": NIGHTS}
    assert _rare(found) == ("NCCL_ALGO", "OMP_NUM_THREADS")


def test_without_a_history_the_order_is_that_of_the_kinds_and_nothing_is_rare() -> None:
    bad = _reading(1, replace(_machine(), driver_version="560.28", environment={}), commit="1" * 40, hosts=("node1",))
    found = changes_between(_reading(0), bad, [_reading(0), bad])
    assert [one.kind for one in found] == ["driver", "environment", "hosts", "commit"]
    assert [one.changed_on for one in found] == [None] * 4
    assert _rare(found) == ()
    line = likely(found, None, onset_ns=DAY_NS).line
    assert line == "2 changes that are or may be rare at once, none is blamed"


@pytest.mark.parametrize(("nights", "is_rare"), [(4, False), (9, False), (10, True)])
def test_one_change_is_rare_from_ten_nights_on(nights: int, is_rare: bool) -> None:
    bad = _reading(nights, replace(_machine(), driver_version="560.28"))
    past = [*(_reading(night) for night in range(nights)), bad]
    found = changes_between(past[-2], bad, past)
    assert [one.is_rare for one in found] == [is_rare]
    found_line = likely(found, "no trace", onset_ns=None)
    assert (found_line.change is not None) == is_rare
    if not is_rare:
        assert found_line.line.endswith("; how often this changes is unknown: driver 550.54 -> 560.28")


def test_a_change_of_an_earlier_night_within_the_onset_has_its_own_night() -> None:
    other = replace(_machine(), driver_version="560.28")
    past = [_reading(night, other if night >= 20 else None) for night in range(NIGHTS)]
    (one,) = changes_between(past[18], past[22], past)
    assert one.began_ns == 20 * DAY_NS
    assert likely([one], None, onset_ns=20 * DAY_NS).line == "likely driver 550.54 -> 560.28 on the first bad night"
    assert likely([one], None, onset_ns=21 * DAY_NS).line == "likely driver 550.54 -> 560.28 on 1970-01-21"


def test_what_a_driver_brings_along_is_no_change_of_its_own() -> None:
    good = _reading(0, _machine(cuda_driver_version="12.4"))
    bad = _reading(1, replace(_machine(cuda_driver_version="12.6"), driver_version="560.28"))
    found = _changes(good, bad)
    assert {one.topic: one.carried_by for one in found} == {"driver": None, "CUDA of driver": "driver"}
    assert _rare(found) == ("driver",)


def test_an_image_brings_torch_and_nccl_along() -> None:
    good = _reading(0, _machine(container_image="ours@sha256:1"))
    bad = _reading(1, replace(_machine(container_image="ours@sha256:2"), torch_version="2.14.0", nccl_version="2.28.9"))
    assert _rare(_changes(good, bad)) == ("container image",)


def test_another_host_brings_its_gpus_along() -> None:
    good = _reading(0, _machine(gpus=_gpus("a", "b")))
    bad = _reading(1, _machine(gpus=_gpus("c", "d")), hosts=("node1",))
    found = _changes(good, bad)
    assert {one.topic: (one.before, one.now) for one in found} == {
        "hosts": ("node0", "node1"),
        "GPUs": ("other GPUs of the same kind", "2 x NVIDIA H200"),
    }
    assert _rare(found) == ("hosts",)


def test_hosts_in_another_order_are_a_change() -> None:
    (one,) = _changes(_reading(0, hosts=("a", "b")), _reading(1, hosts=("b", "a")))
    assert (one.before, one.now) == ("a b", "the same in another order")


def test_a_gpu_in_place_of_another_one_is_one_change() -> None:
    (one,) = _changes(_reading(0, _machine(gpus=_gpus("a", "b"))), _reading(1, _machine(gpus=_gpus("a", "c"))))
    assert one.topic == "GPUs"
    assert one.before.endswith(" b")
    assert one.now.endswith(" c")


def test_limits_and_links_are_kinds_of_their_own() -> None:
    good = _machine(gpus=_gpus("a", "b", power_limit_watts=700.0), links=(GpuLink(first=0, second=1, kind="nvlink"),))
    bad = _machine(gpus=_gpus("a", "b", power_limit_watts=500.0), links=(GpuLink(first=0, second=1, kind="node"),))
    found = _changes(_reading(0, good), _reading(1, bad))
    assert [(one.kind, one.topic) for one in found] == [("limits", "power limit"), ("topology", "links")]


def test_variables_that_each_job_has_anew_are_no_changes() -> None:
    good, bad = (_machine() for _ in range(2))
    good.environment["SLURM_JOB_ID"], bad.environment["SLURM_JOB_ID"] = "1", "2"
    assert _changes(_reading(0, good), _reading(1, bad)) == ()


def test_what_cannot_be_read_any_more_is_listed_and_not_blamed() -> None:
    bad = replace(_machine(), driver_version=None, absent={**make_machine().absent, "driver_version": "NVML: gone"})
    found = _changes(_reading(0), _reading(1, bad))
    assert [one.now for one in found] == ["unknown (NVML: gone)"]
    assert _rare(found) == ()


def test_a_node_of_several_that_differs_is_named() -> None:
    others = {number: _machine() for number in (1, 2)}
    hosts = ("node0", "node1", "node2")
    nodes = {number: replace(one, hostname=f"node{number}") for number, one in others.items()}
    changed = {**nodes, 2: replace(nodes[2], driver_version="560.28")}
    (one,) = _changes(_reading(0, nodes=nodes, hosts=hosts), _reading(1, nodes=changed, hosts=hosts))
    assert (one.field, one.hosts) == ("driver", ("node2",))
    every = {number: replace(one, driver_version="560.28") for number, one in nodes.items()}
    bad = _reading(1, replace(_machine(), driver_version="560.28"), nodes=every, hosts=hosts)
    (one,) = _changes(_reading(0, nodes=nodes, hosts=hosts), bad)
    assert one.hosts == ()


def test_what_changed_on_other_nodes_only_is_not_counted_and_not_likely() -> None:
    hosts = ("node0", "b")
    readings = [
        _reading(night, hosts=hosts, nodes={1: replace(_machine(kernel=f"6.{night}"), hostname="b")})
        for night in range(NIGHTS)
    ]
    found = changes_between(readings[-2], readings[-1], readings)
    assert [(one.field, one.hosts, one.changed_on, one.is_rare) for one in found] == [("kernel", ("b",), None, False)]
    assert likely(found, None, onset_ns=0).line == "how often this changes is unknown: kernel 6.28 -> 6.29 on b"


def test_a_rare_change_is_not_likely_beside_one_of_another_node_that_may_be_rare() -> None:
    hosts = ("node0", "b")
    good = _reading(0, hosts=hosts, nodes={1: replace(_machine(kernel="6.1"), hostname="b")})
    bad = _reading(
        1,
        replace(_machine(), driver_version="560.28"),
        hosts=hosts,
        nodes={1: replace(_machine(kernel="6.2"), hostname="b")},
    )
    found = _changes(good, bad)
    assert _topics(found) == ["driver", "kernel"]
    line = likely(found, None, onset_ns=0).line
    assert line == "2 changes that are or may be rare at once, none is blamed"


def test_without_a_machine_hosts_and_commit_are_compared() -> None:
    bad = replace(_reading(1, commit="1" * 40), machine=None)
    (one,) = _changes(_reading(0), bad)
    assert (one.field, one.before, one.now) == ("commit", "0" * 12, "1" * 12)


def test_ten_changes_at_once_are_all_listed_and_none_is_blamed() -> None:
    bad = replace(
        _machine(),
        kernel="6.2",
        driver_version="560.28",
        nccl_version="2.28.9",
        torch_version="2.14.0",
        python_version="3.12.1",
        usable_cores=1,
        memory_bytes=1 << 33,
        environment={"OMP_NUM_THREADS": "2", "NCCL_ALGO": "Tree"},
    )
    found = _changes(_reading(0), _reading(1, bad, commit="1" * 40))
    assert len(found) == 10
    assert likely(found, None, onset_ns=0).line == "10 rare changes at once, none is blamed"
    assert likely(found, None, onset_ns=0).change is None


def test_a_line_is_never_longer_than_it_may_be() -> None:
    bad = _reading(1, replace(_machine(), driver_version="9" * 200))
    (one,) = _changes(_reading(0), bad)
    assert len(likely([one], "x" * 300, onset_ns=0).line) == 160


def test_no_change_at_all_is_said() -> None:
    assert likely((), None, onset_ns=0).line == "nothing that is recorded changed"
