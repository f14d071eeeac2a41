"""The first step in which the ranks' gradient, clipping or weight update differs from the one rank's, and how.

Tensors are compared by their sketches, two numbers for each weight: its norm and its product with a fixed direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.convergence.evidence import Answer, ConvergenceEvidence, Culprit, NotExamined, RuledOut, name_ranks
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
class Gap:
    """A rank's difference from the one rank in one weight, as a share of the one rank's norm."""

    ratio: float
    name: str
    rank: int


def judge_updates(witnessed: ConvergenceEvidence, earlier: Sequence[Culprit]) -> list[Answer]:
    """Examine gradients, clipping and updates step by step, up to the first that differs.

    earlier: causes that are named already; they change everything after them.
    """
    clipping = _not_clipped(witnessed)
    for step in range(witnessed.steps):
        if (reason := _why_not(witnessed, earlier, step)) is not None:
            return [NotExamined(text=reason), *_clipping_until(witnessed, step, clipping)]
        culprit = _clipping(witnessed, step) or _gradients(witnessed, step)
        if culprit is not None:
            until = [] if culprit.cause == "clipping" else _clipping_until(witnessed, step, clipping)
            return [culprit, *until]
        # A wrong learning rate already explains a wrong update in its own step.
        if any(one.step == step for one in earlier):
            continue
        if (culprit := _update(witnessed, step)) is not None:
            return [culprit, *_clipping_until(witnessed, step, clipping)]
    return [
        RuledOut(
            text=f"gradients of all {witnessed.steps} steps: the same, so that forward, backward and averaging are not"
            " it"
        ),
        _updates_ruled_out(witnessed),
        *_clipping_until(witnessed, witnessed.steps, clipping),
    ]


def clipped_steps(witnessed: ConvergenceEvidence) -> int:
    """Count the steps in which the norm of the one rank's gradient was above the clip."""
    return sum(_is_clipped(witnessed, step) for step in range(witnessed.steps))


def gap(truth: Sketch, sketch: Sketch | None) -> float:
    """Return a tensor's difference from the true one, as a share of the true norm; infinite where it is not finite.

    It is the larger difference of the two numbers of their sketches; of a true norm of 0, the difference itself.
    """
    if sketch is None:
        return math.inf
    difference = max(abs(sketch[0] - truth[0]), abs(sketch[1] - truth[1]))
    return difference / truth[0] if truth[0] else difference


def _why_not(witnessed: ConvergenceEvidence, earlier: Sequence[Culprit], step: int) -> str | None:
    """Say why a step's gradients cannot be judged; None where they can."""
    # A wrong rate leaves the gradient of its own step alone; every other cause changes it.
    if any(one.step < step or (one.step == step and one.cause != "learning_rate") for one in earlier):
        return f"gradients and updates from step {step} on: what differs before them changes them too"
    widest = max(_tolerance(witnessed, step, "gradients"), _tolerance(witnessed, step, "updates"))
    if widest > TELLING_LIMIT:
        return (
            f"gradients and updates from step {step} on: at this learning rate rounding alone may part them by"
            f" {widest:.1e} of their norm"
        )
    return None


def _clipping(witnessed: ConvergenceEvidence, step: int) -> Culprit | None:
    """Find a rank that clipped by the norm of its own part of the gradient: the whole norm is then not the clip."""
    if not _is_clipped(witnessed, step):
        return None
    for rank, steps in enumerate(witnessed.ranks):
        seen = steps[step]
        used = _whole_norm(witnessed, seen, step)
        if used is None or abs(used - witnessed.clip) <= CLIP_LIMIT * witnessed.clip:
            continue
        # Below the clip both before and after clipping: a different gradient, not a mistake in clipping.
        if used > witnessed.clip or (seen.gradient_norm or 0.0) > witnessed.clip:
            return Culprit(
                cause="clipping",
                step=step,
                text=f"the gradient that rank {rank} used has norm {used:.4g} after clipping to {witnessed.clip:g}: it"
                " was not scaled by the norm of the whole gradient",
                next_move="add up the squares of the norms of all parts over the ranks that hold them (all_reduce)"
                " before the root is taken",
            )
    return None


def _gradients(witnessed: ConvergenceEvidence, step: int) -> Culprit | None:
    tolerance = _tolerance(witnessed, step, "gradients")
    widest = max(_gaps(witnessed, step, "gradients"), key=lambda found: found.ratio, default=None)
    if widest is None or widest.ratio <= tolerance:
        return _scaled(witnessed, step, tolerance)
    if (apart := _apart_from_first(witnessed, step, tolerance)) is not None:
        return Culprit(
            cause="averaging",
            step=step,
            text=f"{name_ranks(apart)} used another gradient than rank 0; that of {widest.name} on rank {widest.rank}"
            f" is {widest.ratio:.1e} of its norm off the one rank's",
            next_move="look for what leaves out the averaging in that step: no_sync around the last microbatch, a hook"
            " that returns early, a branch that only some ranks take",
        )
    return Culprit(
        cause="gradients",
        step=step,
        text=f"the gradient of {widest.name} on rank {widest.rank} is off by {widest.ratio:.1e} of its norm, with the"
        f" same sequences; {_weights_so_far(witnessed, step)}",
        next_move="look at how gradients are made and averaged: a sum for a mean, a microbatch or a rank left out, or"
        " an option that rounds or compresses them",
    )


def _scaled(witnessed: ConvergenceEvidence, step: int, tolerance: float) -> Culprit | None:
    """Find a gradient that is wrong by a factor: clipping hides the factor, but the norm before clipping shows it."""
    truth = witnessed.reference[step].gradient_norm
    for rank, steps in enumerate(witnessed.ranks):
        norm = steps[step].gradient_norm
        if truth and norm is not None and abs(norm - truth) > tolerance * truth:
            return Culprit(
                cause="gradients",
                step=step,
                text=f"before clipping the norm of the gradient is {norm:.4g} on rank {rank} and {truth:.4g} on one"
                " rank, though clipped gradients are the same",
                next_move="look for a factor: a sum taken for a mean over ranks or microbatches",
            )
    return None


def _update(witnessed: ConvergenceEvidence, step: int) -> Culprit | None:
    found = [one for one in _gaps(witnessed, step, "updates") if one.ratio > _tolerance(witnessed, step, "updates")]
    if not found:
        return None
    widest = max(found, key=lambda one: one.ratio)
    truth = witnessed.reference[step].updates[widest.name]
    own = witnessed.ranks[widest.rank][step].updates.get(widest.name)
    ranks, names = sorted({one.rank for one in found}), {one.name for one in found}
    if own is None:
        changed = "not to a finite value"
    elif abs(own[0] - truth[0]) > UPDATE_LIMIT * truth[0]:
        changed = f"by {own[0]:.3g} (norm)"
    else:
        changed = "as much, but in another direction"
    others = f", and {len(names) - 1} more weight(s) wrongly" if len(names) > 1 else ""
    rate = " and learning rate" if any(rank[step].learning_rates for rank in witnessed.ranks) else ""
    return Culprit(
        cause="update",
        step=step,
        text=f"{widest.name} changed {changed} on {name_ranks(ranks)}, where one rank changed it by"
        f" {truth[0]:.3g}{others}; with the same gradient{rate}",
        next_move="look for a shard that is not updated, or not sent to the others; then compare the optimizer's"
        " settings and states",
    )


def _updates_ruled_out(witnessed: ConvergenceEvidence) -> Answer:
    known, missing = _examined(witnessed)
    if not known:
        return NotExamined(text="updates: no rank told what its steps changed of a weight")
    some = f" of the {known} weights that ranks told of (of {missing} none did)" if missing else ""
    return RuledOut(text=f"updates{some}: each changed weights as the one rank's did, by norm and one direction")


def _weights_so_far(witnessed: ConvergenceEvidence, step: int) -> str:
    known, missing = _examined(witnessed)
    if not known:
        return "whether weights were the same was not examined, as no rank told of any"
    so_far = "began alike" if step == 0 else f"began alike, and were updated alike before step {step}"
    return f"{known} weights {so_far}" + (f", and {missing} were not examined" if missing else "")


def _examined(witnessed: ConvergenceEvidence) -> tuple[int, int]:
    """Count the weights whose update some rank recorded, and those that none did."""
    truth = witnessed.reference[0].updates
    told = {name for rank in witnessed.ranks for name in rank[0].updates if name in truth}
    return len(told), len(truth) - len(told)


def _not_clipped(witnessed: ConvergenceEvidence) -> NotExamined | None:
    """Say why clipping took no effect that could be examined; None where it did."""
    if not witnessed.clip:
        return NotExamined(text="clipping: clip is 0, which clips nothing")
    norms = [seen.gradient_norm for seen in witnessed.reference if seen.gradient_norm is not None]
    if not norms:
        return NotExamined(text="clipping: the one rank told no norm of its gradient")
    if not clipped_steps(witnessed):
        return NotExamined(
            text=f"clipping: the norm was {max(norms):.3g} at the most, and never above the clip of {witnessed.clip:g}"
        )
    return None


def _clipping_until(witnessed: ConvergenceEvidence, end: int, not_clipped: NotExamined | None) -> list[Answer]:
    """Answer what the steps before `end` say of clipping."""
    if not_clipped is not None:
        return [not_clipped]
    clipped = sum(_is_clipped(witnessed, step) for step in range(end))
    if not clipped:
        return [NotExamined(text=f"clipping: what is named differs in step {end}, before a step that was clipped")]
    return [RuledOut(text=f"clipping: by the norm of the whole gradient, in {clipped} steps that it changed")]


def _is_clipped(witnessed: ConvergenceEvidence, step: int) -> bool:
    norm = witnessed.reference[step].gradient_norm
    return bool(witnessed.clip) and norm is not None and norm > witnessed.clip


def _whole_norm(witnessed: ConvergenceEvidence, seen: StepEvidence, step: int) -> float | None:
    """Return the norm of all gradients that a rank used; None where one of them is unknown."""
    names = witnessed.reference[step].gradients
    sketches = [seen.gradients.get(name) for name in names]
    known = [sketch for sketch in sketches if sketch is not None]
    return math.hypot(*(norm for norm, _ in known)) if known and len(known) == len(sketches) else None


def _apart_from_first(witnessed: ConvergenceEvidence, step: int, tolerance: float) -> list[int] | None:
    """Return the ranks whose gradients differ from the first rank's; None where there are none."""
    first = witnessed.ranks[0][step].gradients
    apart = [
        rank
        for rank, steps in enumerate(witnessed.ranks)
        if any(gap(truth, steps[step].gradients.get(name)) > tolerance for name, truth in first.items())
    ]
    return apart or None


def _tolerance(witnessed: ConvergenceEvidence, step: int, kind: Kind) -> float:
    """Return the allowed difference of a step's gradients or updates, as a share of the norm."""
    # The largest effect of rounding up to the step: reading each batch backwards changes the order of additions alone.
    rounding = max(
        (
            _widest(_sketches(witnessed.reference[before], kind), _sketches(witnessed.backwards[before], kind))
            for before in range(step + 1)
        ),
        default=0.0,
    )
    return max(GRADIENT_LIMIT if kind == "gradients" else UPDATE_LIMIT, ROUNDING_FACTOR * rounding)


def _gaps(witnessed: ConvergenceEvidence, step: int, kind: Kind) -> Iterator[Gap]:
    """Yield the gap of each weight that a rank should have recorded: all gradients, and updates of weights it holds."""
    for rank, steps in enumerate(witnessed.ranks):
        own = _sketches(steps[step], kind)
        held = None if kind == "gradients" else steps[0].updates
        for name, truth in _sketches(witnessed.reference[step], kind).items():
            if held is None or name in held:
                yield Gap(ratio=gap(truth, own.get(name)), name=name, rank=rank)


def _widest(truths: Mapping[str, Sketch], sketches: Mapping[str, Sketch]) -> float:
    return max((gap(truth, sketches.get(name)) for name, truth in truths.items()), default=0.0)


def _sketches(seen: StepEvidence, kind: Kind) -> Mapping[str, Sketch]:
    return seen.gradients if kind == "gradients" else seen.updates
