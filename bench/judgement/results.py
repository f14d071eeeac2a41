"""From the trials of a run to its Estimates, with a reason for each one that is absent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.case import Case
from bench.judgement.efficiency import Mfu, flops_per_second_per_device, mfu
from bench.judgement.estimate import Estimate, estimate, estimate_share
from bench.judgement.memory import memory_estimates
from bench.judgement.pipelined import pipeline_estimates
from bench.judgement.stages import AXIS
from bench.judgement.traced import Traced
from bench.judgement.trials import Trial
from bench.peaks import Absent, Peak
from collectors.catalogue import results
from workloads.cards.data_place import DATA_AXES
from workloads.cards.pipeline_options import counts
from workloads.cards.training_options import microbatch, peak_not_covered
from workloads.laws.activations import paper_activation_bytes
from workloads.laws.pipeline import Pipeline
from workloads.laws.recorded import recorded_bytes
from workloads.laws.stages import activations_by_stage
from workloads.laws.terms import NotCovered


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
    found += _data_wait(trials)
    found += _memory(trials)
    card = case.card()
    accounts, absent = memory_estimates(
        trials,
        states=card.states_not_covered(case) or card.most_states(case),
        paper=card.paper_states(case),
        paper_activations=_paper_activations(case),
        peak=card.peak(case),
    )
    found += accounts
    notes += absent
    pipeline = card.pipeline(case)
    if pipeline is not None:
        accounts, absent = pipeline_estimates(pipeline, card.mesh(case), trials, _stage_activations(case, pipeline))
        found += accounts
        notes += absent
    found.append(estimate_share(results.RUN_OBSERVER_RATIO, [trial.observer_ratio for trial in trials]))
    if any(trial.traced is None for trial in trials):
        notes.append("the division of a step and counted traffic are absent: no step was traced; --trace-steps 3 does")
    found += _traced(trials)
    found += _attention_pairs(case, trials)
    found += _traffic(case, trials)
    losses = [trial.loss for trial in trials if trial.loss is not None]
    if len(losses) == len(trials) and min(losses) > 0:
        found.append(estimate(results.RUN_LOSS, losses))
    else:
        notes.append("the loss is absent: the last measured step has none that is positive and finite")
    return tuple(found), tuple(notes)


def _paper_activations(case: Case) -> int | NotCovered:
    card = case.card()
    if card.paper_activations is not None:
        return card.paper_activations(case)
    size = microbatch(case, card.data_ranks(case))
    return paper_activation_bytes(size.shape, size.sequences, size.checkpoint)


def _stage_activations(case: Case, pipeline: Pipeline) -> Sequence[int] | NotCovered:
    """Of each stage, where no other axis cuts its tensors."""
    card = case.card()
    absent = peak_not_covered(case) or card.states_not_covered(case)
    if absent is not None:
        return absent
    if others := {axis for axis, size in card.mesh(case).items() if size > 1} - {AXIS, *DATA_AXES}:
        return NotCovered(
            reason=f"no law says what the axis {' and '.join(sorted(others))} leaves of a stage's tensors"
        )
    return activations_by_stage(pipeline, microbatch(case, card.data_ranks(case)), counts(case, pipeline.stages))


def _phases(trials: Sequence[Trial]) -> list[Estimate]:
    return [
        estimate(results.RUN_PHASE_SECONDS, [trial.phases_s[phase] for trial in trials], phase=phase)
        for phase in trials[0].phases_s
        if all(trial.phases_s.get(phase, 0) > 0 for trial in trials)
    ]


def _data_wait(trials: Sequence[Trial]) -> list[Estimate]:
    waits_s = [trial.data_wait_s for trial in trials if trial.data_wait_s]
    return [estimate(results.RUN_DATA_WAIT_SECONDS, waits_s)] if len(waits_s) == len(trials) else []


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
    steps_s = [one.step_s for one in traced if one.step_s is not None]
    found = [estimate(results.RUN_TRACED_STEP_SECONDS, steps_s)] if len(steps_s) == len(traced) else []
    found += [
        estimate_share(results.RUN_TRACED_RATIO, [one.shares[part] for one in traced], part=part)
        for part in traced[0].shares
        if all(part in one.shares for one in traced)
    ]
    overlaps = [one.overlap_ratio for one in traced if one.overlap_ratio is not None]
    if len(overlaps) == len(traced):
        found.append(estimate_share(results.RUN_OVERLAP_RATIO, overlaps))
    found += _collective_overlaps(traced)
    communications_s = [one.communication_s for one in traced if one.communication_s is not None]
    if len(communications_s) == len(traced) and min(communications_s) > 0:
        found.append(estimate(results.RUN_COMMUNICATION_SECONDS, communications_s, account="traced"))
    return found


def _collective_overlaps(traced: Sequence[Traced]) -> Iterator[Estimate]:
    """By collective, where there are several: of one alone it is that of all communication."""
    names = [
        name
        for name in traced[0].collective_overlap_ratios
        if all(name in one.collective_overlap_ratios for one in traced)
    ]
    for name in names if len(names) > 1 else ():
        ratios = [one.collective_overlap_ratios[name] for one in traced]
        yield estimate_share(results.RUN_COLLECTIVE_OVERLAP_RATIO, ratios, collective=name)


def _attention_pairs(case: Case, trials: Sequence[Trial]) -> Iterator[Estimate]:
    """Of the ranks that attend least and most, beside what the layout gives them."""
    counted = [one.traced.attention_pairs for one in trials if one.traced is not None and one.traced.attention_pairs]
    expected = case.card().attention_pairs(case)
    for place, extreme in enumerate(("least", "most")):
        if len(counted) == len(trials):
            values = [pairs[place] for pairs in counted]
            yield estimate(results.RUN_ATTENTION_PAIRS, values, extreme=extreme, account="counted")
        if expected:
            law = (min(expected), max(expected))[place]
            yield estimate(results.RUN_ATTENTION_PAIRS, [law] * len(trials), extreme=extreme, account="expected")


def _traffic(case: Case, trials: Sequence[Trial]) -> list[Estimate]:
    """What the strategy's law says that a rank hands to each collective over each axis, beside what was counted."""
    accounts: dict[tuple[str, str, str], list[float]] = {
        (name, axis, "expected"): [float(total)] * len(trials) for (name, axis), total in _expected(case) if total
    }
    for name, axis in {place for trial in trials if trial.traced is not None for place in trial.traced.payload_bytes}:
        counted = [trial.traced.payload_bytes.get((name, axis), 0.0) if trial.traced else 0.0 for trial in trials]
        if all(counted):
            accounts[name, axis, "counted"] = counted
    return [
        estimate(results.RUN_PAYLOAD_BYTES, accounts[name, axis, account], collective=name, axis=axis, account=account)
        for name, axis, account in sorted(accounts, key=lambda place: (place[:2], place[2] == "counted"))
    ]


def _expected(case: Case) -> Iterator[tuple[tuple[str, str], int]]:
    transfers = case.card().transfers(case)
    for axis in {transfer.axis for transfer in transfers}:
        over_axis = [transfer for transfer in transfers if transfer.axis == axis]
        for name, total in recorded_bytes(over_axis, case.backend).items():
            yield (name, axis), total
