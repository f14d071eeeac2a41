"""The plan of a suite on this machine: its cases checked, what each needs, why some cannot run here, and how long all
take by the history."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Protocol

from bench.case import Case, check_instrumentation, find_spec
from bench.errors import InfrastructureFailed, Misuse, plural
from bench.machine.device_checks import TorchBuild, why_no_gpu
from bench.machine.gpus import Gpu, Gpus
from bench.machine.machine import hardware_here
from bench.rank.fault_injection import Fault, parse_fault
from bench.results.efficiency import scaling_between
from bench.results.noise import TrialNoise
from bench.session.case_args import NodeResources, case_of_args, check_room
from bench.store.nights import noise_of_series
from bench.store.summary import Summary
from bench.suite.file import Suite, SuiteCase
from collectors.metrics.results import RUN_STEP_SECONDS
from collectors.settings_file import nearest, shown
from workloads.spec import LARGEST, Device

RUNS_SEARCHED = 500
"""Runs of the history, newest first, that tell how long cases take."""
RUNS_TAKEN = 5
"""Of the runs of a case, the newest so many give its estimate: their median."""


class PastRuns(Protocol):
    """What the plan asks of a history."""

    def runs(self, limit: int) -> tuple[Summary, ...]:
        """Return the newest runs, newest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """One case of a suite on this machine.

    case: None where it cannot run here, for the reason that `refusal` says.
    possible: the case on this machine, or else on one that lacks nothing; None where a package is not installed.
    crowds: warnings of more processes than cores, and of tensor axes that cross nodes.
    estimate_s: of all its trials; None where it is unknown, for the reason that `why_no_estimate` says.
    noise: of its step time, by the newest runs of the history; None where that tells nothing of this case.
    """

    suite_case: SuiteCase
    case: Case | None = None
    possible: Case | None = None
    fault: Fault | None = None
    refusal: str | None = None
    crowds: tuple[str, ...] = ()
    estimate_s: float | None = None
    why_no_estimate: str | None = None
    noise: TrialNoise | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePlan:
    """All cases of a suite, in its order."""

    suite: Suite
    cases: tuple[PlannedCase, ...]


def plan_suite(suite: Suite, node: NodeResources, history: PastRuns | str) -> SuitePlan:
    """Return the plan of a suite on a machine; start nothing and write nothing.

    history: what tells how long cases take, or why nothing does.

    Raises:
        Misuse: no machine can run a case, two are the same, or a baseline does not fit; the message names file, table
            and key.
        InfrastructureFailed: the history cannot be read.
    """
    checked = [_check(one, node, suite) for one in suite.cases]
    cases = {each.one.name: each.case for each in checked}
    of_name = {each.one.name: each for each in checked}
    for each in checked:
        if each.one.baseline is not None:
            _check_baseline(each, of_name[each.one.baseline], suite)
    _refuse_twins(suite, cases)
    if isinstance(history, str):
        return SuitePlan(suite=suite, cases=tuple(_planned(each, node, history) for each in checked))
    runs = history.runs(RUNS_SEARCHED)
    times = _trial_times(runs)
    series: dict[tuple[str, str], list[Summary]] = {}
    for run in runs:
        series.setdefault((run.case.key(), run.hardware), []).append(run)
    return SuitePlan(suite=suite, cases=tuple(_planned(each, node, times, series) for each in checked))


# What no machine can run is a mistake in the file; what only this one cannot is a refusal of the case.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """A case that some machine can run. case: on this machine where it can, else on one that lacks nothing; None where
    a package that is not installed would have to tell. refusal: why it cannot run here."""

    one: SuiteCase
    case: Case | None
    fault: Fault | None = None
    refusal: str | None = None
    crowds: tuple[str, ...] = ()


def _check(one: SuiteCase, node: NodeResources, suite: Suite) -> _Checked:
    """Return the case, checked on this machine.

    Raises:
        Misuse: no machine can run it, or its fault or its profiler windows do not fit.
    """
    if missing := find_spec(one.args.strategy).missing_packages():
        return _Checked(one=one, case=None, refusal=_without_dashes(missing[0]))
    ranks = None if one.args.ranks is None else one.args.ranks[0]
    error_here: str | None = None
    try:
        case = case_of_args(one.args, ranks, node)
    except (Misuse, InfrastructureFailed) as error:
        error_here = _without_dashes(str(error))
        case = _elsewhere(one, ranks, node, suite)
    key = "trace_every"
    try:
        check_instrumentation(one.instrumentation, case)
        key = "inject"
        fault = None if one.fault is None else parse_fault(one.fault, ranks=case.ranks, steps=case.positions())
    except Misuse as error:
        raise _misuse(suite, one, str(error), key) from None
    if one.expect is not None and one.expect.rank is not None and one.expect.rank >= case.ranks:
        raise _misuse(suite, one, f"rank is {one.expect.rank}; ranks are 0 to {case.ranks - 1}", "expect")
    refusal = _lacking(one, node) or error_here
    crowds: list[str] = []
    if refusal is None:
        try:
            crowds = check_room(case, node)
            _check_needed_memory(one, case, node)
        except Misuse as error:
            refusal = _without_dashes(str(error))
    return _Checked(one=one, case=case, fault=fault, refusal=refusal, crowds=() if refusal else tuple(crowds))


def _elsewhere(one: SuiteCase, ranks: int | None, node: NodeResources, suite: Suite) -> Case:
    """Return a case that this machine cannot run, as a machine runs it that lacks nothing.

    Raises:
        Misuse: none can.
    """
    gpu = Gpu(index=0, name="any", uuid="any", memory_bytes=None)
    gpus = Gpus(gpus=(gpu,) * (ranks or 8))
    with_gpus = replace(node, cluster=None, cores=LARGEST, gpus=gpus, torch=TorchBuild(cuda="any"), ranks_per_node=None)
    without = replace(with_gpus, gpus=Gpus())
    device: Device = one.args.device or ("cuda" if node.gpus.gpus else "cpu")
    errors = []
    for place in (with_gpus, without) if device == "cuda" else (without, with_gpus):
        try:
            return case_of_args(one.args, ranks, place)
        except (Misuse, InfrastructureFailed) as error:
            errors.append(str(error))
    raise _misuse(suite, one, errors[0])


def _lacking(one: SuiteCase, node: NodeResources) -> str | None:
    """Return which nodes or GPUs that the suite asks for are not here."""
    gpus = len(node.gpus.gpus)
    if one.needs.nodes > node.nodes:
        return (
            f"it needs {one.needs.nodes} nodes, and {'this is one' if node.nodes == 1 else f'these are {node.nodes}'}"
        )
    if one.needs.gpus > gpus and node.has_told_gpus:
        why = f" ({why_no_gpu(node.gpus, node.torch)})" if not gpus else ""
        return f"it needs {plural(one.needs.gpus, 'GPU')}, and {gpus} can be used here{why}"
    return None


def _check_needed_memory(one: SuiteCase, case: Case, node: NodeResources) -> None:
    """Refuse a case that needs more memory, by its own word, than this machine has.

    Raises:
        Misuse: it does.
    """
    sizes = [gpu.memory_bytes for gpu in node.gpus.gpus if gpu.memory_bytes is not None]
    here_bytes, whose = (node.host_bytes, f"{node.whose} has available")
    if case.device == "cuda":
        if not sizes:
            return
        here_bytes, whose = min(sizes), "a GPU has"
    if one.needs.memory_bytes > here_bytes:
        raise Misuse(f"it needs {one.needs.memory_bytes / 1e9:,.1f} GB, and {whose} {here_bytes / 1e9:,.1f} GB")


_OPTION = re.compile(r"--([a-z][a-z-]*)")


def _without_dashes(text: str) -> str:
    """Return the text with keys in place of options of a command line: `take --warm-up 2` becomes `take warm_up 2`."""
    return _OPTION.sub(lambda found: found[1].replace("-", "_"), text)


def _misuse(suite: Suite, one: SuiteCase, text: str, key: str | None = None) -> Misuse:
    """Return the error of a case: file, table, key and the text. key: by default the one that the text speaks of."""
    text, args = _without_dashes(text), one.args
    if key is None:
        keys = [option.partition("=")[0] for option in args.options] + list(args.dimensions)
        keys += [field.name for field in fields(args)]
        words = {
            word.replace("-", "_"): place for place, word in reversed(list(enumerate(re.findall(r"[\w-]+", text))))
        }
        key = min((word for word in keys if word in words), key=lambda word: words[word], default="strategy")
    name = "" if one.name == one.table else f" of {one.name}"
    return Misuse(f"{suite.path}: [case.{one.table}] {key}{name}: {text}")


def _check_baseline(each: _Checked, baseline: _Checked, suite: Suite) -> None:
    """Refuse a baseline that allows no scaling efficiency, or another one than the file says.

    Raises:
        Misuse: it has not fewer ranks, is another workload, or its batch fits no scaling, or not the declared one.
    """
    one, case, base = each.one, each.case, baseline.case
    if case is None or base is None:
        return
    if case.device != base.device and (each.refusal is not None or baseline.refusal is not None):
        return  # Where both could run, they would take the same device.
    try:
        scaling = scaling_between(case, base)
    except Misuse as error:
        raise Misuse(f"{suite.path}: [case.{one.table}] baseline of {one.name}: {error}") from None
    if one.scaling is not None and scaling != one.scaling:
        raise Misuse(
            f"{suite.path}: [case.{one.table}] scaling of {one.name} is {one.scaling}; with batch {case.shape.batch}"
            f" and {base.shape.batch} of {one.baseline} it is {scaling}: change the one or the other"
        )


def _refuse_twins(suite: Suite, cases: Mapping[str, Case | None]) -> None:
    """Refuse two cases that measure the same thing as often, as long and with the same fault.

    Raises:
        Misuse: the message names both.
    """
    seen: dict[object, SuiteCase] = {}
    for one in suite.cases:
        case = cases[one.name]
        if case is None:
            continue
        often = (case.trials, case.steps, case.warm_up, case.trace_steps, case.seed)
        same = (case.key(), often, one.fault, one.instrumentation, one.keep_traces)
        if (twin := seen.setdefault(same, one)) is not one:
            raise Misuse(
                f"{suite.path}: [case.{one.table}] {one.name} is the same case as {twin.name}; leave one out, or give"
                " them different values"
            )


# Time: a run's share of the time in which it was measured in turn with others.


def _trial_times(runs: Sequence[Summary]) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of one step of a trial, start and end included, by case key and hardware, newest first.

    Cases that are measured in turn share the time from the first's beginning to the last's end, so each instant counts
    for a run as one divided by the number of runs that had begun and not ended.
    """
    found: dict[tuple[str, str], list[float]] = {}
    edges = sorted({edge for run in runs for edge in (run.started_ns, run.ended_ns)})
    begun = sorted(run.started_ns for run in runs)
    ended = sorted(run.ended_ns for run in runs)
    # Seconds from the first edge to each, every instant divided by the number of runs under way.
    share_s = [0.0]
    for before, after in pairwise(edges):
        active = bisect_right(begun, before) - bisect_right(ended, before)
        share_s.append(share_s[-1] + ((after - before) / 1e9 / active if active else 0.0))
    at = dict(zip(edges, share_s, strict=True)) if edges else {}
    for run in runs:
        if run.outcome == "done" and run.trials_done:
            elapsed_s = at[run.ended_ns] - at[run.started_ns]
            per_step_s = elapsed_s / run.trials_done / _steps(run.case)
            found.setdefault((run.case.key(), run.hardware), []).append(per_step_s)
    return found


def _steps(case: Case) -> int:
    """Return the steps of a trial, or the calls of each of a probe's measurements."""
    return case.warm_up + case.steps + case.trace_steps


def _planned(
    each: _Checked,
    node: NodeResources,
    times: Mapping[tuple[str, str], Sequence[float]] | str,
    series: Mapping[tuple[str, str], Sequence[Summary]] = MappingProxyType({}),
) -> PlannedCase:
    """Return the case with its estimate and its noise. series: the newest runs, by case key and hardware."""
    one, case = each.one, each.case
    if each.refusal is not None or case is None:
        return PlannedCase(suite_case=one, possible=case, refusal=each.refusal)
    planned = PlannedCase(suite_case=one, case=case, possible=case, fault=each.fault, crowds=each.crowds)
    if isinstance(times, str):
        return replace(planned, why_no_estimate=times)
    if node.cluster is None:
        hardware = hardware_here(case.device, cores=node.cores, gpus=node.gpus.gpus)
        hardware += "" if node.nodes == 1 else f", as {node.nodes} nodes"
    else:  # A cluster names its hardware otherwise than runs do: that of the newest run of the case.
        hardware = next((hardware for key, hardware in times if key == case.key()), "any hardware")
    past = times.get((case.key(), hardware), ())[:RUNS_TAKEN]
    if one.fault is not None:
        return replace(planned, why_no_estimate="a fire drill ends when its fault is found")
    noise = noise_of_series(case, series.get((case.key(), hardware), ()), RUN_STEP_SECONDS)
    planned = replace(planned, noise=noise if isinstance(noise, TrialNoise) else None)
    if not past:
        return replace(planned, why_no_estimate=f"no run of it on {hardware} is among the newest of the history")
    estimate_s = case.trials * min(one.limit_s, median(past) * _steps(case))
    return replace(planned, estimate_s=estimate_s)


# Which cases are run: by their tags, and by a budget of time.

EXTRA = "extra"
"""Tag of cases that run only where they are asked for: what they need or take is out of proportion."""
ALL = "all"
"""In place of a tag: every case."""


def chosen(suite: Suite, only: Collection[str]) -> frozenset[str]:
    """Return the names of the cases with one of these tags, and of those that they are compared with.

    only: `all` are all cases; without any tag, all but those tagged `extra`.

    Raises:
        Misuse: no case has a tag.
    """
    known = {tag for one in suite.cases for tag in one.tags}
    for tag in only:
        if tag not in known and tag != ALL:
            raise Misuse(
                f"{suite.path}: no case has the tag {shown(tag)}{nearest(tag, known)}; --only takes"
                f" {', '.join([*sorted(known), ALL])}"
            )
    partners = _partners(suite)
    wanted = [
        one.name
        for one in suite.cases
        if ALL in only or (bool(set(only) & set(one.tags)) if only else EXTRA not in one.tags)
    ]
    return frozenset[str]().union(*(_together(name, partners) for name in wanted))


def within_budget(plan: SuitePlan, budget_s: float) -> tuple[tuple[PlannedCase, ...], tuple[PlannedCase, ...]]:
    """Return the cases that fit into a budget, and those that are left out, each in the suite's order.

    Cases of higher importance come first, of equal importance in the suite's order, each together with what it is
    compared with: its baseline, and the other side of its levers. A case of unknown time takes nothing of the budget:
    it is kept, and whoever runs the suite leaves it out when the time is up. Cases that cannot run here are in neither.
    """
    runnable = {one.suite_case.name: one for one in plan.cases if one.refusal is None}
    partners = _partners(plan.suite)
    kept: set[str] = set()
    left_s = budget_s
    for one in sorted(runnable.values(), key=lambda one: -one.suite_case.importance):
        together = _together(one.suite_case.name, partners) & runnable.keys() - kept
        needed_s = sum(runnable[name].estimate_s or 0.0 for name in together)
        if needed_s <= left_s:
            kept |= together
            left_s -= needed_s
    fitting = tuple(one for name, one in runnable.items() if name in kept)
    return fitting, tuple(one for name, one in runnable.items() if name not in kept)


def left_out(plan: SuitePlan, only: Collection[str] = (), budget_s: float | None = None) -> dict[str, str]:
    """Return why cases that could run here are left out, by their names: tags, see `chosen`, or a budget.

    Raises:
        Misuse: no case has a tag, or not one case is left.
    """
    names = chosen(plan.suite, only)
    why = f"without the tag {' or '.join(only)}" if only else f"tagged {EXTRA}; --only {EXTRA} or --only {ALL} runs it"
    runnable = [one for one in plan.cases if one.refusal is None]
    found = {one.suite_case.name: why for one in runnable if one.suite_case.name not in names}
    if budget_s is not None:
        wanted = replace(plan, cases=tuple(one for one in runnable if one.suite_case.name in names))
        kept, beyond = within_budget(wanted, budget_s)
        if beyond and not kept:
            least_s = min(one.estimate_s or 0.0 for one in beyond)
            raise Misuse(
                f"{plan.suite.path}: not one case fits into a budget of {budget_s:g} s; the shortest takes about"
                f" {least_s:.0f} s: take a larger --budget, or fewer trials (--set defaults.trials=1)"
            )
        found |= {one.suite_case.name: f"beyond the budget of {budget_s:g} s" for one in beyond}
    return found


def _partners(suite: Suite) -> dict[str, set[str]]:
    """Return what each case is compared with."""
    found = {one.name: set() if one.baseline is None else {one.baseline} for one in suite.cases}
    for lever in suite.levers:
        found[lever.off].add(lever.on)
        found[lever.on].add(lever.off)
    return found


def _together(name: str, partners: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the case and all that it is compared with, directly or by way of others."""
    found, waiting = {name}, [name]
    while waiting:
        new = set(partners[waiting.pop()]) - found
        found |= new
        waiting += new
    return found
