"""Finds the first step in which gradient, clipping or weight update differs from that of a single rank, and how.

Tensors are compared by their sketches, two numbers for each weight: its norm and its product with a fixed direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.analysis.convergence.evidence import CheckFinding, ConvergenceEvidence, NoCause, RootCause, name_ranks
from bench.errors import plural
from bench.rank.evidence import Sketch, StepEvidence

TELLING_LIMIT = 0.3
"""A tolerance that rounding has widened beyond this is useless: a mistake may cause a smaller difference."""

CLIP_LIMIT = 1e-3
"""Allowed difference of a clipped gradient's norm from the clip, as a share of the clip."""

SketchKind = Literal["gradients", "updates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchDifference:
    """A rank's difference from the single rank in one weight, as a share of the single rank's norm."""

    ratio: float
    weight: str
    rank: int


def compare_updates(evidence: ConvergenceEvidence, earlier: Sequence[RootCause]) -> list[CheckFinding]:
    """Examine gradients, clipping and updates step by step, up to the first difference.

    earlier: causes already known; they change everything after them.
    """
    for step in range(evidence.steps):
        if (reason := _why_not_comparable(evidence, earlier, step)) is not None:
            return [NoCause(verdict="not examined", text=reason), _clipping_before(evidence, step)]
        cause = _clipping(evidence, step)
        if cause is not None:
            return [cause]
        cause = _gradients(evidence, step)
        # A wrong learning rate already explains a wrong update in its own step.
        if cause is None and not any(earlier_cause.step == step for earlier_cause in earlier):
            cause = _update(evidence, step)
        if cause is not None:
            return [cause, _clipping_before(evidence, step)]
    text = f"gradients of all {evidence.steps} steps: equal, so forward, backward and averaging are not the cause"
    examined, missing = _examined_weights(evidence)
    scope = f" of the {examined} weights that ranks reported ({missing} were not reported)" if missing else ""
    return [
        NoCause(verdict="ruled out", text=text),
        NoCause(
            verdict="ruled out",
            text=f"updates{scope}: equal to the one rank's, by norm and by one projection of each",
        )
        if examined
        else NoCause(verdict="not examined", text="updates: no rank reported how much its steps changed a weight"),
        _clipping_before(evidence, evidence.steps),
    ]


def clipped_steps(evidence: ConvergenceEvidence, end: int | None = None) -> list[int]:
    """Return the steps, up to the end, in which the norm of the single rank's gradient was above the clip."""
    norms = [
        step_evidence.gradient_norm for step_evidence in evidence.reference[: evidence.steps if end is None else end]
    ]
    return [step for step, norm in enumerate(norms) if evidence.clip and norm is not None and norm > evidence.clip]


def difference_ratio(truth: Sketch, sketch: Sketch | None) -> float:
    """Return a tensor's difference from the true tensor as a share of the true norm; infinite if it is not finite.

    It is the larger difference of the sketches' two numbers; for a true norm of 0, the difference itself.
    """
    if sketch is None:
        return math.inf
    difference = max(abs(sketch[0] - truth[0]), abs(sketch[1] - truth[1]))
    return difference / truth[0] if truth[0] else difference


def _why_not_comparable(evidence: ConvergenceEvidence, earlier: Sequence[RootCause], step: int) -> str | None:
    """Return why a step's gradients cannot be judged; None if they can."""
    # A wrong rate does not affect the gradient of its own step; every other cause does.
    if any(cause.step < step or (cause.step == step and cause.cause != "learning_rate") for cause in earlier):
        return f"gradients and updates from step {step} on: an earlier difference affects them"
    widest = max(_tolerance(evidence, step, "gradients"), _tolerance(evidence, step, "updates"))
    if widest > max(TELLING_LIMIT, evidence.limits.update):
        return (
            f"gradients and updates from step {step} on: at this learning rate, rounding alone may change them by"
            f" {widest:.1e} of their norm"
        )
    return None


def _clipping(evidence: ConvergenceEvidence, step: int) -> RootCause | None:
    """Find a rank that clipped by the norm of its own shard of the gradient: the full norm is then not the clip."""
    if step not in clipped_steps(evidence):
        return None
    for rank, steps in enumerate(evidence.ranks):
        step_evidence = steps[step]
        sketches = [step_evidence.gradients.get(name) for name in evidence.reference[step].gradients]
        norms = [sketch[0] for sketch in sketches if sketch is not None]
        if not norms or len(norms) < len(sketches):
            continue  # The norm of the full gradient is not known.
        used = math.hypot(*norms)
        if abs(used - evidence.clip) <= CLIP_LIMIT * evidence.clip:
            continue
        # Below the clip both before and after clipping: a different gradient, not a mistake in clipping.
        if used > evidence.clip or (step_evidence.gradient_norm or 0.0) > evidence.clip:
            return RootCause(
                cause="clipping",
                step=step,
                text=f"the gradient that rank {rank} used has norm {used:.4g} after clipping to {evidence.clip:g}: the"
                " rank did not scale it by the norm of the whole gradient",
                next_move="sum the squared norms of all parts over the ranks that hold them (all_reduce) before taking"
                " the root",
            )
    return None


def _clipping_before(evidence: ConvergenceEvidence, end: int) -> NoCause:
    """Return the finding on clipping from the steps before `end`, in which no rank clipped wrongly."""
    if not evidence.clip:
        return NoCause(verdict="not examined", text="clipping: clip is 0, so nothing is clipped")
    norms = [
        step_evidence.gradient_norm for step_evidence in evidence.reference if step_evidence.gradient_norm is not None
    ]
    if not norms:
        return NoCause(verdict="not examined", text="clipping: the only rank reported no gradient norm")
    if not clipped_steps(evidence):
        text = f"clipping: the norm was at most {max(norms):.3g}, never above the clip of {evidence.clip:g}"
        return NoCause(verdict="not examined", text=text)
    clipped = len(clipped_steps(evidence, end))
    if not clipped:
        text = f"clipping: the first difference is in step {end}, before any clipped step"
        return NoCause(verdict="not examined", text=text)
    return NoCause(
        verdict="ruled out",
        text=f"clipping: the ranks clipped by the norm of the whole gradient in {clipped} step{'s' * (clipped > 1)}",
    )


def _gradients(evidence: ConvergenceEvidence, step: int) -> RootCause | None:
    tolerance = _tolerance(evidence, step, "gradients")
    widest = max(_differences(evidence, step, "gradients"), key=lambda difference: difference.ratio, default=None)
    if widest is None or widest.ratio <= tolerance:
        return _scaled_gradients(evidence, step, tolerance)
    # Ranks whose gradients differ from the first rank's.
    first = evidence.ranks[0][step].gradients
    unequal = [
        rank
        for rank, steps in enumerate(evidence.ranks)
        if any(difference_ratio(truth, steps[step].gradients.get(name)) > tolerance for name, truth in first.items())
    ]
    if unequal:
        return RootCause(
            cause="averaging",
            step=step,
            text=f"{name_ranks(unequal)} used a different gradient from rank 0; for {widest.weight}, rank {widest.rank}"
            f" differs from the one rank by {widest.ratio:.1e} of the norm",
            next_move="look for what skips the averaging in that step: no_sync around the last microbatch, a hook that"
            " returns early, a branch that only some ranks take",
        )
    examined, missing = _examined_weights(evidence)
    if examined:
        weights = f"{examined} weights began equal" + (f" and were updated equally before step {step}" if step else "")
        weights += f", and {missing} were not examined" if missing else ""
    else:
        weights = "equality of weights was not examined, because no rank reported any"
    return RootCause(
        cause="gradients",
        step=step,
        text=f"the gradient of {widest.weight} on rank {widest.rank} is off by {widest.ratio:.1e} of its norm for the"
        f" same sequences; {weights}",
        next_move="check how gradients are computed and averaged: a sum instead of a mean, a microbatch or a rank left"
        " out, or an option that rounds or compresses them",
    )


def _scaled_gradients(evidence: ConvergenceEvidence, step: int, tolerance: float) -> RootCause | None:
    """Find a gradient that is off by a factor: clipping hides the factor, but the norm before clipping shows it."""
    truth = evidence.reference[step].gradient_norm
    for rank, steps in enumerate(evidence.ranks):
        norm = steps[step].gradient_norm
        if truth and norm is not None and abs(norm - truth) > tolerance * truth:
            return RootCause(
                cause="gradients",
                step=step,
                text=f"before clipping, the norm of the gradient is {norm:.4g} on rank {rank} but {truth:.4g} on one"
                " rank, although the clipped gradients are equal",
                next_move="look for a factor: a sum instead of a mean over ranks or microbatches",
            )
    return None


def _update(evidence: ConvergenceEvidence, step: int) -> RootCause | None:
    tolerance = _tolerance(evidence, step, "updates")
    differences = [difference for difference in _differences(evidence, step, "updates") if difference.ratio > tolerance]
    if not differences:
        return None
    widest = max(differences, key=lambda difference: difference.ratio)
    truth = evidence.reference[step].updates[widest.weight]
    sketch = evidence.ranks[widest.rank][step].updates.get(widest.weight)
    ranks = sorted({difference.rank for difference in differences})
    weights = {difference.weight for difference in differences}
    if sketch is None:
        changed = "not to a finite value"
    elif abs(sketch[0] - truth[0]) > evidence.limits.update * truth[0]:
        changed = f"by {sketch[0]:.3g} (norm)"
    else:
        changed = "by as much, but in another direction,"
    more_weights = f"; {plural(len(weights) - 1, 'more weight')} with a difference" if len(weights) > 1 else ""
    has_rates = any(rank[step].learning_rates for rank in evidence.ranks)
    same = "gradient and learning rate were the same" if has_rates else "the gradient was the same"
    return RootCause(
        cause="update",
        step=step,
        text=f"{widest.weight} changed {changed} on {name_ranks(ranks)}, but one rank changed it by"
        f" {truth[0]:.3g}{more_weights}; {same}",
        next_move="look for a shard that is not updated or not sent to the others; then compare the optimizer's"
        " settings and states",
    )


def _examined_weights(evidence: ConvergenceEvidence) -> tuple[int, int]:
    """Count the weights whose update some rank recorded, and the weights that no rank recorded."""
    truth = evidence.reference[0].updates
    recorded = {name for rank in evidence.ranks for name in rank[0].updates if name in truth}
    return len(recorded), len(truth) - len(recorded)


def _tolerance(evidence: ConvergenceEvidence, step: int, kind: SketchKind) -> float:
    """Return the allowed difference of a step's gradients or updates, as a share of the norm."""
    # The largest effect of rounding so far: reading each batch backwards changes only the order of additions.
    rounding = max(
        (
            difference_ratio(truth, _sketches(backwards, kind).get(name))
            for one_rank, backwards in zip(evidence.reference[: step + 1], evidence.backwards[: step + 1], strict=True)
            for name, truth in _sketches(one_rank, kind).items()
        ),
        default=0.0,
    )
    limits = evidence.limits
    return max(limits.gradient if kind == "gradients" else limits.update, limits.rounding_factor * rounding)


def _differences(evidence: ConvergenceEvidence, step: int, kind: SketchKind) -> Iterator[SketchDifference]:
    """Yield the difference of each weight that a rank should record: all gradients, and updates of weights it holds."""
    for rank, steps in enumerate(evidence.ranks):
        sketches = _sketches(steps[step], kind)
        for name, truth in _sketches(evidence.reference[step], kind).items():
            if kind == "gradients" or name in steps[0].updates:
                yield SketchDifference(ratio=difference_ratio(truth, sketches.get(name)), weight=name, rank=rank)


def _sketches(evidence: StepEvidence, kind: SketchKind) -> Mapping[str, Sketch]:
    return evidence.gradients if kind == "gradients" else evidence.updates
