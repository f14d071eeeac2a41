"""Peak of allocated memory in one step of FSDP2 on CUDA: gathered units, the buffers they travel in, and gradients.

In forward a unit's weights are gathered into a buffer, copied out of it, and freed after the unit; the buffer lives
until the next unit is copied out, so that both can overlap. In backward a unit is copied out when its turn comes, and
the next one is gathered into its buffer meanwhile (with `prefetch`, that many units, also in forward). Gradients are
laid end to end in a buffer, which lives until the next unit's gradients are ready.
Source: torch 2.12, _fsdp_param_group.py, _fsdp_collectives.py and _fsdp_state.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from workloads.cost_models.cuda.blocks import Around
from workloads.cost_models.cuda.model import CudaModel
from workloads.cost_models.cuda.peak import predict, tables_bytes, tokens_bytes
from workloads.cost_models.cuda.tape import Stretch, Tape
from workloads.cost_models.memory import FULL_BYTES
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.terms import Dimensions, States, elements, outer_weights
from workloads.fsdp.cost_model import Sharding, padded_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedUnit:
    """Weights that are gathered together, in bytes.

    gathered: all weights, with their padding. travels: the buffer that they travel in; a rank alone has none.
    part: this rank's part, in the precision of gathering. cast: what a rank alone, which casts and copies weight by
    weight, holds in addition at most. kept: what a rank keeps between forward and backward.
    gradients: all, as backward leaves them. summed: all, as they add up if they are reduced only once a step.
    buffer: of all gradients. last: the gradient of the last weight, which a variable in torch keeps longer, except on a
    rank alone. reduced, part_gradient: this rank's gradients as they arrive, and as they stay.
    """

    gathered: int
    travels: int
    part: int
    cast: int
    kept: int
    gradients: int
    summed: int
    buffer: int
    last: int
    reduced: int
    part_gradient: int


def unit_of(
    weights: Sequence[Dimensions],
    sharding: Sharding,
    *,
    last: Dimensions,
    gradient_bytes: int,
    kept_ranks: int | None = None,
) -> ShardedUnit:
    """Return the bytes of a unit.

    last: the last of its weights in the model. gradient_bytes: of an element of a gradient as backward leaves it.
    """
    part = padded_elements(weights, sharding.ranks)
    gathered = sharding.gathered_bytes * sharding.ranks * part
    is_alone, is_cast = sharding.ranks == 1, sharding.gathered_bytes != FULL_BYTES
    return ShardedUnit(
        gathered=gathered,
        travels=0 if is_alone else gathered,
        part=sharding.gathered_bytes * part if is_cast and not is_alone else 0,
        cast=_cast_bytes(weights, sharding.gathered_bytes) if is_cast and is_alone else 0,
        kept=0 if kept_ranks is None else gathered // kept_ranks,
        gradients=gradient_bytes * elements(weights),
        summed=max(gradient_bytes, sharding.reduced_bytes) * elements(weights),
        buffer=sharding.reduced_bytes * sharding.ranks * part,
        last=0 if is_alone else gradient_bytes * elements([last]),
        reduced=sharding.reduced_bytes * part,
        part_gradient=FULL_BYTES * part,
    )


def _cast_bytes(weights: Sequence[Dimensions], element_bytes: int) -> int:
    """Return by how much the copies so far, with the cast of the last one, exceed all copies at most."""
    sizes = [element_bytes * elements([weight]) for weight in weights]
    most = max(sum_bytes + size for sum_bytes, size in zip(accumulate(sizes), sizes, strict=True))
    return max(0, most - sum(sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedPass:
    """Forward and backward of one microbatch.

    units: of each block, in the order of forward: the block, or its attention and its MLP. outer: all other weights.
    ahead: units that are gathered ahead, in forward and in backward.
    is_resharded: units are freed after forward. is_first: no gradients live. is_gathered: all units are still gathered,
    so none is gathered again. stays_gathered: no unit is freed after backward. is_reduced: gradients are reduced.
    has_sum: whole gradients of earlier microbatches live.
    """

    model: CudaModel
    units: Sequence[ShardedUnit]
    outer: ShardedUnit
    ahead: tuple[int, int]
    is_resharded: bool
    is_first: bool
    is_gathered: bool
    stays_gathered: bool
    is_reduced: bool
    has_sum: bool

    def stretch(self) -> Stretch:
        """Return the pass."""
        model, layers = self.model, self.model.shape.layers
        tape = Tape()
        if not self.is_gathered:
            tape.make("buffer", self.outer.travels).brief(self.outer.part)
            tape.change(self.outer.gathered, "parameters").brief(self.outer.cast)
        tape.play(model.embedding())
        last = self._forward(tape, layers)
        tape.play(model.head(Tape().change(-last).stretch()))
        # All units gathered ahead in backward start with the head's.
        tape.change(-model.cached_bytes(layers) - model.head_copy_bytes)
        self._backward(tape, layers)
        return tape.stretch()

    def _forward(self, tape: Tape, layers: int) -> int:
        """Play forward of all blocks; return the bytes of the buffer that still lives."""
        model, count = self.model, len(self.units) * layers
        if self.is_gathered:
            tape.play(model.forwards(layers))
            return 0
        ahead = self.ahead[0]
        before, started = self.outer.travels, 0  # The buffer that lives, and units whose gathering has begun.

        def begin(place: int) -> Stretch:
            nonlocal before, started
            part = Tape()
            while started <= place:
                part.change(self._unit(started).travels).brief(self._unit(started).part)
                started += 1
            part.change(self._unit(place).gathered, "parameters").brief(self._unit(place).cast).change(-before)
            before = self._unit(place).travels
            while started <= min(place + ahead, count - 1):
                part.change(self._unit(started).travels).brief(self._unit(started).part)
                started += 1
            return part.stretch()

        def end(place: int) -> Stretch:
            unit = self._unit(place)
            return Tape().change(unit.kept - unit.gathered, "parameters").stretch() if self.is_resharded else Stretch()

        for block in range(layers):
            if len(self.units) == 1:
                tape.play(begin(block)).play(model.forward(block)).play(end(block))
                continue
            first, second = 2 * block, 2 * block + 1
            around = Around(
                before_attention=begin(first),
                after_attention=end(first),
                before_mlp=begin(second),
                after_mlp=end(second),
            )
            tape.play(model.forward(block, around))
        tape.free("buffer")
        tape.change(self.outer.travels)  # The first unit freed it, without knowing its name.
        return before

    def _unit(self, place: int) -> ShardedUnit:
        return self.units[place % len(self.units)]

    def _backward(self, tape: Tape, layers: int) -> None:
        model, count = self.model, len(self.units) * layers
        is_gathering = self.is_resharded
        started, last_buffer = count, 0  # Units from this one on are gathered, or being gathered.

        def gather(down_to: int) -> Tape:
            nonlocal started
            part = Tape()
            while is_gathering and started > max(down_to, 0):
                started -= 1
                part.change(self._unit(started).travels, "temporary").brief(self._unit(started).part)
            return part

        def begin(place: int) -> Stretch:
            part, unit = gather(place), self._unit(place)
            if is_gathering:
                part.change(unit.gathered - unit.kept, "parameters").brief(unit.cast)
                part.change(-unit.travels, "temporary")
            return part.play(gather(place - self.ahead[1]).stretch()).stretch()

        def end(place: int) -> Stretch:
            nonlocal last_buffer
            part = Tape()
            last_buffer = self._end_unit(part, self._unit(place), last_buffer)
            return part.stretch()

        # The outer unit also gathers one unit ahead, as soon as the model's result has its gradient.
        tape.play(model.head_backward("new", gather(count - 1).stretch()))
        for block in reversed(range(layers)):
            if len(self.units) == 1:
                tape.play(begin(block)).play(model.backward(block, "new")).play(end(block))
                continue
            first, second = 2 * block, 2 * block + 1
            before_mlp, after_mlp, before_attention = begin(second), end(second), begin(first)
            around = Around(
                before_attention=before_attention,
                after_attention=end(first),
                before_mlp=before_mlp,
                after_mlp=after_mlp,
            )
            tape.play(model.backward(block, "new", around))
        # The gradient of a tied head waits in autograd for that of the embedding, which is added in place.
        tape.play(model.embedding_backward("added" if model.shape.is_tied else "new"))
        last_buffer = self._end_unit(tape, self.outer, last_buffer)
        tape.change(-last_buffer, "temporary")

    def _end_unit(self, tape: Tape, unit: ShardedUnit, last_buffer: int) -> int:
        """End a unit's backward: free its weights, reduce its gradients; return the bytes of the buffer that lives."""
        if self.has_sum:
            tape.change(-unit.gradients, "gradients")
        if not self.stays_gathered:
            tape.change(-unit.gathered, "parameters")
        if not self.is_reduced:
            if not self.has_sum:
                tape.change(unit.summed, "gradients").change(-unit.gradients, "gradients")
            return last_buffer
        whole = unit.summed if self.has_sum else unit.gradients
        if unit is not self.outer:  # torch waits for the very last reduction only at the end.
            tape.change(-last_buffer, "temporary")
        tape.change(unit.buffer, "temporary").change(unit.last - whole, "gradients").change(unit.reduced, "temporary")
        if unit.reduced != unit.part_gradient:
            tape.change(unit.part_gradient, "temporary").change(-unit.reduced, "temporary")
        tape.change(-unit.part_gradient, "temporary").change(-unit.last, "gradients")
        if self.is_first:
            tape.change(unit.part_gradient, "gradients")
        return unit.buffer + (last_buffer if unit is self.outer else 0)


def sharded_cuda_peak(
    model: CudaModel,
    *,
    sharding: Sharding,
    states: States,
    prefetch: int = 0,
    kept_ranks: int | None = None,
    held_bytes: int = 0,
    other_bytes: int = 0,
) -> Prediction:
    """Predict the peak of a rank of FSDP2 on CUDA.

    prefetch: units gathered ahead; 0 leaves it to FSDP2. kept_ranks: ranks that share a weight between forward and
    backward, if these are fewer. held_bytes, other_bytes: other tensors that live through the step, and between steps.
    """
    count, is_last_only = sharding.microbatches, sharding.is_reduced_last
    units = [
        unit_of(weights, sharding, last=weights[-1], gradient_bytes=model.gradient_bytes, kept_ranks=kept_ranks)
        for weights in sharding.inner_units()
    ]
    head = outer_weights(sharding.shape)[-1]
    outer = unit_of(sharding.outer_unit(), sharding, last=head, gradient_bytes=model.gradient_bytes)
    step, between = Stretch(), list[Stretch]()
    for index in range(count):
        is_last = index == count - 1
        stays = not sharding.is_resharded and not is_last
        microbatch_pass = ShardedPass(
            model=model,
            units=units,
            outer=outer,
            ahead=(prefetch, prefetch or 1),
            is_resharded=sharding.is_resharded,
            is_first=index == 0 or is_last_only,
            is_gathered=not sharding.is_resharded and index > 0,
            stays_gathered=stays,
            is_reduced=is_last or not is_last_only,
            has_sum=is_last_only and index > 0,
        )
        if 1 < index < count - 1:
            step = step.then(between[0])  # They are alike.
            continue
        played = microbatch_pass.stretch()
        if index == 1:
            between.append(played)
        step = step.then(played)
    return predict(
        step,
        states=states,
        buffers_bytes=tables_bytes(model),
        held_bytes=tokens_bytes(model, count) + held_bytes,
        other_bytes=other_bytes,
    )
