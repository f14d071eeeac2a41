"""Links of a run's interconnect, from earlier sweeps of collectives: inside a node, and across nodes.

A sweep is placed by the nodes that its run had. Both levels are measured with all ranks of a node at once: a sweep with
one rank a node sees one network card of several, and counts only for runs that also have one rank a node. Each level is
fitted apart. Where both measure alike, both have the link across nodes. They stay two levels all the same: groups that
leave a node at once share its link, and a ring over all ranks cannot tell how much more it may carry.
Not covered: more than two levels, such as racks, or a domain of NVLink that spans nodes and is smaller than the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bench.case import Case
from bench.errors import plural
from bench.results.estimate import Estimate
from bench.results.probes import CALIBRATION, link_by
from bench.store.summary import Summary
from collectors.metrics.probes import RUN_LINK_BANDWIDTH, RUN_LINK_LATENCY_SECONDS
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import Link
from workloads.cost_models.interconnect import Interconnect, NetworkLevel, one_level

PROBES = ("collectives", "all_reduce")
"""Probes that sweep an all_reduce, and so can give a link."""
LOOKED_THROUGH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLinks:
    """The interconnect of a run's ranks. basis: the runs that measured it and what they measured, for people.

    sweeps: those runs, the one inside a node first. collectives: whose sweep gave each link, in the same order.
    """

    interconnect: Interconnect
    basis: str
    sweeps: tuple[Summary, ...] = ()
    collectives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sweep:
    """A run that measured a level. collective: whose sweep gives the link."""

    run: Summary
    link: Link
    collective: str


class Placed(Protocol):
    """What is asked of a run, or of a case that has not run yet. hardware: as `Summary` has it."""

    @property
    def case(self) -> Case: ...

    @property
    def hardware(self) -> str: ...


class Runs(Protocol):
    """Where runs are looked for: the history, or none at all."""

    def runs(self, limit: int, *, strategy: str | None = None) -> Sequence[Summary]:
        """Return the newest runs of a strategy, newest first."""
        ...


class NoRuns:
    """A history that was not begun."""

    def runs(self, limit: int, *, strategy: str | None = None) -> Sequence[Summary]:
        """Return none."""
        return ()


def find_links(summary: Placed, history: Runs, collectives: Sequence[str] = (CALIBRATION,)) -> MeasuredLinks | Absent:
    """Return the links between the run's ranks by level, each from the newest sweep; absent where there is none at all.

    A level that no sweep measured has the reason in place of its link. The sweep inside a node has as many ranks as the
    run has on a node. The sweep across nodes also has as many on each node, and of those one over as many nodes as the
    run is preferred, then one over most.
    collectives: those whose sweep may give a link, the preferred one first.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    case = summary.case
    local = case.ranks // case.nodes
    alike = [
        run for run in done_sweeps(history) if (run.case.backend, run.hardware) == (case.backend, summary.hardware)
    ]
    inside = _newest([run for run in alike if (run.case.ranks, run.case.nodes) == (local, 1)], collectives)
    inside_link = inside or _no_sweep(summary, collectives[0], nodes=1)
    if case.nodes == 1:
        if isinstance(inside_link, Absent):
            return inside_link
        return _of_one_level(inside_link, local)
    across = _across(alike, collectives, case)
    across_link = across or _no_sweep(summary, collectives[0], nodes=2, alike=alike)
    if local == 1:  # Nothing is inside a node.
        if isinstance(across_link, Absent):
            return across_link
        return _of_one_level(across_link, case.ranks)
    if inside is None and across is None:
        assert isinstance(across_link, Absent)
        return across_link
    if inside is not None and across is not None and _is_alike(inside, across):
        return MeasuredLinks(
            interconnect=_two_levels(across.link, across.link, case),
            basis=f"{_words(inside)}, and {_words(across)}: alike within their intervals, so one link for both levels",
            sweeps=(inside.run, across.run),
            collectives=(inside.collective, across.collective),
        )
    node_link = across_link if isinstance(across_link, Absent) else _node_link(across_link, inside)
    rank_link = inside_link if isinstance(inside_link, Absent) else inside_link.link
    measured = [sweep for sweep in (inside, across) if sweep is not None]
    return MeasuredLinks(
        interconnect=_two_levels(rank_link, node_link, case),
        basis=", and ".join(map(_words, measured)),
        sweeps=tuple(sweep.run for sweep in measured),
        collectives=tuple(sweep.collective for sweep in measured),
    )


def _of_one_level(sweep: _Sweep, ranks: int) -> MeasuredLinks:
    return MeasuredLinks(
        interconnect=one_level(sweep.link, ranks),
        basis=_words(sweep),
        sweeps=(sweep.run,),
        collectives=(sweep.collective,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthSpread:
    """The lowest and the highest bandwidth of any trial, as shares of the newest sweep's in its setting.

    runs, trials: how many there are.
    """

    low: float
    high: float
    runs: int
    trials: int


def bandwidth_spread(place: Placed, history: Runs, collective: str = CALIBRATION) -> BandwidthSpread | None:
    """Return how bandwidths scatter over the sweeps of the same hardware and backend; None where there is no sweep.

    Sweeps are compared with others on as many ranks and nodes only.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    newest: dict[tuple[int, int], float] = {}
    shares: list[float] = []
    runs = 0
    for run in done_sweeps(history):
        if (run.case.backend, run.hardware) != (place.case.backend, place.hardware):
            continue
        measured = _bandwidth(run, collective)
        if measured is None:
            continue
        reference = newest.setdefault((run.case.ranks, run.case.nodes), measured.median)
        shares += [value / reference for value in (*measured.trials, measured.median)]
        runs += 1
    if not shares:
        return None
    return BandwidthSpread(low=min(shares), high=max(shares), runs=runs, trials=len(shares) - runs)


def _bandwidth(run: Summary, collective: str) -> Estimate | None:
    wanted = (RUN_LINK_BANDWIDTH.name, {"collective": collective})
    return next((each for each in run.estimates if (each.metric, each.labels) == wanted), None)


def _two_levels(rank_link: Link | Absent, node_link: Link | Absent, case: Case) -> Interconnect:
    inside = NetworkLevel(name="node", ranks=case.ranks // case.nodes, link=rank_link)
    return Interconnect(levels=(inside, NetworkLevel(name="cluster", ranks=case.ranks, link=node_link)))


def placement_words(case: Case) -> str:
    """Return where a sweep ran, for people: "inside a node, all 8 ranks at once", "across 2 nodes, 1 rank of each"."""
    local = case.ranks // case.nodes
    if case.nodes == 1:
        return f"inside a node, all {local} ranks at once"
    ranks = "1 rank" if local == 1 else f"all {local} ranks"
    return f"across {case.nodes} nodes, {ranks} of each at once"


def sweep_runs(history: Runs) -> list[str]:
    """Return the runs that give links, the newest of each setting.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    links: dict[tuple[object, ...], str] = {}
    for run in done_sweeps(history):
        for collective in ("send", CALIBRATION):
            if link_by(run.estimates, collective) is not None:
                setting = (collective, run.case.ranks, run.case.nodes, run.case.backend, run.hardware)
                links.setdefault(setting, run.run)
    return list(links.values())


def done_sweeps(history: Runs) -> list[Summary]:
    """Return the probes' runs that ended well, newest first."""
    candidates = [run for probe in PROBES for run in history.runs(limit=LOOKED_THROUGH, strategy=probe)]
    done = [run for run in candidates if run.outcome == "done"]
    return sorted(done, key=lambda run: run.started_ns, reverse=True)


def _newest(sweeps: Sequence[Summary], collectives: Sequence[str]) -> _Sweep | None:
    """Return the newest sweep of the first collective to which any of these runs, newest first, fitted a link."""
    for collective in collectives:
        for run in sweeps:
            if (link := link_by(run.estimates, collective)) is not None:
                return _Sweep(run=run, link=link, collective=collective)
    return None


def _across(sweeps: Sequence[Summary], collectives: Sequence[str], case: Case) -> _Sweep | None:
    counts = {run.case.nodes for run in sweeps if run.case.nodes > 1} - {case.nodes}
    for nodes in (case.nodes, *sorted(counts, reverse=True)):
        setting = (nodes * (case.ranks // case.nodes), nodes)
        sweep = _newest([run for run in sweeps if (run.case.ranks, run.case.nodes) == setting], collectives)
        if sweep is not None:
            return sweep
    return None


def _no_sweep(summary: Placed, collective: str, *, nodes: int, alike: Sequence[Summary] = ()) -> Absent:
    """Return why a level has no link, and the command that measures it."""
    local = summary.case.ranks // summary.case.nodes
    where = "" if nodes == 1 and summary.case.nodes == 1 else " inside a node" if nodes == 1 else " across nodes"
    each = "" if nodes == 1 else " of each"
    others = sorted({run.case.ranks // run.case.nodes for run in alike if run.case.nodes > 1})
    share = f" (only with {' or '.join(map(str, others))}, a share of a node's link)" if nodes > 1 and others else ""
    option = "" if nodes == 1 else f" --nodes {nodes}"
    return Absent(
        reason=f"no sweep of {collective} on {plural(local, 'rank')}{each}{where} of {summary.hardware} from which a"
        f" link can be fitted is in the history{share}; `observatory run collectives --ranks {local * nodes}{option}"
        f" --option collectives={collective}` makes one"
    )


def _is_alike(inside: _Sweep, across: _Sweep) -> bool:
    """Whether latency and bandwidth of both levels are equal within their intervals."""
    pairs = [(_figures(inside, metric.name), _figures(across, metric.name)) for metric in _METRICS]
    return all(
        first is not None and second is not None and _overlap(first, second)
        for first, second in pairs
        if first is not None or second is not None
    )


_METRICS = (RUN_LINK_LATENCY_SECONDS, RUN_LINK_BANDWIDTH)


def _figures(sweep: _Sweep, metric_name: str) -> Estimate | None:
    return next(
        (
            estimate
            for estimate in sweep.run.estimates
            if estimate.metric == metric_name and estimate.labels == {"collective": sweep.collective}
        ),
        None,
    )


def _overlap(first: Estimate, second: Estimate) -> bool:
    ends = []
    for each in (first, second):
        low, high = (each.median if end is None else end for end in (each.low, each.high))
        ends.append((low, high))
    (low, high), (other_low, other_high) = ends
    return low <= other_high and other_low <= high


def _node_link(across: _Sweep, inside: _Sweep | None) -> Link:
    """Return the link of a node: the sweep's, with the latency of a hop between nodes.

    A ring of all ranks leaves each node once, so its bandwidth is the node's. Its latency is the mean of its hops, of
    which one for each node is between nodes: on 2 nodes of 8 ranks 14 hops inside and 2 across.
    """
    case = across.run.case
    if inside is None or across.collective != CALIBRATION:
        return across.link
    hops_inside = case.ranks - case.nodes
    hop_s = (case.ranks * across.link.latency_s - hops_inside * inside.link.latency_s) / case.nodes
    return replace(across.link, latency_s=max(hop_s, across.link.latency_s))


def _words(sweep: _Sweep) -> str:
    bandwidth = sweep.link.bandwidth_bytes_per_second / 1e9
    return f"{bandwidth:.3g} GB/s {placement_words(sweep.run.case)} ({sweep.run.run})"
