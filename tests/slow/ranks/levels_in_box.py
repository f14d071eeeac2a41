"""Strategies in a network in a box with two levels of links: what the product predicts of them, and what is measured.

Each node has two ranks, which reach each other over the loopback, unshaped, and other nodes over one slow link. The
links are measured by the product's own `collectives` and taken from the history by the product.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.analysis.prediction.fit import traffic
from bench.case import Case, check
from bench.store.history import History
from bench.store.links import MeasuredLinks, find_links
from bench.store.run_dir import load, machine_of
from tests.bench.made.examples import make_case, make_probe
from tests.slow.ranks.boxed_ranks import ROOT, Order, run_ranks
from tests.slow.ranks.replaying_rank import Answer, Job, ReplayOrder
from tests.support.netbox import INTERFACE, NetBox, netbox
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import Link, wire_factor, wire_messages
from workloads.cost_models.interconnect import Interconnect, mesh_axes, traffic_times_s
from workloads.cost_models.link_fit import TimedSize, fit
from workloads.cost_models.shape import Shape
from workloads.cost_models.step_time import ComputeTime, StepTime
from workloads.cost_models.terms import Collective, Transfer
from workloads.pipeline_parallel.expected_step import step_of
from workloads.spec import OptionValue

RANKS_PER_NODE = 2
SHAPE = Shape(layers=4, width=256, heads=8, kv_heads=8, mlp_width=512, vocabulary=64, sequence=128, batch=8)
SLEEP_S = 0.02
REPLAY_S = 0.6
"""A replay over nodes goes on at least so long, since the first 256 KiB after a pause are not slowed."""
INSIDE_REPLAY_S = 0.1
LATENCY = "400ms"
"""Packets wait so long that none is dropped, as on the lossless networks of training."""
GLOO_HEADER_BYTES = 48
"""What gloo sends before each message, and to say that a peer may send (gloo, transport/tcp/pair.h, Op)."""
LIMIT_S = 400.0
PORT = 29600
INSIDE: Mapping[str, OptionValue] = {
    "collectives": "all_reduce,all_gather,reduce_scatter",
    "min_bytes": 1 << 18,
    "max_bytes": 1 << 24,
    "factor": 2,
}
ACROSS: Mapping[str, OptionValue] = {**INSIDE, "collectives": "all_reduce", "max_bytes": 1 << 22}
CALLS_INSIDE, CALLS_ACROSS = 40, 6
TURNS = 16
"""Replays inside nodes, each followed by a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A box. rate_mbit: what a node sends to others at most."""

    nodes: int
    rate_mbit: float

    @property
    def ranks(self) -> int:
        return RANKS_PER_NODE * self.nodes

    def case(self, strategy: str, *, layers: int = SHAPE.layers) -> Case:
        """A strategy on all ranks of the box, its gradients in one bucket where it has any.

        Nothing is clipped: the ranks would agree on single numbers, which do not divide among them.
        """
        case = make_case(strategy, self.ranks, model=replace(SHAPE, layers=layers), nodes=self.nodes)
        return check(replace(case, options={**case.options, "clip": 0.0}))


@dataclass(frozen=True, slots=True, kw_only=True)
class InBox:
    """A case on the measured links of its box, and what its ranks answered, by rank."""

    case: Case
    links: MeasuredLinks
    answers: tuple[Answer, ...]

    @property
    def replayed(self) -> list[str]:
        """The axes over which a step sends anything."""
        return list(self.answers[0].replays)

    def is_across(self, axis: str) -> bool:
        """Whether the axis's groups cross nodes."""
        return self.links.interconnect.crossed(mesh_axes(self.axes)[axis])[-1].name == "cluster"

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        return self.case.spec().transfers(self.case)

    @property
    def axes(self) -> dict[str, int]:
        return self.case.spec().mesh(self.case)

    def predicted_bytes(self) -> dict[tuple[str, str, str], int]:
        """The rank's that passes most, by collective, axis and level; gloo makes an all_reduce of a reduce_scatter."""
        predicted: dict[tuple[str, str, str], int] = defaultdict(int)
        for one in traffic(self.case, self.links.interconnect):
            collective = "all_reduce" if one.collective == "reduce_scatter" else one.collective
            assert one.level is not None
            predicted[collective, one.axis, one.level] += one.payload_bytes
        return dict(predicted)

    def counted_bytes(self) -> dict[tuple[str, str, str], int]:
        """What ranks recorded in a step; the level is that of the nodes on which the group's ranks were."""
        counted: dict[tuple[str, str, str], int] = {}
        for answer in self.answers:
            for one in answer.recorded:
                nodes = {rank // RANKS_PER_NODE for rank in one.ranks}
                key = (one.collective, one.axis, "node" if len(nodes) == 1 else "cluster")
                counted[key] = max(one.payload_bytes, counted.get(key, 0))
        return counted

    def predicted_wire_bytes(self, axis: str) -> tuple[int, int]:
        """What the busiest rank, and the busiest node, passes in a replay of the axis."""
        rank, node = (_link_bytes(self, axis, level) for level in range(2))
        return rank, node

    def counted_wire_bytes(self, axis: str) -> tuple[int, int]:
        """As the kernel counted it, with gloo's own headers."""
        passed = [answer.replays[axis].passed for answer in self.answers]
        rank = max(max(one.sent_inside + one.sent_across, one.received_inside + one.received_across) for one in passed)
        nodes = [passed[first : first + RANKS_PER_NODE] for first in range(0, len(passed), RANKS_PER_NODE)]
        node = max(
            max(sum(one.sent_across for one in node), sum(one.received_across for one in node)) for node in nodes
        )
        return rank, node

    def predicted_replay_s(self, axis: str) -> float:
        """All transfers over the axis in a step, in turn."""
        return axis_s(self.case, axis, self.links.interconnect)

    def replay_by_turns_s(self, axis: str) -> float:
        """The same, for an axis inside nodes, with links that are fitted to the sweeps between the replays.

        Raises:
            NoLinkFit: the sweeps show no link.
        """
        links = self._links_by_turns(axis)
        inside = replace(
            self.links.interconnect.levels[0], link=next(iter(links.values())), by_collective=tuple(links.items())
        )
        levels = (inside, *self.links.interconnect.levels[1:])
        return axis_s(self.case, axis, Interconnect(levels=levels))

    def _links_by_turns(self, axis: str) -> dict[Collective, Link]:
        points: dict[Collective, list[TimedSize]] = defaultdict(list)
        of_ranks = [answer.replays[axis].swept for answer in self.answers]
        ranks, backend = self.axes[axis], self.case.backend
        for together in zip(*of_ranks, strict=True):
            collective, size_bytes = together[0].collective, together[0].size_bytes
            points[collective].append(
                TimedSize(
                    messages=wire_messages(collective, ranks, backend),
                    wire_bytes=round(size_bytes * wire_factor(collective, ranks, backend)),
                    elapsed_s=statistics.median(time_s for of_rank in together for time_s in of_rank.elapsed_s),
                )
            )
        return {collective: fit([of_one]).link() for collective, of_one in points.items()}

    def replay_by_one_link_s(self, axis: str) -> float:
        """The same where the link of all_reduce stands for every collective."""
        levels = tuple(replace(level, by_collective=()) for level in self.links.interconnect.levels)
        return axis_s(self.case, axis, Interconnect(levels=levels))

    def replays_s(self, axis: str) -> list[float]:
        """Time after time, that of the slowest rank; inside nodes, which have turns, of the slowest in each node."""
        by_rank = [answer.replays[axis].elapsed_s for answer in self.answers]
        at_once = len(by_rank) if self.is_across(axis) else RANKS_PER_NODE
        groups = [by_rank[first : first + at_once] for first in range(0, len(by_rank), at_once)]
        return [max(together) for group in groups for together in zip(*group, strict=True)]

    def predicted_step(self) -> StepTime:
        """With the sleeps of a rank's blocks for its computing."""
        pipeline = self.case.spec().pipeline(self.case)
        blocks: float = self.case.shape.layers
        if pipeline is not None:
            blocks = blocks * pipeline.microbatches / pipeline.ranks
        step = step_of(
            self.case,
            self.case.spec(),
            compute=ComputeTime(forward_s=0.0, backward_s=blocks * SLEEP_S),
            interconnect=self.links.interconnect,
        )
        assert isinstance(step, StepTime), step
        return step

    def step_s(self) -> float:
        """Median of the slowest rank's."""
        by_rank = [answer.steps_s for answer in self.answers]
        slowest_s: list[float] = [max(together) for together in zip(*by_rank, strict=True)]
        return statistics.median(slowest_s)


def axis_s(case: Case, axis: str, interconnect: Interconnect) -> float:
    """All transfers of a step over the axis in turn."""
    spec = case.spec()
    transfers = [transfer for transfer in spec.transfers(case) if transfer.axis == axis]
    return traffic_times_s(transfers, spec.mesh(case), interconnect, case.backend)[axis]


def _link_bytes(one: InBox, axis: str, level: int) -> int:
    """Bytes over the busiest link of one level: the time that they take where it passes a byte a second."""
    levels = tuple(
        replace(each, link=Link(bandwidth_bytes_per_second=1.0 if number == level else math.inf), by_collective=())
        for number, each in enumerate(one.links.interconnect.levels)
    )
    return round(axis_s(one.case, axis, Interconnect(levels=levels)))


def measure(
    setting: Setting, cases: Sequence[Case], folder: Path, *, steps: int = 3, replays: int = 5, turns: int = TURNS
) -> list[InBox]:
    """Measure the links of a box by the product's probe, then all cases on it.

    folder: an empty one for the history, the probes' runs and the ranks' answers.

    Raises:
        RuntimeError: a rank failed, or the history gives no link.
    """
    with netbox(nodes=setting.nodes, rate_mbit=setting.rate_mbit, latency=LATENCY) as box:
        links = list(_links(box, setting, cases, folder))
        placed = list(zip(cases, links, strict=True))
        return replay(box, placed, folder, steps=steps, replays=replays, turns=turns)


def replay(
    box: NetBox,
    cases: Sequence[tuple[Case, MeasuredLinks]],
    folder: Path,
    *,
    steps: int,
    replays: int,
    turns: int = TURNS,
    sleep_s: float = SLEEP_S,
    limit_s: float = LIMIT_S,
) -> list[InBox]:
    """Measure cases on a box whose links are known: bytes, steps, and each axis's transfers alone.

    folder: for the ranks' answers. sleep_s: a block's backward. limit_s: for all that the ranks do.

    Raises:
        RuntimeError: a rank failed.
    """
    jobs = [Job(case=case, calls=dict(_calls(case, found.interconnect))) for case, found in cases]

    def make_order(order: Order) -> Order:
        return ReplayOrder(
            **msgspec.structs.asdict(order),
            jobs=jobs,
            ranks_per_node=RANKS_PER_NODE,
            sleep_s=sleep_s,
            steps=steps,
            replays=replays,
            turns=turns,
        )

    answered = run_ranks(
        box, "tests.slow.ranks.replaying_rank", folder, make_order, ranks_per_node=RANKS_PER_NODE, limit_s=limit_s
    )
    by_rank = [msgspec.json.decode(answer, type=list[Answer]) for answer in answered]
    by_case = zip(*by_rank, strict=True)
    return [
        InBox(case=case, links=found, answers=answers) for (case, found), answers in zip(cases, by_case, strict=True)
    ]


def _calls(case: Case, interconnect: Interconnect) -> Iterator[tuple[str, int]]:
    for axis in dict.fromkeys(transfer.axis for transfer in case.spec().transfers(case)):
        crosses_nodes = interconnect.crossed(mesh_axes(case.spec().mesh(case))[axis])[-1].name == "cluster"
        replay_s = REPLAY_S if crosses_nodes else INSIDE_REPLAY_S
        yield axis, math.ceil(replay_s / axis_s(case, axis, interconnect))


def _links(box: NetBox, setting: Setting, cases: Sequence[Case], folder: Path) -> Iterator[MeasuredLinks]:
    """What the product finds for each case in a history of sweeps of both levels."""
    probe = make_probe("collectives", trials=1, warm_up=2)
    inside = replace(probe, ranks=RANKS_PER_NODE, steps=CALLS_INSIDE, options={**probe.options, **INSIDE})
    options = {**probe.options, **ACROSS}
    across = replace(probe, ranks=setting.ranks, nodes=setting.nodes, steps=CALLS_ACROSS, options=options)
    runs = [_sweep(box, inside, folder / "inside"), _sweep(box, across, folder / "across")]
    with History(f"sqlite:///{folder}/history.sqlite") as history:
        for run in runs:
            history.add(load(run), machine_of(run))
        summary = load(runs[-1])
        for case in cases:
            found = find_links(replace(summary, case=case), history)
            if isinstance(found, Absent):
                raise RuntimeError(found.reason)
            yield found


def _sweep(box: NetBox, probe: Case, folder: Path) -> Path:
    """Run the probe on the box's first nodes; return the run's folder."""
    path = folder.with_suffix(".json")
    path.write_bytes(msgspec.json.encode([{"case": probe}]))
    words = [str(path), "--folder", str(folder), "--limit", "120"]
    processes = []
    for rank in range(probe.ranks):
        node, local_rank = divmod(rank, RANKS_PER_NODE)
        variables = {
            "WORLD_SIZE": str(probe.ranks),
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(RANKS_PER_NODE),
            "MASTER_ADDR": box.nodes[0].address,
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": INTERFACE,
        }
        command = [sys.executable, "-m", "tests.slow.ranks.sweeping_rank", *words]
        processes.append(box.run_in(node, command, cwd=ROOT, env={**os.environ, **variables}))
    codes = [process.wait(timeout=LIMIT_S) for process in processes]
    if any(codes):
        raise RuntimeError(f"ranks of the sweep ended with codes {codes}")
    return folder
