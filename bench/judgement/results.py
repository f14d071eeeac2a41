"""From the trials of a run to its Estimates, with a reason for each one that is absent."""

from __future__ import annotations

from collections.abc import Sequence

from bench.case import Case
from bench.judgement.efficiency import Mfu, flops_per_second_per_device, mfu
from bench.judgement.estimate import Estimate, estimate, estimate_share
from bench.judgement.memory import memory_estimates
from bench.judgement.trials import Trial
from bench.peaks import Absent, Peak
from collectors.catalogue import results
from workloads.cards.training_options import microbatch
from workloads.laws.activations import paper_activation_bytes
from workloads.laws.recorded import recorded_bytes


def results_of(
    case: Case, trials: Sequence[Trial], peak: Peak | Absent
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """All Estimates of a run, and what is absent with its reason."""
    if not trials:
        return (), ("no trial was completed: all figures are absent",)
    times_s = [trial.mean_step_s for trial in trials]
    tokens_per_second = [case.shape.tokens / step_s for step_s in times_s]
    found = [
        estimate(results.RUN_STEP_SECONDS, [trial.step_s for trial in trials]),
        estimate(results.RUN_MEAN_STEP_SECONDS, times_s),
        estimate(results.RUN_TOKENS_PER_SECOND, tokens_per_second),
        estimate(results.RUN_TOKENS_PER_SECOND_PER_DEVICE, [rate / case.ranks for rate in tokens_per_second]),
        estimate(
            results.RUN_FLOPS, [flops_per_second_per_device(case.shape, case.ranks, step_s) for step_s in times_s]
        ),
    ]
    notes = [f"intervals are absent: {found[0].why_no_interval}"] if found[0].why_no_interval else []
    shares = [mfu(case.shape, case.ranks, step_s, peak) for step_s in times_s]
    if refused := [share.reason for share in shares if isinstance(share, Absent)]:
        notes.append(f"MFU is absent: {refused[0]}")
    else:
        found.append(estimate(results.RUN_MFU, [share.ratio for share in shares if isinstance(share, Mfu)]))
    found += _phases(trials)
    found += _memory(trials)
    card = case.card()
    size = microbatch(case, card.data_ranks(case))
    accounts, absent = memory_estimates(
        trials,
        states=card.most_states(case),
        paper=card.paper_states(case),
        paper_activations_bytes=paper_activation_bytes(size.shape, size.sequences, size.checkpoint),
        peak=card.peak(case),
    )
    found += accounts
    notes += absent
    found.append(estimate_share(results.RUN_OBSERVER_RATIO, [trial.observer_ratio for trial in trials]))
    if any(trial.traced is None for trial in trials):
        notes.append("the division of a step and counted traffic are absent: no step was traced; --trace-steps 3 does")
    found += _traced(trials)
    found += _traffic(case, trials)
    losses = [trial.loss for trial in trials if trial.loss is not None]
    if len(losses) == len(trials) and min(losses) > 0:
        found.append(estimate(results.RUN_LOSS, losses))
    else:
        notes.append("the loss is absent: the last measured step has none that is positive and finite")
    return tuple(found), tuple(notes)


def _phases(trials: Sequence[Trial]) -> list[Estimate]:
    return [
        estimate(results.RUN_PHASE_SECONDS, [trial.phases_s[phase] for trial in trials], phase=phase)
        for phase in trials[0].phases_s
        if all(trial.phases_s.get(phase, 0) > 0 for trial in trials)
    ]


def _memory(trials: Sequence[Trial]) -> list[Estimate]:
    return [
        estimate(results.RUN_PEAK_MEMORY_BYTES, [trial.peak_bytes[account] for trial in trials], account=account)
        for account in trials[0].peak_bytes
        if all(account in trial.peak_bytes for trial in trials)
    ]


def _traced(trials: Sequence[Trial]) -> list[Estimate]:
    traced = [trial.traced for trial in trials if trial.traced is not None]
    if len(traced) < len(trials):
        return []
    found = [estimate(results.RUN_TRACED_STEP_SECONDS, [one.step_s for one in traced])]
    found += [
        estimate_share(results.RUN_TRACED_RATIO, [one.shares[part] for one in traced], part=part)
        for part in traced[0].shares
        if all(part in one.shares for one in traced)
    ]
    overlaps = [one.overlap_ratio for one in traced if one.overlap_ratio is not None]
    if len(overlaps) == len(traced):
        found.append(estimate_share(results.RUN_OVERLAP_RATIO, overlaps))
    communications_s = [one.communication_s for one in traced if one.communication_s is not None]
    if len(communications_s) == len(traced) and min(communications_s) > 0:
        found.append(estimate(results.RUN_COMMUNICATION_SECONDS, communications_s, account="traced"))
    return found


def _traffic(case: Case, trials: Sequence[Trial]) -> list[Estimate]:
    """What the strategy's law says that a rank hands to each collective, beside what was counted."""
    expected = recorded_bytes(case.card().transfers(case), case.backend)
    accounts: dict[tuple[str, str], list[float]] = {
        (name, "expected"): [float(total)] * len(trials) for name, total in expected.items() if total
    }
    for name in {name for trial in trials if trial.traced is not None for name in trial.traced.payload_bytes}:
        counted = [trial.traced.payload_bytes.get(name, 0.0) if trial.traced else 0.0 for trial in trials]
        if all(counted):
            accounts[name, "counted"] = counted
    return [
        estimate(results.RUN_PAYLOAD_BYTES, values, collective=name, account=account)
        for (name, account), values in sorted(accounts.items(), key=lambda item: (item[0][0], item[0][1] == "counted"))
    ]
