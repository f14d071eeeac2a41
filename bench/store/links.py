"""Links of a run's interconnect, from earlier sweeps of collectives: inside a node, and across nodes.

A sweep is placed by the nodes that its run had. Both levels are measured with all ranks of a node at once: a sweep with
one rank a node sees one network card of several, and counts only for runs that also have one rank a node. Each level is
fitted apart, and on each level each collective that was swept: a library copies and adds on its way, so that each
reaches another share of the same wires. A collective that was not swept has the link of all_reduce. Where all_reduce
measures alike on both levels, both have its link across nodes. They stay two levels all the same: groups that leave a
node at once share its link, and a ring over all ranks cannot tell how much more it may carry.
Not covered: more than two levels, such as racks, or a domain of NVLink that spans nodes and is smaller than the run.
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
"""Probes that sweep an all_reduce, and so can give a link."""
LOOKED_THROUGH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLinks:
    """The interconnect of a run's ranks. basis: the runs that measured it and what they measured, for people.

    sweeps: the runs that gave the links that the run's transfers take, those inside a node first, each once.
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
"""Of one level, by collective; that of all_reduce first, where there is one."""


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


def find_links(summary: Placed, history: Runs) -> MeasuredLinks | Absent:
    """Return the links between the run's ranks by level and collective, each from the newest sweep; absent without any.

    A level that no sweep measured has the reason in place of its link. The sweep inside a node has as many ranks as the
    run has on a node. The sweep across nodes also has as many on each node, and of those one over as many nodes as the
    run is preferred, then one over most.

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
    no_inside = _no_sweep(summary, needed["node"], nodes=1)
    no_across = _no_sweep(summary, needed["cluster"], nodes=2, alike=alike)
    if case.nodes == 1 or local == 1:  # There is nothing across nodes, or nothing inside one.
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
    """Return the collectives of the case that cross each level, each once."""
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
    """Return what was measured of the levels. is_alike: all_reduce takes as long on both."""
    first = [(level, fits, next(iter(fits.values()))) for level, fits in levels if fits]
    words = [_words(level, fits, fit, needed) for level, fits, fit in first]
    alike = ": alike within their intervals, so one link for both levels" if is_alike else ""
    used = {
        fit.run.run: fit.run
        for _, fits, first_fit in first
        for fit in [fits.get(each, first_fit) for each in needed[_level_of(first_fit)]] or [first_fit]
    }
    return MeasuredLinks(
        interconnect=Interconnect(levels=tuple(level for level, _ in levels)),
        basis=", and ".join(words) + alike,
        sweeps=tuple(used.values()),
    )


def _level_of(fit: _Fit) -> str:
    return "cluster" if fit.run.case.nodes > 1 else "node"


def _words(level: NetworkLevel, fits: _Fits, first: _Fit, needed: Mapping[str, Sequence[Collective]]) -> str:
    """Return a level's link and its run, and the links of the collectives that the case needs, for people.

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
    """The lowest and the highest bandwidth of any trial, as shares of the newest sweep's in its setting.

    runs, trials: how many there are.
    """

    low: float
    high: float
    runs: int
    trials: int


def bandwidth_spread(place: Placed, history: Runs) -> BandwidthSpread | None:
    """Return how the bandwidths scatter of what the run sends, over sweeps of its hardware and backend; None without.

    For a collective that was not swept all_reduce stands in, or where that was not swept either, another one.
    Sweeps are compared with others of the same collective on as many ranks and nodes only.

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
    """Return by run the bandwidth of each trial and their median, as shares of the newest run's in its setting."""
    newest: dict[tuple[int, int], float] = {}
    shares = {}
    for run in sweeps:
        measured = _figures(run, RUN_LINK_BANDWIDTH.name, collective)
        if measured is not None:
            reference = newest.setdefault((run.case.ranks, run.case.nodes), measured.median)
            shares[run.run] = [value / reference for value in (*measured.trials, measured.median)]
    return shares


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
        for collective in links_by(run.estimates):
            setting = (collective, run.case.ranks, run.case.nodes, run.case.backend, run.hardware)
            links.setdefault(setting, run.run)
    return list(dict.fromkeys(links.values()))


def done_sweeps(history: Runs) -> list[Summary]:
    """Return the probes' runs that ended well, newest first."""
    candidates = [run for probe in PROBES for run in history.runs(limit=LOOKED_THROUGH, strategy=probe)]
    done = [run for run in candidates if run.outcome == "done"]
    return sorted(done, key=lambda run: run.started_ns, reverse=True)


def _newest(sweeps: Sequence[Summary]) -> dict[Collective, _Fit]:
    """Return the newest link of each collective, all_reduce's first. sweeps: newest first."""
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
    """Return why a level has no link, and the command that measures it. collectives: those that need it."""
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
    wanted = (metric_name, {"collective": collective})
    return next((each for each in run.estimates if (each.metric, each.labels) == wanted), None)


def _overlap(first: Estimate, second: Estimate) -> bool:
    ends = []
    for each in (first, second):
        low, high = (each.median if end is None else end for end in (each.low, each.high))
        ends.append((low, high))
    (low, high), (other_low, other_high) = ends
    return low <= other_high and other_low <= high


def _node_link(across: _Fit, inside: _Fits) -> Link:
    """Return the link of a node, as a collective over all ranks of several nodes shows it.

    The sweep's link is that of a rank. Its bandwidth becomes the node's by what the node passes for each byte of the
    rank: as much in a ring, which leaves each node once; in an all_to_all on 2 nodes of 8 ranks 64 / 15 times as much.
    The latency of a ring is the mean of its hops, of which one for each node is between nodes: on 2 nodes of 8 ranks 14
    hops inside and 2 across.
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
    """Return the time of a byte, and of a call without bytes, over all ranks of a run where only nodes' links count."""
    free = NetworkLevel(name="node", ranks=case.ranks // case.nodes, link=Link(bandwidth_bytes_per_second=inf))
    levels = Interconnect(levels=(free, NetworkLevel(name="cluster", ranks=case.ranks, link=link)))
    axis = MeshAxis(size=case.ranks)
    call_s = axis_time_s(collective, 0, axis, levels, case.backend)
    return axis_time_s(collective, 1, axis, levels, case.backend) - call_s, call_s
