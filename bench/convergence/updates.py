"""The first step in which the ranks' gradient, clipping or weight update differs from the one rank's, and how.

Tensors are compared by their sketches, two numbers for each weight: its norm and its product with a fixed direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.convergence.evidence import ConvergenceEvidence, Finding, NoCause, RootCause, name_ranks
from bench.rank.evidence import Sketch, StepEvidence

GRADIENT_LIMIT = 1e-4
UPDATE_LIMIT = 1e-3
"""Least allowed difference from the one rank's gradient and update, as a share of its norm. Another order of additions
makes less than 1e-5 and 2e-4 in the first steps; where reading each batch backwards makes more, `ROUNDING_FACTOR` times
that is allowed."""

ROUNDING_FACTOR = 30.0
"""As for losses, see `bench.convergence.check`. Measured: at a rate of 3e-2 ranks differed by at most 15 times as
much."""

TELLING_LIMIT = 0.3
"""A wider tolerance is useless: the difference that a mistake makes may be smaller."""

CLIP_LIMIT = 1e-3
"""Allowed difference of a clipped gradient's norm from the clip, as a share of the clip."""

Kind = Literal["gradients", "updates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A rank's difference from the one rank in one weight, as a share of the one rank's norm."""

    ratio: float
    weight: str
    rank: int


def compare_updates(evidence: ConvergenceEvidence, earlier: Sequence[RootCause]) -> list[Finding]:
    """Examine gradients, clipping and updates step by step, up to the first that differs.

    earlier: causes that are named already; they change everything after them.
    """
    for step in range(evidence.steps):
        if (reason := _why_not_comparable(evidence, earlier, step)) is not None:
            return [NoCause(verdict="not examined", text=reason), _clipping_before(evidence, step)]
        found = _clipping(evidence, step)
        if found is not None:
            return [found]
        found = _gradients(evidence, step)
        # A wrong learning rate already explains a wrong update in its own step.
        if found is None and not any(one.step == step for one in earlier):
            found = _update(evidence, step)
        if found is not None:
            return [found, _clipping_before(evidence, step)]
    text = f"gradients of all {evidence.steps} steps: the same, so that forward, backward and averaging are not it"
    known, missing = _examined_weights(evidence)
    some = f" of the {known} weights that ranks reported ({missing} were not reported)" if missing else ""
    return [
        NoCause(verdict="ruled out", text=text),
        NoCause(
            verdict="ruled out",
            text=f"updates{some}: each changed weights as the one rank's did, by norm and one direction",
        )
        if known
        else NoCause(verdict="not examined", text="updates: no rank reported by how much its steps changed a weight"),
        _clipping_before(evidence, evidence.steps),
    ]


def clipped_steps(evidence: ConvergenceEvidence, end: int | None = None) -> list[int]:
    """Return the steps, up to the end, in which the norm of the one rank's gradient was above the clip."""
    norms = [own.gradient_norm for own in evidence.reference[: evidence.steps if end is None else end]]
    return [step for step, norm in enumerate(norms) if evidence.clip and norm is not None and norm > evidence.clip]


def difference_ratio(truth: Sketch, sketch: Sketch | None) -> float:
    """Return a tensor's difference from the true one, as a share of the true norm; infinite where it is not finite.

    It is the larger difference of the two numbers of their sketches; of a true norm of 0, the difference itself.
    """
    if sketch is None:
        return math.inf
    difference = max(abs(sketch[0] - truth[0]), abs(sketch[1] - truth[1]))
    return difference / truth[0] if truth[0] else difference


def _why_not_comparable(evidence: ConvergenceEvidence, earlier: Sequence[RootCause], step: int) -> str | None:
    """Say why a step's gradients cannot be judged; None where they can."""
    # A wrong rate leaves the gradient of its own step alone; every other cause changes it.
    if any(one.step < step or (one.step == step and one.cause != "learning_rate") for one in earlier):
        return f"gradients and updates from step {step} on: what differs before them changes them too"
    widest = max(_tolerance(evidence, step, "gradients"), _tolerance(evidence, step, "updates"))
    if widest > TELLING_LIMIT:
        return (
            f"gradients and updates from step {step} on: at this learning rate rounding alone may part them by"
            f" {widest:.1e} of their norm"
        )
    return None


def _clipping(evidence: ConvergenceEvidence, step: int) -> RootCause | None:
    """Find a rank that clipped by the norm of its own shard of the gradient: the full norm is then not the clip."""
    if step not in clipped_steps(evidence):
        return None
    for rank, steps in enumerate(evidence.ranks):
        own = steps[step]
        sketches = [own.gradients.get(name) for name in evidence.reference[step].gradients]
        norms = [sketch[0] for sketch in sketches if sketch is not None]
        if not norms or len(norms) < len(sketches):
            continue  # The norm of the full gradient is not known.
        used = math.hypot(*norms)
        if abs(used - evidence.clip) <= CLIP_LIMIT * evidence.clip:
            continue
        # Below the clip both before and after clipping: a different gradient, not a mistake in clipping.
        if used > evidence.clip or (own.gradient_norm or 0.0) > evidence.clip:
            return RootCause(
                cause="clipping",
                step=step,
                text=f"the gradient that rank {rank} used has norm {used:.4g} after clipping to {evidence.clip:g}: it"
                " was not scaled by the norm of the whole gradient",
                next_move="add up the squares of the norms of all parts over the ranks that hold them (all_reduce)"
                " before the root is taken",
            )
    return None


def _clipping_before(evidence: ConvergenceEvidence, end: int) -> NoCause:
    """Say what the steps before `end`, in which no rank clipped wrongly, show of clipping."""
    if not evidence.clip:
        return NoCause(verdict="not examined", text="clipping: clip is 0, which clips nothing")
    norms = [own.gradient_norm for own in evidence.reference if own.gradient_norm is not None]
    if not norms:
        return NoCause(verdict="not examined", text="clipping: the only rank reported no gradient norm")
    if not clipped_steps(evidence):
        text = f"clipping: the norm was {max(norms):.3g} at the most, and never above the clip of {evidence.clip:g}"
        return NoCause(verdict="not examined", text=text)
    clipped = len(clipped_steps(evidence, end))
    if not clipped:
        text = f"clipping: what is named differs in step {end}, before a step that was clipped"
        return NoCause(verdict="not examined", text=text)
    return NoCause(
        verdict="ruled out", text=f"clipping: by the norm of the whole gradient, in {clipped} steps that it changed"
    )


def _gradients(evidence: ConvergenceEvidence, step: int) -> RootCause | None:
    tolerance = _tolerance(evidence, step, "gradients")
    widest = max(_differences(evidence, step, "gradients"), key=lambda found: found.ratio, default=None)
    if widest is None or widest.ratio <= tolerance:
        return _scaled_gradients(evidence, step, tolerance)
    # Ranks whose gradients differ from the first rank's.
    first = evidence.ranks[0][step].gradients
    apart = [
        rank
        for rank, steps in enumerate(evidence.ranks)
        if any(difference_ratio(truth, steps[step].gradients.get(name)) > tolerance for name, truth in first.items())
    ]
    if apart:
        return RootCause(
            cause="averaging",
            step=step,
            text=f"{name_ranks(apart)} used another gradient than rank 0; that of {widest.weight} on rank {widest.rank}"
            f" is {widest.ratio:.1e} of its norm off the one rank's",
            next_move="look for what leaves out the averaging in that step: no_sync around the last microbatch, a hook"
            " that returns early, a branch that only some ranks take",
        )
    known, missing = _examined_weights(evidence)
    if known:
        weights = f"{known} weights began alike" + (f", and were updated alike before step {step}" if step else "")
        weights += f", and {missing} were not examined" if missing else ""
    else:
        weights = "whether weights were equal was not examined, because no rank reported any"
    return RootCause(
        cause="gradients",
        step=step,
        text=f"the gradient of {widest.weight} on rank {widest.rank} is off by {widest.ratio:.1e} of its norm, with the"
        f" same sequences; {weights}",
        next_move="look at how gradients are made and averaged: a sum for a mean, a microbatch or a rank left out, or"
        " an option that rounds or compresses them",
    )


def _scaled_gradients(evidence: ConvergenceEvidence, step: int, tolerance: float) -> RootCause | None:
    """Find a gradient that is wrong by a factor: clipping hides the factor, but the norm before clipping shows it."""
    truth = evidence.reference[step].gradient_norm
    for rank, steps in enumerate(evidence.ranks):
        norm = steps[step].gradient_norm
        if truth and norm is not None and abs(norm - truth) > tolerance * truth:
            return RootCause(
                cause="gradients",
                step=step,
                text=f"before clipping the norm of the gradient is {norm:.4g} on rank {rank} and {truth:.4g} on one"
                " rank, though clipped gradients are the same",
                next_move="look for a factor: a sum taken for a mean over ranks or microbatches",
            )
    return None


def _update(evidence: ConvergenceEvidence, step: int) -> RootCause | None:
    tolerance = _tolerance(evidence, step, "updates")
    found = [one for one in _differences(evidence, step, "updates") if one.ratio > tolerance]
    if not found:
        return None
    widest = max(found, key=lambda one: one.ratio)
    truth = evidence.reference[step].updates[widest.weight]
    own = evidence.ranks[widest.rank][step].updates.get(widest.weight)
    ranks, weights = sorted({one.rank for one in found}), {one.weight for one in found}
    if own is None:
        changed = "not to a finite value"
    elif abs(own[0] - truth[0]) > UPDATE_LIMIT * truth[0]:
        changed = f"by {own[0]:.3g} (norm)"
    else:
        changed = "as much, but in another direction"
    others = f", and {len(weights) - 1} more weight(s) wrongly" if len(weights) > 1 else ""
    rate = " and learning rate" if any(rank[step].learning_rates for rank in evidence.ranks) else ""
    return RootCause(
        cause="update",
        step=step,
        text=f"{widest.weight} changed {changed} on {name_ranks(ranks)}, where one rank changed it by"
        f" {truth[0]:.3g}{others}; with the same gradient{rate}",
        next_move="look for a shard that is not updated, or not sent to the others; then compare the optimizer's"
        " settings and states",
    )


def _examined_weights(evidence: ConvergenceEvidence) -> tuple[int, int]:
    """Count the weights whose update some rank recorded, and those that none did."""
    truth = evidence.reference[0].updates
    recorded = {name for rank in evidence.ranks for name in rank[0].updates if name in truth}
    return len(recorded), len(truth) - len(recorded)


def _tolerance(evidence: ConvergenceEvidence, step: int, kind: Kind) -> float:
    """Return the allowed difference of a step's gradients or updates, as a share of the norm."""
    # The largest effect of rounding up to the step: reading each batch backwards changes the order of additions alone.
    rounding = max(
        (
            difference_ratio(truth, _sketches(backwards, kind).get(name))
            for one_rank, backwards in zip(evidence.reference[: step + 1], evidence.backwards[: step + 1], strict=True)
            for name, truth in _sketches(one_rank, kind).items()
        ),
        default=0.0,
    )
    return max(GRADIENT_LIMIT if kind == "gradients" else UPDATE_LIMIT, ROUNDING_FACTOR * rounding)


def _differences(evidence: ConvergenceEvidence, step: int, kind: Kind) -> Iterator[Difference]:
    """Yield that of each weight that a rank should have recorded: all gradients, and updates of weights it holds."""
    for rank, steps in enumerate(evidence.ranks):
        own = _sketches(steps[step], kind)
        for name, truth in _sketches(evidence.reference[step], kind).items():
            if kind == "gradients" or name in steps[0].updates:
                yield Difference(ratio=difference_ratio(truth, own.get(name)), weight=name, rank=rank)


def _sketches(evidence: StepEvidence, kind: Kind) -> Mapping[str, Sketch]:
    return evidence.gradients if kind == "gradients" else evidence.updates
