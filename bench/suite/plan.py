"""The plan of a suite on this machine: checked cases, their needs, refusals, and time estimates from the history."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Protocol

from bench.case import Case, check_instrumentation, find_spec
from bench.errors import InfrastructureFailed, Misuse, plural
from bench.machine.device_checks import TorchBuild, why_no_gpu
from bench.machine.disk import checkpoint_bytes, free_bytes
from bench.machine.gpus import Gpu, Gpus
from bench.machine.machine import hardware_here
from bench.rank.fault_injection import Fault, parse_fault
from bench.results.efficiency import scaling_between
from bench.results.noise import TrialNoise
from bench.session.case_args import NodeResources, case_of_args, check_room, default_lines
from bench.store.nights import noise_of_series
from bench.store.summary import Summary
from bench.suite.file import Suite, SuiteCase
from collectors.metrics.results import RUN_STEP_SECONDS
from collectors.settings_file import nearest, shown
from workloads.spec import LARGEST, Device

RUNS_SEARCHED = 500
"""Newest runs of the history that are searched for times of cases."""
RUNS_TAKEN = 5
"""A case's estimate is the median of this many of its newest runs."""


class PastRuns(Protocol):
    """The part of a history that the plan uses."""

    def runs(self, limit: int) -> tuple[Summary, ...]:
        """Return the newest runs, newest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """One case of a suite on this machine.

    case: None if it cannot run here; `refusal` says why.
    possible: the case on this machine, or else on a machine that lacks nothing; None if a package is not installed.
    crowds: warnings about more processes than cores, tensor axes that cross nodes, or a disk too small for the
    checkpoints.
    estimate_s: time of all its trials; None if unknown, and `why_no_estimate` says why.
    noise: of its step time, from the newest runs of the history; None if these do not show it.
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

    history: source of the time estimates, or the reason why there is none.

    Raises:
        Misuse: no machine can run a case, two cases are the same, or a baseline does not fit; the message names file,
            table and key.
        InfrastructureFailed: the history cannot be read.
    """
    checked = [_check(suite_case, node, suite) for suite_case in suite.cases]
    cases = {each.suite_case.name: each.case for each in checked}
    of_name = {each.suite_case.name: each for each in checked}
    for each in checked:
        if each.suite_case.baseline is not None:
            _check_baseline(each, of_name[each.suite_case.baseline], suite)
    _refuse_twins(suite, cases)
    if isinstance(history, str):
        return SuitePlan(suite=suite, cases=tuple(_planned(each, node, history) for each in checked))
    runs = history.runs(RUNS_SEARCHED)
    times = _trial_times(runs)
    series: dict[tuple[str, str], list[Summary]] = {}
    for run in runs:
        series.setdefault((run.case.key(), run.hardware), []).append(run)
    return SuitePlan(suite=suite, cases=tuple(_planned(each, node, times, series) for each in checked))


def with_disk_warnings(plan: SuitePlan, runs: Path, *, free: Callable[[Path], int | None] = free_bytes) -> SuitePlan:
    """Return the plan with a warning for each case whose checkpoints do not fit on the disk of the runs folder.

    A case that keeps checkpoints needs one per trial; otherwise each checkpoint replaces the one before.
    """
    left_bytes = free(runs)
    if left_bytes is None:
        return plan
    return replace(plan, cases=tuple(_with_disk_warning(planned, runs, left_bytes) for planned in plan.cases))


def _with_disk_warning(planned: PlannedCase, runs: Path, left_bytes: int) -> PlannedCase:
    case = planned.case
    if case is None or case.save_every is None:
        return planned
    copies = case.trials if planned.suite_case.instrumentation.keep_checkpoint else 1
    needed_bytes = copies * checkpoint_bytes(case)
    if needed_bytes <= left_bytes:
        return planned
    warning = (
        f"{'a checkpoint has' if copies == 1 else f'checkpoints of {copies} trials have'} {needed_bytes:,} bytes, and"
        f" the disk of {runs} has {left_bytes:,} free: a save would fail; free {needed_bytes - left_bytes:,} bytes, or"
        " choose another disk with --runs"
    )
    return replace(planned, crowds=(*planned.crowds, warning))


# A case that no machine can run is a mistake in the file; one that this machine cannot run is a refusal.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """A case that some machine can run.

    case: on this machine if possible, else on one that lacks nothing; None if a missing package leaves it unknown.
    refusal: why it cannot run here.
    """

    suite_case: SuiteCase
    case: Case | None
    fault: Fault | None = None
    refusal: str | None = None
    crowds: tuple[str, ...] = ()


def _check(suite_case: SuiteCase, node: NodeResources, suite: Suite) -> _Checked:
    """Return the case, checked on this machine.

    Raises:
        Misuse: no machine can run it, or its fault or its profiler windows do not fit.
    """
    if node.planned is None and (missing := find_spec(suite_case.args.strategy).missing_packages()):
        return _Checked(suite_case=suite_case, case=None, refusal=_without_dashes(missing[0]))
    ranks = None if suite_case.args.ranks is None else suite_case.args.ranks[0]
    error_here: str | None = None
    try:
        case = case_of_args(suite_case.args, ranks, node)
    except (Misuse, InfrastructureFailed) as error:
        error_here = _without_dashes(str(error))
        case = _elsewhere(suite_case, ranks, node, suite)
    key = "trace_every"
    try:
        check_instrumentation(suite_case.instrumentation, case)
        key = "inject"
        fault = (
            None
            if suite_case.fault is None
            else parse_fault(suite_case.fault, ranks=case.ranks, steps=case.positions())
        )
    except Misuse as error:
        raise _misuse(suite, suite_case, str(error), key) from None
    if suite_case.expect is not None and suite_case.expect.rank is not None and suite_case.expect.rank >= case.ranks:
        raise _misuse(suite, suite_case, f"rank is {suite_case.expect.rank}; ranks are 0 to {case.ranks - 1}", "expect")
    refusal = _lacking(suite_case, node) or error_here
    crowds: list[str] = []
    if refusal is None:
        try:
            crowds = [*default_lines(suite_case.args, case, node), *check_room(case, node)]
            _check_needed_memory(suite_case, case, node)
        except Misuse as error:
            refusal = _without_dashes(str(error))
    return _Checked(
        suite_case=suite_case,
        case=case,
        fault=fault,
        refusal=refusal,
        crowds=() if refusal else tuple(map(_without_dashes, crowds)),
    )


def _elsewhere(suite_case: SuiteCase, ranks: int | None, node: NodeResources, suite: Suite) -> Case:
    """Return a case that this machine cannot run, as it would run on a machine that lacks nothing.

    Raises:
        Misuse: no machine can run it.
    """
    gpu = Gpu(index=0, name="any", uuid="any", memory_bytes=None)
    gpus = Gpus(gpus=(gpu,) * (ranks or 8))
    with_gpus = replace(node, cluster=None, cores=LARGEST, gpus=gpus, torch=TorchBuild(cuda="any"), ranks_per_node=None)
    without = replace(with_gpus, gpus=Gpus())
    device: Device = suite_case.args.device or ("cuda" if node.gpus.gpus else "cpu")
    errors = []
    for place in (with_gpus, without) if device == "cuda" else (without, with_gpus):
        try:
            return case_of_args(suite_case.args, ranks, place)
        except (Misuse, InfrastructureFailed) as error:
            errors.append(str(error))
    raise _misuse(suite, suite_case, errors[0])


def _lacking(suite_case: SuiteCase, node: NodeResources) -> str | None:
    """Return the nodes or GPUs that the case needs and this machine lacks."""
    gpus = len(node.gpus.gpus)
    if suite_case.needs.nodes > node.nodes:
        if node.planned is not None:
            return f"it needs {suite_case.needs.nodes} nodes, and {node.whose} has {node.nodes}"
        present = "this is one" if node.nodes == 1 else f"these are {node.nodes}"
        return f"it needs {suite_case.needs.nodes} nodes, and {present}"
    if suite_case.needs.gpus > gpus and node.has_told_gpus:
        if node.planned is not None:
            return f"it needs {plural(suite_case.needs.gpus, 'GPU')} on a node, and a node of {node.whose} has {gpus}"
        why = f" ({why_no_gpu(node.gpus, node.torch)})" if not gpus else ""
        return f"it needs {plural(suite_case.needs.gpus, 'GPU')}, and {gpus} can be used here{why}"
    return None


def _check_needed_memory(suite_case: SuiteCase, case: Case, node: NodeResources) -> None:
    """Refuse a case that declares a need for more memory than this machine has.

    Raises:
        Misuse: the memory does not suffice.
    """
    sizes = [gpu.memory_bytes for gpu in node.gpus.gpus if gpu.memory_bytes is not None]
    here_bytes, whose = (node.host_bytes, f"{node.whose} has available")
    if case.device == "cuda":
        if not sizes:
            return
        here_bytes, whose = min(sizes), "a GPU has"
    if suite_case.needs.memory_bytes > here_bytes:
        raise Misuse(f"it needs {suite_case.needs.memory_bytes / 1e9:,.1f} GB, and {whose} {here_bytes / 1e9:,.1f} GB")


_OPTION = re.compile(r"--([a-z][a-z-]*)")


def _without_dashes(text: str) -> str:
    """Return the text with keys instead of command-line options: `use --warm-up 2` becomes `use warm_up 2`."""
    return _OPTION.sub(lambda option: option[1].replace("-", "_"), text)


def _misuse(suite: Suite, suite_case: SuiteCase, text: str, key: str | None = None) -> Misuse:
    """Return a case's error with file, table, key and text. key: by default the first key in the text."""
    text, args = _without_dashes(text), suite_case.args
    if key is None:
        keys = [option.partition("=")[0] for option in args.options] + list(args.dimensions)
        keys += [field.name for field in fields(args)]
        words = {
            word.replace("-", "_"): place for place, word in reversed(list(enumerate(re.findall(r"[\w-]+", text))))
        }
        key = min((word for word in keys if word in words), key=lambda word: words[word], default="strategy")
    name = "" if suite_case.name == suite_case.table else f" of {suite_case.name}"
    return Misuse(f"{suite.path}: [case.{suite_case.table}] {key}{name}: {text}")


def _check_baseline(each: _Checked, baseline: _Checked, suite: Suite) -> None:
    """Refuse a baseline that gives no scaling efficiency, or a different kind of it than the file declares.

    Raises:
        Misuse: the baseline does not have fewer ranks, is another workload, or its batch fits no scaling, or not the
            declared scaling.
    """
    suite_case, case, base = each.suite_case, each.case, baseline.case
    if case is None or base is None:
        return
    if case.device != base.device and (each.refusal is not None or baseline.refusal is not None):
        return  # If both could run, they would use the same device.
    try:
        scaling = scaling_between(case, base)
    except Misuse as error:
        raise Misuse(f"{suite.path}: [case.{suite_case.table}] baseline of {suite_case.name}: {error}") from None
    if suite_case.scaling is not None and scaling != suite_case.scaling:
        raise Misuse(
            f"{suite.path}: [case.{suite_case.table}] scaling of {suite_case.name} is {suite_case.scaling};"
            f" with batch {case.shape.batch} and {base.shape.batch} of {suite_case.baseline} it is {scaling}:"
            " change one of them"
        )


def _refuse_twins(suite: Suite, cases: Mapping[str, Case | None]) -> None:
    """Refuse two cases that measure the same with equal trials, steps and seed, and the same fault.

    Raises:
        Misuse: the message names both.
    """
    first_of: dict[object, SuiteCase] = {}
    for suite_case in suite.cases:
        case = cases[suite_case.name]
        if case is None:
            continue
        amount = (case.trials, case.steps, case.warm_up, case.trace_steps, case.seed)
        same = (case.key(), amount, suite_case.fault, suite_case.instrumentation, suite_case.keep_traces)
        if (twin := first_of.setdefault(same, suite_case)) is not suite_case:
            raise Misuse(
                f"{suite.path}: [case.{suite_case.table}] {suite_case.name} is the same case as {twin.name}; leave"
                " one out, or give them different values"
            )


# Time: a run's share of the time in which it was measured in turn with others


def _trial_times(runs: Sequence[Summary]) -> dict[tuple[str, str], list[float]]:
    """Return the seconds per step of a trial, including start and end, by case key and hardware, newest first.

    Cases that are measured in turn share the time from the first one's beginning to the last one's end: at each instant
    a run's share is 1 / (number of runs that had begun and not ended).
    """
    times: dict[tuple[str, str], list[float]] = {}
    edges = sorted({edge for run in runs for edge in (run.started_ns, run.ended_ns)})
    begun = sorted(run.started_ns for run in runs)
    ended = sorted(run.ended_ns for run in runs)
    # Seconds from the first edge to each edge, with every instant divided by the number of active runs.
    share_s = [0.0]
    for before, after in pairwise(edges):
        active = bisect_right(begun, before) - bisect_right(ended, before)
        share_s.append(share_s[-1] + ((after - before) / 1e9 / active if active else 0.0))
    at = dict(zip(edges, share_s, strict=True)) if edges else {}
    for run in runs:
        if run.outcome == "done" and run.trials_done:
            elapsed_s = at[run.ended_ns] - at[run.started_ns]
            per_step_s = elapsed_s / run.trials_done / _steps(run.case)
            times.setdefault((run.case.key(), run.hardware), []).append(per_step_s)
    return times


def _steps(case: Case) -> int:
    """Return the steps of a trial, or the calls per measurement of a probe."""
    return case.warm_up + case.steps + case.trace_steps


def _planned(
    each: _Checked,
    node: NodeResources,
    times: Mapping[tuple[str, str], Sequence[float]] | str,
    series: Mapping[tuple[str, str], Sequence[Summary]] = MappingProxyType({}),
) -> PlannedCase:
    """Return the case with its estimate and its noise. series: the newest runs, by case key and hardware."""
    suite_case, case = each.suite_case, each.case
    if each.refusal is not None or case is None:
        return PlannedCase(suite_case=suite_case, possible=case, refusal=each.refusal)
    planned = PlannedCase(suite_case=suite_case, case=case, possible=case, fault=each.fault, crowds=each.crowds)
    if isinstance(times, str):
        return replace(planned, why_no_estimate=times)
    if node.cluster is None:
        hardware = hardware_here(case.device, cores=node.cores, gpus=node.gpus.gpus)
        hardware += "" if node.nodes == 1 else f", as {node.nodes} nodes"
    else:  # Clusters and runs name hardware differently: use that of the newest run.
        hardware = next((hardware for key, hardware in times if key == case.key()), "any hardware")
    past = times.get((case.key(), hardware), ())[:RUNS_TAKEN]
    if suite_case.fault is not None:
        return replace(planned, why_no_estimate="a fire drill ends when its fault is found")
    noise = noise_of_series(case, series.get((case.key(), hardware), ()), RUN_STEP_SECONDS)
    planned = replace(planned, noise=noise if isinstance(noise, TrialNoise) else None)
    if not past:
        return replace(planned, why_no_estimate=f"no recent run on {hardware} is in the history")
    estimate_s = case.trials * min(suite_case.limit_s, median(past) * _steps(case))
    return replace(planned, estimate_s=estimate_s)


# Which cases run: by their tags, and by a budget of time

EXTRA = "extra"
"""Tag of cases that run only on request, because their needs or their time are out of proportion."""
ALL = "all"
"""Special tag that chooses every case."""


def chosen(suite: Suite, only: Collection[str]) -> frozenset[str]:
    """Return the names of the cases with one of these tags, and of the cases that they are compared with.

    only: `all` chooses all cases; without any tag, all but those tagged `extra` are chosen.

    Raises:
        Misuse: no case has one of the tags.
    """
    known = {tag for suite_case in suite.cases for tag in suite_case.tags}
    for tag in only:
        if tag not in known and tag != ALL:
            raise Misuse(
                f"{suite.path}: no case has the tag {shown(tag)}{nearest(tag, known)}; --only takes"
                f" {', '.join([*sorted(known), ALL])}"
            )
    partners = _partners(suite)
    wanted = [
        suite_case.name
        for suite_case in suite.cases
        if ALL in only or (bool(set(only) & set(suite_case.tags)) if only else EXTRA not in suite_case.tags)
    ]
    return frozenset[str]().union(*(_together(name, partners) for name in wanted))


def within_budget(plan: SuitePlan, budget_s: float) -> tuple[tuple[PlannedCase, ...], tuple[PlannedCase, ...]]:
    """Return the cases that fit into a budget, and the cases that do not, each in the suite's order.

    Cases of higher importance come first; cases of equal importance follow the suite's order. Each case comes together
    with the cases it is compared with: its baseline, and the other side of its levers. A case of unknown time takes
    nothing from the budget and is included; the suite's runner leaves it out when the time is up. Neither list has
    cases that cannot run here.
    """
    runnable = {planned.suite_case.name: planned for planned in plan.cases if planned.refusal is None}
    partners = _partners(plan.suite)
    names: set[str] = set()
    left_s = budget_s
    for planned in sorted(runnable.values(), key=lambda planned: -planned.suite_case.importance):
        together = _together(planned.suite_case.name, partners) & runnable.keys() - names
        needed_s = sum(runnable[name].estimate_s or 0.0 for name in together)
        if needed_s <= left_s:
            names |= together
            left_s -= needed_s
    fitting = tuple(planned for name, planned in runnable.items() if name in names)
    return fitting, tuple(planned for name, planned in runnable.items() if name not in names)


def left_out(plan: SuitePlan, only: Collection[str] = (), budget_s: float | None = None) -> dict[str, str]:
    """Return why runnable cases are left out, by name: because of their tags, see `chosen`, or the budget.

    Raises:
        Misuse: no case has one of the tags, or no case fits the budget.
    """
    names = chosen(plan.suite, only)
    why = f"without the tag {' or '.join(only)}" if only else f"tagged {EXTRA}; --only {EXTRA} or --only {ALL} runs it"
    runnable = [planned for planned in plan.cases if planned.refusal is None]
    reasons = {planned.suite_case.name: why for planned in runnable if planned.suite_case.name not in names}
    if budget_s is not None:
        wanted = replace(plan, cases=tuple(planned for planned in runnable if planned.suite_case.name in names))
        fitting, beyond = within_budget(wanted, budget_s)
        if beyond and not fitting:
            least_s = min(planned.estimate_s or 0.0 for planned in beyond)
            raise Misuse(
                f"{plan.suite.path}: not one case fits into a budget of {budget_s:g} s; the shortest takes about"
                f" {least_s:.0f} s: use a larger --budget, or fewer trials (--set defaults.trials=1)"
            )
        reasons |= {planned.suite_case.name: f"beyond the budget of {budget_s:g} s" for planned in beyond}
    return reasons


def _partners(suite: Suite) -> dict[str, set[str]]:
    """Return the cases that each case is compared with."""
    partners = {
        suite_case.name: set() if suite_case.baseline is None else {suite_case.baseline} for suite_case in suite.cases
    }
    for lever in suite.levers:
        partners[lever.off].add(lever.on)
        partners[lever.on].add(lever.off)
    return partners


def _together(name: str, partners: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the case and all cases that it is compared with, directly or through others."""
    group, waiting = {name}, [name]
    while waiting:
        new = set(partners[waiting.pop()]) - group
        group |= new
        waiting += new
    return group
