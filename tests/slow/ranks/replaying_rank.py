"""One rank of a network in a box that takes steps of a strategy, and replays each mesh axis's transfers alone.

Started as `python -m tests.slow.ranks.replaying_rank ORDER`, a `ReplayOrder` as JSON. Ranks sleep in place of computing
in backward of each block. What a step sends is counted twice: by torch's Flight Recorder, and by the kernel.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import msgspec
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from bench.case import Case
from collectors.rank import flight_recorder
from collectors.rank.stopwatch import HostStopwatch
from tests.slow.ranks.boxed_ranks import PORT, Order, serve_rank
from tests.slow.ranks.sleepy_agent import put_to_sleep
from tests.slow.ranks.tcp_bytes import TcpBytes, count_tcp_bytes
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import Ready, make_ready
from workloads.core.collectives import allocate, make_call
from workloads.core.mesh import DTYPES, make_mesh
from workloads.cost_models.communication import counts
from workloads.cost_models.terms import Collective, Transfer
from workloads.protocols import CountsPayload
from workloads.registry import spec_of
from workloads.spec import ELEMENT_BYTES

WARM_UP = 2
SWEPT_BYTES = tuple(1 << power for power in range(17, 25))
SWEPT_CALLS = 8
SETTLING_S = 0.1  # The last acknowledgements are on their way when a collective returns.


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A case, and how often each axis's transfers of a step are replayed in a row; an axis without transfers is not."""

    case: Case
    calls: dict[str, int]


class ReplayOrder(Order, frozen=True, kw_only=True):
    """What a rank shall do. sleep_s: a block's backward; steps, replays: how many of each are timed.

    turns: how many replays of an axis inside nodes are timed, each followed by a sweep of its collectives.
    """

    jobs: list[Job]
    ranks_per_node: int
    sleep_s: float
    steps: int
    replays: int
    turns: int


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Payload that the rank handed to one kind of collective in a step. ranks: those of the group."""

    collective: str
    axis: str
    ranks: tuple[int, ...]
    payload_bytes: int


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of one size, time after time, between replays."""

    collective: Collective
    size_bytes: int
    elapsed_s: list[float]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """elapsed_s: all transfers of a step over the axis, time after time. passed: in one of these times.

    swept: on the same ranks, in turn with the replays; empty for an axis that crosses nodes.
    """

    elapsed_s: list[float]
    passed: TcpBytes
    swept: list[Swept]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank measured of a job. passed: in a step. replays: by axis."""

    recorded: list[Recorded]
    passed: TcpBytes
    steps_s: list[float]
    replays: dict[str, Replayed]


def passed_in(run: Callable[[], object]) -> TcpBytes:
    """What passes this rank's connections from when all ranks are ready until all are done."""
    dist.barrier()
    time.sleep(SETTLING_S)
    before = count_tcp_bytes(except_port=PORT)
    dist.barrier()
    run()
    dist.barrier()
    time.sleep(SETTLING_S)
    return count_tcp_bytes(except_port=PORT).since(before)


def record_step(setup: SmallSetup, ready: Ready, mesh: DeviceMesh) -> list[Recorded]:
    """Take a step, and bring what this rank entered in it by collective and group, messages by the workload's count."""
    before = flight_recorder.dump("gloo")
    ready.step()
    entered = flight_recorder.entered_since(before, flight_recorder.dump("gloo"))
    axes, members = flight_recorder.axes_of_groups(mesh), flight_recorder.group_ranks()
    payload: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    for one in entered:
        payload[one.name, axes[one.group], members[one.group]] += one.payload_bytes
    if isinstance(ready.workload, CountsPayload):
        axis_of = {transfer.collective: transfer.axis for transfer in spec_of(setup.strategy).transfers(setup)}
        for collective, size_bytes in ready.workload.payload_bytes().items():
            axis = axis_of[collective]  # type: ignore[index]
            ranks = tuple(dist.get_process_group_ranks(mesh.get_group(axis)))
            payload[collective, axis, ranks] += size_bytes
    return [
        Recorded(collective=collective, axis=axis, ranks=ranks, payload_bytes=size_bytes)
        for (collective, axis, ranks), size_bytes in payload.items()
    ]


def time_steps(ready: Ready, steps: int) -> list[float]:
    """Each from when all ranks are ready."""
    elapsed_s = []
    for _ in range(steps):
        dist.barrier()
        begun_s = time.perf_counter()
        ready.step()
        elapsed_s.append(time.perf_counter() - begun_s)
    return elapsed_s


def make_replay(transfers: Sequence[Transfer], group: dist.ProcessGroup) -> Callable[[], None]:
    """All transfers of a step over one axis in turn, on this rank's group of it.

    Raises:
        ValueError: a transfer's calls, or its shards, are of unequal sizes; its sum would not be what is replayed.
    """
    calls: list[tuple[Callable[[], object], int]] = []
    for transfer in transfers:
        each = counts(
            transfer.collective, transfer.payload_bytes // transfer.calls, group.size(), ELEMENT_BYTES["fp32"]
        )
        if each.size * ELEMENT_BYTES["fp32"] * transfer.calls != transfer.payload_bytes:
            raise ValueError(f"{transfer} is not replayed whole")
        buffers = allocate(transfer.collective, each, group.rank(), dtype=DTYPES["fp32"], device="cpu")
        calls.append((make_call(transfer.collective, buffers, group), transfer.calls))

    def replay() -> None:
        for call, times in calls:
            for _ in range(times):
                call()

    return replay


def replay_axis(order: ReplayOrder, case: Case, axis: str, mesh: DeviceMesh, *, calls: int) -> Replayed:
    """Measure as the probe `collectives` does, on all groups of the axis at once.

    Groups that stay inside nodes have turns, node by node: nodes share no link there, but they share this machine's
    cores, as nodes do not. The speed of the loopback changes from second to second, with the machine's load, so that
    each of these replays is followed by a sweep.
    """
    group, nodes = mesh.get_group(axis), order.ranks // order.ranks_per_node
    node_of = {rank // order.ranks_per_node for rank in dist.get_process_group_ranks(group)}
    is_inside = len(node_of) == 1
    transfers = [one for one in spec_of(case.strategy).transfers(case) if one.axis == axis]
    replay, swept = make_replay(transfers, group), list[tuple[Swept, Callable[[], None]]]()
    if is_inside:
        for collective, size_bytes in product(dict.fromkeys(one.collective for one in transfers), SWEPT_BYTES):
            call = make_replay([Transfer(collective=collective, axis=axis, payload_bytes=size_bytes)], group)
            swept.append((Swept(collective=collective, size_bytes=size_bytes, elapsed_s=[]), call))
    watch = HostStopwatch(partial(dist.barrier, group))
    elapsed_s = []
    for _ in range(order.turns if is_inside else order.replays):
        for turn in range(nodes if is_inside else 1):
            dist.barrier()
            if not is_inside or turn in node_of:
                elapsed_s.append(watch.back_to_back(replay, warm_up=1, calls=calls).elapsed_s)
                for one, call in swept:
                    one.elapsed_s.append(watch.back_to_back(call, warm_up=1, calls=SWEPT_CALLS).elapsed_s)
    return Replayed(elapsed_s=elapsed_s, passed=passed_in(replay), swept=[one for one, _ in swept])


def perform(order: ReplayOrder, job: Job) -> Answer:
    """All that is asked of one case; the process group exists."""
    case = job.case
    setup = small_setup(case.strategy, ranks=case.ranks, shape=case.shape, options={**case.options, "workers": 0})
    mesh = make_mesh(spec_of(case.strategy).mesh(setup), "cpu")
    ready = make_ready(setup)
    for _ in range(WARM_UP):
        ready.step()
    return Answer(
        recorded=record_step(setup, ready, mesh),
        passed=passed_in(ready.step),
        steps_s=time_steps(ready, order.steps),
        replays={axis: replay_axis(order, case, axis, mesh, calls=calls) for axis, calls in job.calls.items()},
    )


def main() -> None:
    """Measure for the order on the command line."""
    order = msgspec.json.decode(sys.argv[1], type=ReplayOrder)
    put_to_sleep(order.sleep_s)
    serve_rank(order, lambda: [perform(order, job) for job in order.jobs])


if __name__ == "__main__":
    main()
