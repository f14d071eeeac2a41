"""Links of a run's interconnect, from earlier sweeps of collectives: inside a node, and across nodes.

The nodes of a sweep's run decide its level. Both levels are measured with all ranks of a node at once: a sweep with one
rank per node uses one of several network cards, and counts only for runs that also have one rank per node. Each level
is fitted separately, and on each level each swept collective, because a library copies and adds on the way, so that
each collective reaches another share of the same wires. A collective that was not swept uses the link of all_reduce. If
all_reduce is equally fast on both levels, both use its link across nodes. They remain two levels: groups that leave a
node at the same time share its link, and a ring over all ranks cannot show how much more it can carry.
Not covered: more than two levels, for example racks, or an NVLink domain that spans nodes and is smaller than the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from bench.case import Case
from bench.errors import plural
from bench.results.estimate import Estimate
from bench.results.probes import CALIBRATION, links_by
from bench.store.summary import Summary
from collectors.metrics.probes import RUN_LINK_BANDWIDTH, RUN_LINK_LATENCY_SECONDS
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import COLLECTIVES, Link, wire_factor, wire_messages
from workloads.cost_models.interconnect import (
    Interconnect,
    MeshAxis,
    NetworkLevel,
    axis_time_s,
    transfer_axis,
)
from workloads.cost_models.terms import Collective

PROBES = ("collectives", "all_reduce")
"""Probes that sweep an all_reduce, so that they can give a link."""
LOOKED_THROUGH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLinks:
    """The interconnect of a run's ranks. basis: the runs that measured it and their results, in words.

    sweeps: the unique runs that gave the links of the run's transfers, links inside a node first.
    """

    interconnect: Interconnect
    basis: str
    sweeps: tuple[Summary, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """A link, and the run whose sweep of a collective gave it."""

    run: Summary
    collective: Collective
    link: Link


_Fits = Mapping[Collective, _Fit]
"""Fits of one level, by collective; all_reduce is first, if present."""


class Placed(Protocol):
    """The needed part of a run, or of a case that has not run yet. hardware: as in `Summary`."""

    @property
    def case(self) -> Case: ...

    @property
    def hardware(self) -> str: ...


class Runs(Protocol):
    """Where runs are searched: the history, or nothing."""

    def runs(self, limit: int, *, strategy: str | None = None) -> Sequence[Summary]:
        """Return the newest runs of a strategy, newest first."""
        ...


class NoRuns:
    """A history that does not exist yet."""

    def runs(self, limit: int, *, strategy: str | None = None) -> Sequence[Summary]:
        """Return no runs."""
        return ()


def find_links(summary: Placed, history: Runs, *, also: Sequence[Collective] = ()) -> MeasuredLinks | Absent:
    """Return the links between the run's ranks by level and collective, each from the newest sweep; absent without any.

    A level that no sweep measured has a reason instead of a link. The sweep inside a node must have as many ranks as
    the run has on a node. The sweep across nodes must have the same number per node; a sweep over as many nodes as the
    run is preferred, then one over the most nodes.

    also: collectives of other runs on the same ranks, which the command that measures a missing link also sweeps.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    case = summary.case
    local = case.ranks // case.nodes
    alike = [
        run for run in done_sweeps(history) if (run.case.backend, run.hardware) == (case.backend, summary.hardware)
    ]
    inside = _newest([run for run in alike if (run.case.ranks, run.case.nodes) == (local, 1)])
    across = _across(alike, case) if case.nodes > 1 else {}
    needed = _needed(case)
    no_inside = _no_sweep(summary, [*needed["node"], *also], nodes=1)
    no_across = _no_sweep(summary, [*needed["cluster"], *also], nodes=2, alike=alike)
    if case.nodes == 1 or local == 1:  # Only one of the levels exists.
        only, missing = (inside, no_inside) if case.nodes == 1 else (across, no_across)
        if not only:
            return missing
        level = NetworkLevel(name="node", ranks=case.ranks, link=_link(only, missing), by_collective=_others(only))
        return _measured([(level, only)], needed)
    if not inside and not across:
        return no_across
    is_alike = CALIBRATION in inside and CALIBRATION in across and _is_alike(inside[CALIBRATION], across[CALIBRATION])
    of_nodes = {collective: _node_link(fit, inside) for collective, fit in across.items()}
    node_link = across[CALIBRATION].link if is_alike else of_nodes.get(CALIBRATION, no_across)
    node = NetworkLevel(
        name="node",
        ranks=local,
        link=across[CALIBRATION].link if is_alike else _link(inside, no_inside),
        by_collective=_others(inside),
    )
    cluster = NetworkLevel(
        name="cluster",
        ranks=case.ranks,
        link=node_link,
        by_collective=tuple((collective, link) for collective, link in of_nodes.items() if collective != CALIBRATION),
    )
    return _measured([(node, inside), (cluster, across)], needed, is_alike=is_alike)


def _needed(case: Case) -> dict[str, list[Collective]]:
    """Return the unique collectives of the case that cross each level."""
    unknown, spec = Absent(reason="not looked up"), case.spec()
    node = NetworkLevel(name="node", ranks=case.ranks // case.nodes, link=unknown)
    cluster = NetworkLevel(name="cluster", ranks=case.ranks, link=unknown)
    levels = (cluster,) if node.ranks == 1 else (node,) if case.nodes == 1 else (node, cluster)
    interconnect, axes = Interconnect(levels=levels), spec.mesh(case)
    needed: dict[str, list[Collective]] = defaultdict(list)
    for transfer in spec.transfers(case):
        for level in interconnect.crossed(transfer_axis(transfer, axes)):
            if transfer.collective not in needed[level.name]:
                needed[level.name].append(transfer.collective)
    return needed


def _link(fits: _Fits, missing: Absent) -> Link | Absent:
    return fits[CALIBRATION].link if CALIBRATION in fits else missing


def _others(fits: _Fits) -> tuple[tuple[Collective, Link], ...]:
    return tuple((collective, fit.link) for collective, fit in fits.items() if collective != CALIBRATION)


def _measured(
    levels: Sequence[tuple[NetworkLevel, _Fits]],
    needed: Mapping[str, Sequence[Collective]],
    *,
    is_alike: bool = False,
) -> MeasuredLinks:
    """Return the measured links of the levels. is_alike: all_reduce is equally fast on both."""
    first = [(level, fits, next(iter(fits.values()))) for level, fits in levels if fits]
    words = [_words(level, fits, fit, needed) for level, fits, fit in first]
    alike = ": alike within their intervals, so one link for both levels" if is_alike else ""
    sweeps = {
        fit.run.run: fit.run
        for _, fits, first_fit in first
        for fit in [fits.get(each, first_fit) for each in needed[_level_of(first_fit)]] or [first_fit]
    }
    return MeasuredLinks(
        interconnect=Interconnect(levels=tuple(level for level, _ in levels)),
        basis=", and ".join(words) + alike,
        sweeps=tuple(sweeps.values()),
    )


def _level_of(fit: _Fit) -> str:
    return "cluster" if fit.run.case.nodes > 1 else "node"


def _words(level: NetworkLevel, fits: _Fits, first: _Fit, needed: Mapping[str, Sequence[Collective]]) -> str:
    """Return, in words, a level's link and its run, and the links of the collectives that the case needs.

    Example: "4.1 GB/s (all_gather 2.5 GB/s; send as all_reduce, not fitted) inside a node, all 8 ranks at once (r7)".
    """
    own, unmeasured = [], []
    for collective in needed[_level_of(first)]:
        if (fit := fits.get(collective)) is None:
            unmeasured.append(collective)
        elif collective != first.collective:
            link = level.link_of(collective)
            assert isinstance(link, Link), "it was fitted"
            elsewhere = "" if fit.run.run == first.run.run else f" in {fit.run.run}"
            own.append(f"{collective} {_gigabytes(link)}{elsewhere}")
    if unmeasured:
        instead = f"as {CALIBRATION}, " if CALIBRATION in fits else ""
        own.append(f"{', '.join(unmeasured)} {instead}not fitted")
    by = "" if first.collective == CALIBRATION else f" by {first.collective}"
    others = f" ({'; '.join(own)})" if own else ""
    return f"{_gigabytes(first.link)}{by}{others} {placement_words(first.run.case)} ({first.run.run})"


def _gigabytes(link: Link) -> str:
    return f"{link.bandwidth_bytes_per_second / 1e9:.3g} GB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthSpread:
    """The lowest and the highest bandwidth of any trial, as shares of the newest sweep's bandwidth in its setting.

    runs, trials: numbers of both.
    """

    low: float
    high: float
    runs: int
    trials: int


def bandwidth_spread(place: Placed, history: Runs) -> BandwidthSpread | None:
    """Return the spread of bandwidths of what the run sends, over sweeps on its hardware and backend; None without any.

    all_reduce stands in for a collective that was not swept; if it was not swept either, another one does. Sweeps are
    compared only with others of the same collective on equal numbers of ranks and nodes.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    alike = [
        run for run in done_sweeps(history) if (run.case.backend, run.hardware) == (place.case.backend, place.hardware)
    ]
    shares = {collective: _shares(collective, alike) for collective in dict.fromkeys((CALIBRATION, *COLLECTIVES))}
    swept = [collective for collective, of_runs in shares.items() if of_runs]
    if not swept:
        return None
    sent = {transfer.collective for transfer in place.case.spec().transfers(place.case)}
    used = {collective if collective in swept else swept[0] for collective in sent or {CALIBRATION}}
    values = [value for collective in used for of_run in shares[collective].values() for value in of_run]
    runs = {run for collective in used for run in shares[collective]}
    trials = sum(len(of_run) - 1 for collective in used for of_run in shares[collective].values())
    return BandwidthSpread(low=min(values), high=max(values), runs=len(runs), trials=trials)


def _shares(collective: Collective, sweeps: Sequence[Summary]) -> dict[str, list[float]]:
    """Return the bandwidth of each trial and their median, by run, as shares of the newest run's in its setting."""
    newest: dict[tuple[int, int], float] = {}
    shares = {}
    for run in sweeps:
        measured = _figures(run, RUN_LINK_BANDWIDTH.name, collective)
        if measured is not None:
            reference = newest.setdefault((run.case.ranks, run.case.nodes), measured.median)
            shares[run.run] = [value / reference for value in (*measured.trials, measured.median)]
    return shares


def placement_words(case: Case) -> str:
    """Return in words where a sweep ran: "inside a node, all 8 ranks at once", "across 2 nodes, 1 rank of each"."""
    local = case.ranks // case.nodes
    if case.nodes == 1:
        return f"inside a node, all {local} ranks at once"
    ranks = "1 rank" if local == 1 else f"all {local} ranks"
    return f"across {case.nodes} nodes, {ranks} of each at once"


def sweep_runs(history: Runs) -> list[str]:
    """Return the runs that give links, the newest run of each setting.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    links: dict[tuple[object, ...], str] = {}
    for run in done_sweeps(history):
        for collective in links_by(run.estimates):
            setting = (collective, run.case.ranks, run.case.nodes, run.case.backend, run.hardware)
            links.setdefault(setting, run.run)
    return list(dict.fromkeys(links.values()))


def done_sweeps(history: Runs) -> list[Summary]:
    """Return the probe runs that ended well, newest first."""
    candidates = [run for probe in PROBES for run in history.runs(limit=LOOKED_THROUGH, strategy=probe)]
    sweeps = [run for run in candidates if run.outcome == "done"]
    return sorted(sweeps, key=lambda run: run.started_ns, reverse=True)


def _newest(sweeps: Sequence[Summary]) -> dict[Collective, _Fit]:
    """Return the newest link of each collective, all_reduce first. sweeps: newest first."""
    fits: dict[Collective, _Fit] = {}
    for run in sweeps:
        for collective, link in links_by(run.estimates).items():
            fits.setdefault(collective, _Fit(run=run, collective=collective, link=link))
    return dict(sorted(fits.items(), key=lambda each: each[0] != CALIBRATION))


def _across(sweeps: Sequence[Summary], case: Case) -> dict[Collective, _Fit]:
    counts = {run.case.nodes for run in sweeps if run.case.nodes > 1} - {case.nodes}
    fits: dict[Collective, _Fit] = {}
    for nodes in (case.nodes, *sorted(counts, reverse=True)):
        setting = (nodes * (case.ranks // case.nodes), nodes)
        fits = _newest([run for run in sweeps if (run.case.ranks, run.case.nodes) == setting]) | fits
    return dict(sorted(fits.items(), key=lambda each: each[0] != CALIBRATION))


def _no_sweep(
    summary: Placed, collectives: Sequence[Collective], *, nodes: int, alike: Sequence[Summary] = ()
) -> Absent:
    """Return why a level has no link, and the command that measures it. collectives: those that need the link."""
    local = summary.case.ranks // summary.case.nodes
    where = "" if nodes == 1 and summary.case.nodes == 1 else " inside a node" if nodes == 1 else " across nodes"
    each = "" if nodes == 1 else " of each"
    others = sorted({run.case.ranks // run.case.nodes for run in alike if run.case.nodes > 1})
    share = f" (only with {' or '.join(map(str, others))}, a share of a node's link)" if nodes > 1 and others else ""
    option = "" if nodes == 1 else f" --nodes {nodes}"
    swept = ",".join(dict.fromkeys((CALIBRATION, *collectives)))
    return Absent(
        reason=f"no sweep of {CALIBRATION} on {plural(local, 'rank')}{each}{where} of {summary.hardware} from which a"
        f" link can be fitted is in the history{share}; `observatory run collectives --ranks {local * nodes}{option}"
        f" --option collectives={swept}` makes one"
    )


def _is_alike(inside: _Fit, across: _Fit) -> bool:
    """Whether latency and bandwidth of both levels are equal within their intervals."""
    pairs = [[_figures(fit.run, metric.name, fit.collective) for fit in (inside, across)] for metric in _METRICS]
    return all(
        first is not None and second is not None and _overlap(first, second)
        for first, second in pairs
        if first is not None or second is not None
    )


_METRICS = (RUN_LINK_LATENCY_SECONDS, RUN_LINK_BANDWIDTH)


def _figures(run: Summary, metric_name: str, collective: Collective) -> Estimate | None:
    key = (metric_name, {"collective": collective})
    return next((each for each in run.estimates if (each.metric, each.labels) == key), None)


def _overlap(first: Estimate, second: Estimate) -> bool:
    ends = []
    for each in (first, second):
        low, high = (each.median if end is None else end for end in (each.low, each.high))
        ends.append((low, high))
    (low, high), (other_low, other_high) = ends
    return low <= other_high and other_low <= high


def _node_link(across: _Fit, inside: _Fits) -> Link:
    """Return the link of a node, as seen by a collective over all ranks of several nodes.

    The sweep's link is that of a rank. Its bandwidth becomes the node's by the number of bytes that the node passes for
    each byte of the rank: the same number for a ring, which leaves each node once; 64 / 15 times as many for an
    all_to_all on 2 nodes of 8 ranks. The latency of a ring is the mean over its hops, of which one per node is between
    nodes: on 2 nodes of 8 ranks, 14 hops are inside nodes and 2 across.
    """
    case, collective = across.run.case, across.collective
    byte_s, _ = _crossing_s(collective, case, Link(bandwidth_bytes_per_second=1.0))
    _, messages_across = _crossing_s(collective, case, Link(bandwidth_bytes_per_second=inf, latency_s=1.0))
    bandwidth = (
        across.link.bandwidth_bytes_per_second * byte_s / float(wire_factor(collective, case.ranks, case.backend))
    )
    within = inside.get(collective) or inside.get(CALIBRATION)
    hop_s = latency_s = across.link.latency_s
    if within is not None:
        messages = wire_messages(collective, case.ranks, case.backend)
        inside_s = (messages - messages_across) * within.link.latency_s
        hop_s = (messages * latency_s - inside_s) / messages_across
    return Link(bandwidth_bytes_per_second=bandwidth, latency_s=max(hop_s, latency_s))


def _crossing_s(collective: Collective, case: Case, link: Link) -> tuple[float, float]:
    """Return the times of a byte and of an empty call over all ranks of a run if only links across nodes count."""
    free = NetworkLevel(name="node", ranks=case.ranks // case.nodes, link=Link(bandwidth_bytes_per_second=inf))
    levels = Interconnect(levels=(free, NetworkLevel(name="cluster", ranks=case.ranks, link=link)))
    axis = MeshAxis(size=case.ranks)
    call_s = axis_time_s(collective, 0, axis, levels, case.backend)
    return axis_time_s(collective, 1, axis, levels, case.backend) - call_s, call_s
