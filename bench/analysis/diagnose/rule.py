"""Decides what limits a run: the largest cost other than computing, if it is large (docs/guides/diagnosis.md).

Computing is the purpose of a step, so it is the limit only if every other cost is small and computing is shown to be
fast, by its share of the step and of the measured ceiling. It is never the limit merely because nothing else is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.analysis.diagnose.costs import costs_of
from bench.analysis.diagnose.laws import missing_links
from bench.analysis.diagnose.levers import run_command, try_command, with_levers
from bench.analysis.diagnose.observed import CostFinding, Diagnosis, Observed, StepShare
from bench.errors import plural
from bench.results.estimate import mean_interval, of_metric
from bench.results.step_parts import StepAccount
from collectors.metrics import results

LEAST_RATIO = 0.10
"""A cost may be the limit from this share of the step."""
FAST_RATIO = 0.40
"""Computing may be the limit from this share of the measured ceiling: textbooks call 0.4 to 0.6 good."""
CROWDED_RATIO = 0.5
"""From this share of the time in which tasks of a node wait for a CPU, its computing times are doubtful."""
SHOWN_RATIO = 0.005
"""A finding with a smaller share of the step is left out."""
ENOUGH_TRIALS = 5
LEAST_STRAGGLER_TRIALS = 3
"""With fewer, a rank too often has most of the lateness by chance, so a suspect cannot be the limit."""
LONGEST_LINE = 100
WIDE = "its interval is wider than the share itself"

NAMES: dict[str, str] = {"exposed_communication": "exposed communication"}
_OUT_OF_MEMORY = re.compile(
    r"\bout of memory\b|OutOfMemory(Error)?\b|\bMemoryError\b|\bcan(no|')t allocate memory\b", re.IGNORECASE
)
_TRIALS = re.compile(r"--trials \d+")
_COMMAND = re.compile(r"`(observatory [^`]*)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LimitVerdict:
    """The limit and its certainty. doubts: why the limit may be another, and what would decide; may be empty.

    settles: the command that would decide; None if a remedy is the next step.
    """

    limit: CostFinding
    reason: str
    doubts: tuple[str, ...] = ()
    settles: str | None = None


def diagnose(observed: Observed) -> Diagnosis:
    """Return what limits a training run."""
    findings, account = costs_of(observed)
    shown = [
        with_levers(finding, observed)
        for finding in sorted(findings, key=_size, reverse=True)
        if finding.share is None or finding.share.value >= SHOWN_RATIO or finding.kind == "compute"
    ]
    if len(shown) > 1 and _may_be_chance(shown[0], observed):
        shown[:2] = shown[1], shown[0]
    missing = tuple(dict.fromkeys(_missing(observed, account)))
    verdict = _verdict(observed, shown, account, missing)
    limit = verdict.limit
    return Diagnosis(
        run=observed.run,
        title=observed.case.title,
        outcome=observed.outcome,
        limit=limit,
        is_sure=not verdict.doubts and (limit.kind != "unknown" or observed.outcome in FAILED),
        reason="; ".join((verdict.reason, *verdict.doubts)),
        findings=tuple([limit, *(finding for finding in shown if finding is not limit)] if limit in shown else shown),
        root_cause=tuple(observed.cause),
        missing=missing,
        facts=tuple(_facts(observed, limit)),
        command=verdict.settles or _next(observed, limit),
    )


FAILED = ("failed", "timed_out")
"""Outcomes for which only the root cause is reported."""


def likely_limit(diagnosis: Diagnosis) -> str:
    """Return the limit in one line of at most 100 characters, to show with an alert.

    Example: "exposed communication 38 % of the step [35, 41], model predicts 12 %". If the evidence does not exclude
    another limit, the line begins with "likely "; if it shows none, with "limit unknown".
    """
    if diagnosis.outcome in FAILED:
        return _cut(f"failed: {diagnosis.root_cause[0] if diagnosis.root_cause else 'the cause is unknown'}")
    limit = diagnosis.limit
    if limit.kind == "unknown":
        return _cut(f"limit unknown: {diagnosis.reason}")
    line = title_of(limit)
    if limit.share is not None:
        line += f" {share_words(limit.share)}"
    if limit.expected is not None:
        line += f", model predicts {100 * limit.expected:.0f} %"
    return _cut(line if diagnosis.is_sure else f"likely {line}")


def title_of(finding: CostFinding) -> str:
    """Return the kind in words: "exposed communication", "imbalance of stages"."""
    of = "" if finding.subject is None else f" of {finding.subject}"
    return f"{NAMES.get(finding.kind, finding.kind)}{of}"


def share_words(share: StepShare) -> str:
    """Return the share in words: "38 % of the step [35, 41]"."""
    interval = "" if share.low is None or share.high is None else f" [{100 * share.low:.0f}, {100 * share.high:.0f}]"
    return f"{100 * share.value:.0f} % of the step{interval}"


def _cut(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..."


def _size(finding: CostFinding) -> float:
    return -1.0 if finding.share is None else finding.share.value


def _may_be_chance(finding: CostFinding, observed: Observed) -> bool:
    """Return whether this is a late rank that may be chance in so few trials: it is listed, but never the limit."""
    return finding.kind == "straggler" and finding.doubt is not None and observed.trials_done < LEAST_STRAGGLER_TRIALS


# The verdict


def _verdict(
    observed: Observed, shown: Sequence[CostFinding], account: StepAccount | str, missing: Sequence[str]
) -> _LimitVerdict:
    if observed.outcome in FAILED:
        return _of_failed(observed)
    if isinstance(account, str):
        why = account if observed.trials_done else "no trial was completed"
        return _LimitVerdict(
            limit=CostFinding(kind="unknown", share=None), reason=why, settles=run_command(observed.case)
        )
    costs = sorted(
        (finding for finding in shown if finding.kind not in ("compute", "unknown") and finding.share is not None),
        key=_size,
        reverse=True,
    )
    unattributed = next((finding.share for finding in shown if finding.kind == "unknown"), None)
    if costs and costs[0].share is not None and round(costs[0].share.value, 3) >= LEAST_RATIO:
        if _may_be_chance(costs[0], observed):
            return _of_suspect(observed, costs[0], costs[0].share)
        return _of_cost(observed, costs, unattributed, is_traced=bool(account.traces))
    if not account.traces:
        return _LimitVerdict(
            limit=CostFinding(kind="unknown", share=None),
            reason="no step was traced, so its time cannot be attributed",
            settles=run_command(observed.case, "--trace-steps 3"),
        )
    return _of_computing(observed, shown, unattributed, missing)


def _of_failed(observed: Observed) -> _LimitVerdict:
    """Return the verdict on a failed run: its root cause, or memory if a rank ran out of memory."""
    text = "\n".join(observed.cause)
    unknown = CostFinding(kind="unknown", share=None, evidence=tuple(observed.cause[:1]))
    if _OUT_OF_MEMORY.search(text) is None:
        details = f"observatory show {observed.run} --details"
        doubts = ("the kernel may have run out of memory",) if "out-of-memory killer" in text else ()
        return _LimitVerdict(limit=unknown, reason="the run failed", doubts=doubts, settles=details)
    memory = with_levers(CostFinding(kind="memory", share=None, evidence=tuple(observed.cause[:1])), observed)
    is_said = bool(observed.cause) and _OUT_OF_MEMORY.search(observed.cause[0]) is not None
    doubts = () if is_said else ("only the last lines of the rank mention memory",)
    reason = "a rank ran out of memory" if is_said else "a rank may have run out of memory"
    return _LimitVerdict(limit=memory, reason=reason, doubts=doubts)


def _of_suspect(observed: Observed, suspect: CostFinding, share: StepShare) -> _LimitVerdict:
    """Return the verdict if the largest cost is a late rank that may be chance."""
    assert suspect.doubt is not None
    option = _TRIALS.search(suspect.doubt)
    return _LimitVerdict(
        limit=CostFinding(kind="unknown", share=None),
        reason=f"a late rank may hold the others up, {100 * share.value:.0f} % of the step, but"
        f" {plural(observed.trials_done, 'trial')} cannot tell that from chance",
        doubts=(suspect.doubt,),
        settles=run_command(observed.case, f"--trials {ENOUGH_TRIALS}" if option is None else option[0]),
    )


def _of_cost(
    observed: Observed, costs: Sequence[CostFinding], unattributed: StepShare | None, *, is_traced: bool
) -> _LimitVerdict:
    """Return the verdict that the first cost is the limit."""
    limit, share = costs[0], costs[0].share
    assert share is not None
    more_trials = run_command(observed.case, f"--trials {max(ENOUGH_TRIALS, 2 * observed.trials_done)}")
    doubts: list[str] = []
    settles = None
    if limit.doubt is not None:
        doubts.append(limit.doubt)
        if (trials_option := _TRIALS.search(limit.doubt)) is not None:
            settles = run_command(observed.case, trials_option[0])
    if share.low is not None and share.low < LEAST_RATIO:
        doubts.append(f"its interval reaches below {100 * LEAST_RATIO:.0f} % of the step; more trials would decide")
        settles = settles or more_trials
    elif share.is_unsure:
        doubts.append(f"{WIDE}; more trials would decide")
        settles = settles or more_trials
    second = costs[1] if len(costs) > 1 else None
    if second is not None and second.share is not None and not _exceeds(share, second.share):
        doubts.append(f"it may be {title_of(second)}, {share_words(second.share)}; more trials would decide")
        settles = settles or more_trials
    if unattributed is not None and unattributed.value >= share.value:
        if is_traced:
            doubts.append(f"{100 * unattributed.value:.0f} % of the step is unattributed")
        else:
            doubts.append(
                f"without a trace, {100 * unattributed.value:.0f} % of the step is unattributed; use --trace-steps 3"
            )
            settles = run_command(observed.case, "--trace-steps 3")
    elif observed.trials_done == 1 and share.value <= 0.5:
        doubts.append("one trial has no interval; more trials would decide")
        settles = settles or more_trials
    beyond = ""
    if limit.expected is not None and limit.expected > 0:
        over = share.value - limit.expected
        beyond = f", {100 * over:.0f} % of the step more than the model predicts" if over >= LEAST_RATIO else ""
        beyond = beyond or ", as the model predicts for this setup"
    return _LimitVerdict(
        limit=limit,
        reason=f"the largest cost other than computing{beyond}",
        doubts=tuple(doubts),
        settles=settles,
    )


def _exceeds(first: StepShare, second: StepShare) -> bool:
    """Return whether a share is clearly larger: it exceeds one half, or the differences over trials show it.

    Both come from the same trials, so a disturbance of a trial affects both.
    """
    if first.value > 0.5:
        return True
    if len(first.trials) != len(second.trials):
        return False
    if len(first.trials) == 1:  # The caller also says that one trial has no interval.
        return first.value >= 2 * second.value
    differences = [
        first_value - second_value for first_value, second_value in zip(first.trials, second.trials, strict=True)
    ]
    interval = mean_interval(differences)
    return min(differences) > 0 if interval is None else interval[0] > 0


def _of_computing(
    observed: Observed, shown: Sequence[CostFinding], unattributed: StepShare | None, missing: Sequence[str]
) -> _LimitVerdict:
    """Return the verdict if no other cost is large: computing, if it fills the step and is shown to be fast."""
    compute = next(finding for finding in shown if finding.kind == "compute")
    share = compute.share
    assert share is not None
    small = f"no cost takes {100 * LEAST_RATIO:.0f} % of the step or more"
    crowded = tuple(
        f"on {node.host} tasks waited for a CPU {100 * pressure:.0f} % of the time, which counts as computing"
        for node in observed.nodes
        if observed.case.device == "cpu" and (pressure := node.cpu_pressure_ratio or 0.0) >= CROWDED_RATIO
    )
    unknown = CostFinding(kind="unknown", share=None)
    if share.value < 0.5:
        unattributed_ratio = 0.0 if unattributed is None else unattributed.value
        return _LimitVerdict(
            limit=unknown,
            reason=f"{small}, and computing takes {100 * share.value:.0f} %; {100 * unattributed_ratio:.0f} % is"
            " unattributed",
            doubts=("a longer window may decide",),
            settles=run_command(observed.case, f"--trace-steps {max(6, 2 * observed.case.trace_steps)}"),
        )
    mfu = of_metric(observed.estimates, results.RUN_MEASURED_MFU)
    if not mfu:
        matmul_command = next(
            (match[1] for line in missing if (match := _COMMAND.search(line)) and "matmul" in match[1]), None
        )
        return _LimitVerdict(
            limit=unknown,
            reason=f"{small}: computing takes {100 * share.value:.0f} %, but whether it is fast is unknown",
            doubts=("a matmul run on this hardware would decide", *crowded),
            settles=matmul_command or f"observatory run matmul --device {observed.case.device}",
        )
    reached = mfu[0].median / share.value
    wide = (WIDE,) if share.is_unsure else ()
    if reached >= FAST_RATIO:
        return _LimitVerdict(
            limit=compute,
            reason=f"{small}, and computing reaches {100 * min(1.0, reached):.0f} % of the measured ceiling",
            doubts=(*wide, *crowded),
        )
    return _LimitVerdict(
        limit=compute,
        reason=f"{small}",
        doubts=(
            f"computing reaches only {100 * reached:.0f} % of the measured ceiling: small kernels or memory"
            " bandwidth may limit"
            " it; `observatory analyse kernels` shows which",
            *wide,
            *crowded,
        ),
        settles=f"observatory analyse kernels {observed.run}",
    )


# What is missing, facts, and the next command


def _missing(observed: Observed, account: StepAccount | str) -> Iterator[str]:
    if observed.outcome in FAILED:
        return
    if isinstance(account, StepAccount):
        yield from account.absent.values()
        if account.traces and not of_metric(observed.estimates, results.RUN_MEASURED_MFU):
            reasons = [note for note in observed.notes if note.startswith("MFU against a measured ceiling is absent")]
            yield (
                reasons[0]
                if reasons
                else "MFU against a measured ceiling is absent: `observatory run matmul` measures one"
            )
        if observed.trials_done == 1:
            yield "intervals: one trial has none; use --trials 3"
    missing = missing_links(observed)
    if observed.case.ranks > 1 and missing is not None and observed.case.spec().transfers(observed.case):
        yield f"the predicted communication: {missing}"
    yield from observed.missing


def _facts(observed: Observed, limit: CostFinding) -> Iterator[str]:
    """Yield the step time, and the speed-up with its upper bound without the limit."""
    for step in of_metric(observed.estimates, results.RUN_MEAN_STEP_SECONDS)[:1]:
        ends = "" if step.low is None or step.high is None else f" [{1e3 * step.low:,.4g}, {1e3 * step.high:,.4g}]"
        is_wide = step.low is not None and step.high is not None and step.high - step.low > step.median
        unsure = "; unsure: the interval is wider than the step itself" if is_wide else ""
        trials = plural(observed.trials_done, "trial")
        yield f"a step takes {1e3 * step.median:,.4g} ms{ends}, the mean over {trials}{unsure}"
    for efficiency in observed.scaling:
        factor = observed.case.ranks / efficiency.baseline_ranks
        speed_up = efficiency.ratio.value * factor
        of = f"{efficiency.baseline_ranks} rank{'s' if efficiency.baseline_ranks > 1 else ''}"
        against = f"{of} ({efficiency.scaling} scaling, {efficiency.baseline_run})"
        line = f"speed-up {speed_up:.1f} of {factor:g} against {against}"
        if speed_up < 1:
            line += ": slower than with fewer ranks"
        if limit.share is not None and limit.kind != "compute":
            without = min(factor, speed_up / (1 - min(0.99, limit.share.value)))
            line += f"; without {title_of(limit)} at most {without:.1f}"
        yield line


def _next(observed: Observed, limit: CostFinding) -> str:
    """Return the command of the first remedy."""
    for lever in limit.levers:
        if lever.settings:
            if observed.outcome in FAILED:
                words = [f"--option {name}={value}" for name, value in lever.settings.items()]
                return run_command(observed.case, *words, without=tuple(lever.settings))
            return try_command(observed.case, lever)
        if (match := _COMMAND.search(lever.words)) is not None and limit.kind != "straggler":
            return match[1]
    if limit.kind in ("straggler", "imbalance"):
        return f"observatory analyse stragglers {observed.run}"
    if limit.kind == "host":
        return f"observatory analyse idle {observed.run}"
    return f"observatory show {observed.run} --details"
