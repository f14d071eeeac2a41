"""Cost model of torch's `fully_shard` (FSDP2): memory and traffic of a rank, to the byte.

Each weight is divided along its first dimension into as many equal parts as there are ranks; the last parts are padded,
and ranks hold and send padding like weights. Traffic goes by units: weights that are gathered together.
Between forward and backward, weights may be divided among fewer ranks: the second gather then collects the same bytes
among these ranks only.
The peak of a step, on gloo, includes what computation holds (`workloads.cost_models.peak_memory`), gathered weights,
the buffers in which weights and gradients travel, and gradients that are whole until they are reduced.
Not covered in the peak: a backend that moves weights while the rank computes; offloading; gradients that accumulate in
a different precision from that of backward; one rank alone.
Source: torch 2.13, _fsdp_param.py, _fsdp_param_group.py and _fsdp_collectives.py; Zhao et al. 2023, PyTorch FSDP.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from workloads.cost_models.memory import FULL_BYTES, Microbatch
from workloads.cost_models.peak_memory import BlockMoments, Moment, Prediction, StepMoments
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import (
    Dimensions,
    States,
    Transfer,
    attention_weights,
    block_weights,
    elements,
    mlp_weights,
    outer_weights,
)

ELEMENT_BYTES = 4
"""Bytes of an element of weights, gradients and moments, which are held in fp32."""
NUMBER_BYTES = 4
"""Bytes of a single number in fp32: a count of steps, a norm, a flag."""

Wrap = Literal["block", "layer"]
"""The unit of gathering: a block, or each half of one; with halves, the block's norms belong to the outer unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How a model is divided, and how a step uses it.

    ranks: number of ranks that share a weight. replicas: groups of such ranks, which average their gradients.
    is_resharded: weights are divided again after forward, and gathered a second time in backward.
    resharded_ranks: ranks that divide weights between forward and backward, if not all do.
    microbatches: forward and backward passes of a step.
    is_reduced_last: only the last microbatch's backward reduces gradients, which are whole on each rank until then;
        otherwise each does.
    gathered_bytes: bytes of a weight's element in transfer, and while it computes.
    reduced_bytes: bytes of a gradient's element in transfer.
    numbers: single numbers that the ranks add up after backward: the norm that clipping needs, fp16's overflow.
    is_copied_away: gradients are copied to the host, without their padding.
    is_overlapped: the backend moves weights and gradients while the rank computes.
    """

    shape: Shape
    ranks: int
    replicas: int = 1
    wrap: Wrap = "block"
    is_resharded: bool = True
    resharded_ranks: int | None = None
    microbatches: int = 1
    is_reduced_last: bool = False
    gathered_bytes: int = ELEMENT_BYTES
    reduced_bytes: int = ELEMENT_BYTES
    numbers: int = 0
    is_copied_away: bool = False
    is_overlapped: bool = False

    def inner_units(self) -> tuple[tuple[Dimensions, ...], ...]:
        """Return the weights of each unit within one block."""
        if self.wrap == "layer":
            return attention_weights(self.shape), mlp_weights(self.shape)
        return (block_weights(self.shape),)

    def outer_unit(self) -> tuple[Dimensions, ...]:
        """Return the weights that are in no other unit."""
        block_norms = ((self.shape.width,),) * (2 * self.shape.layers)
        return *outer_weights(self.shape), *(block_norms if self.wrap == "layer" else ())

    def weights(self) -> tuple[Dimensions, ...]:
        """Return all weights, in no particular order."""
        inner = tuple(weight for unit in self.inner_units() for weight in unit)
        return *self.outer_unit(), *inner * self.shape.layers


def padded_elements(weights: Iterable[Dimensions], ranks: int) -> int:
    """Return the elements of each rank's part, padding included. weights: also as a Counter."""
    return sum(
        count * _padded_rows(weight, ranks) * math.prod(weight[1:]) for weight, count in Counter(weights).items()
    )


def own_elements(weights: Iterable[Dimensions], *, rank: int, ranks: int) -> int:
    """Return the elements of one rank's part that it updates, without padding. weights: also as a Counter."""
    own = 0
    for weight, count in Counter(weights).items():
        # 5 rows on 4 ranks: parts of 2 rows, of which the ranks own 2, 2, 1 and 0.
        part = _padded_rows(weight, ranks)
        own_rows = min(part, max(0, weight[0] - rank * part))
        own += count * own_rows * math.prod(weight[1:])
    return own


def sharded_states(sharding: Sharding, rank: int) -> States:
    """Return a rank's states between steps; consecutive ranks share the weights, and replicas follow each other."""
    ranks, weights = sharding.ranks, _counted_weights(sharding)
    padded_bytes = ELEMENT_BYTES * padded_elements(weights, ranks)
    own_bytes = ELEMENT_BYTES * own_elements(weights, rank=rank % ranks, ranks=ranks)
    return States(
        parameters_bytes=padded_bytes,
        gradients_bytes=own_bytes if sharding.is_copied_away else padded_bytes,
        optimizer_bytes=2 * own_bytes + NUMBER_BYTES * weights.total(),
    )


@lru_cache(maxsize=64)
def _counted_weights(sharding: Sharding) -> Counter[Dimensions]:
    """Return how many weights have each size, so that a plan of thousands of ranks adds up only a few."""
    return Counter(sharding.weights())


def largest_gathered_bytes(sharding: Sharding) -> int:
    """Return the bytes of whole weights that a rank holds at once, at least: the outer unit and the largest other."""
    if sharding.ranks == 1:
        return 0
    outer, *inner = (
        sharding.gathered_bytes * sharding.ranks * padded_elements(unit, sharding.ranks)
        for unit in (sharding.outer_unit(), *sharding.inner_units())
    )
    return outer + (max(inner) if sharding.is_resharded else sharding.shape.layers * sum(inner))


def unreduced_bytes(sharding: Sharding) -> int:
    """Return the bytes of whole gradients that each rank holds until the last microbatch reduces them."""
    is_kept = sharding.is_reduced_last and sharding.microbatches > 1
    return ELEMENT_BYTES * elements(sharding.weights()) if is_kept else 0


def sharded_transfers(sharding: Sharding) -> tuple[Transfer, ...]:
    """Return the collectives of one step: units are gathered, gathered again, and their gradients reduced."""
    if sharding.ranks == 1:
        return ()
    transfers = [*_gathers(sharding), *_reductions(sharding)]
    if sharding.numbers:
        size_bytes = sharding.numbers * NUMBER_BYTES
        transfers.append(
            Transfer(collective="all_reduce", axis="shard", payload_bytes=size_bytes, calls=sharding.numbers)
        )
    return tuple(transfers)


def _gathers(sharding: Sharding) -> Iterator[Transfer]:
    # Weights that stay gathered do so through all microbatches.
    passes = sharding.microbatches if sharding.is_resharded else 1
    layers = sharding.shape.layers
    yield _gather(sharding, sharding.outer_unit(), passes, "forward")
    for unit in sharding.inner_units():
        yield _gather(sharding, unit, passes * layers, "forward")
    if sharding.is_resharded:
        for unit in reversed(sharding.inner_units()):
            yield _gather(sharding, unit, passes * layers, "backward")


def _gather(
    sharding: Sharding, unit: Iterable[Dimensions], calls: int, phase: Literal["forward", "backward"]
) -> Transfer:
    return Transfer(
        collective="all_gather",
        axis="shard",
        ranks=sharding.resharded_ranks if phase == "backward" else None,
        payload_bytes=calls * sharding.gathered_bytes * sharding.ranks * padded_elements(unit, sharding.ranks),
        calls=calls,
        behind=phase if sharding.is_overlapped else None,
    )


def _reductions(sharding: Sharding) -> Iterator[Transfer]:
    units = [(unit, sharding.shape.layers) for unit in reversed(sharding.inner_units())]
    behind: Literal["backward"] | None = "backward" if sharding.is_overlapped else None
    passes = 1 if sharding.is_reduced_last else sharding.microbatches
    for unit, count in (*units, (sharding.outer_unit(), 1)):
        calls = passes * count
        part_bytes = calls * sharding.reduced_bytes * padded_elements(unit, sharding.ranks)
        yield Transfer(
            collective="reduce_scatter",
            axis="shard",
            payload_bytes=sharding.ranks * part_bytes,
            calls=calls,
            behind=behind,
        )
        if sharding.replicas > 1:
            yield Transfer(
                collective="all_reduce", axis="replicate", payload_bytes=part_bytes, calls=calls, behind=behind
            )


def _padded_rows(weight: Dimensions, ranks: int) -> int:
    return -(-weight[0] // ranks)


def sharded_step_peak(
    microbatch: Microbatch, *, sharding: Sharding, states: States, kept_ranks: int | None = None
) -> Prediction:
    """Predict the live bytes of a rank at the peak of a step, by the categories of MemTracker.

    Gathered weights count as activations until a module first uses them in a step, and then as parameters. Buffers that
    weights travel in are activations in forward and temporary in backward; those of gradients are temporary.
    kept_ranks: ranks that share a weight between forward and backward, if these are fewer than between steps.
    """
    step = StepMoments(microbatch=microbatch, held_bytes=sharding.microbatches * microbatch.tokens_bytes)
    backward = [_unit(weights, sharding) for weights in reversed(sharding.inner_units())]
    model = _Model(
        sharding=sharding,
        kept_ranks=kept_ranks,
        step=step,
        blocks=BlockMoments(microbatch=microbatch, held_bytes=step.held_bytes),
        units=backward * sharding.shape.layers,
        outer=_unit(sharding.outer_unit(), sharding),
    )
    peak = max(model.moments(), key=lambda live: live.bytes)
    return Prediction(
        parameters_bytes=states.parameters_bytes + peak.gathered_bytes,
        buffers_bytes=FULL_BYTES * sharding.shape.sequence * sharding.shape.head_width,
        gradients_bytes=peak.gradients_bytes,
        optimizer_bytes=states.optimizer_bytes,
        activations_bytes=peak.activations_bytes,
        temporary_bytes=peak.temporary_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """Weights that are gathered together, in bytes.

    part_bytes: one rank's part of their gradients.
    gathered_bytes: the whole weights, with their padding.
    gradients_bytes: the whole gradients.
    last_bytes: the gradient of the last weight, which the reduction frees late.
    reduced_bytes: the gradients laid end to end for the reduction.
    """

    part_bytes: int
    gathered_bytes: int
    gradients_bytes: int
    last_bytes: int
    reduced_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """Live bytes at one moment, in addition to the permanent states."""

    gathered_bytes: int
    gradients_bytes: int
    activations_bytes: int
    temporary_bytes: int

    @property
    def bytes(self) -> int:
        return self.gathered_bytes + self.gradients_bytes + self.activations_bytes + self.temporary_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """Forward and backward of one microbatch: the first starts without gradients, the last keeps no weights
    gathered."""

    is_first: bool
    is_last: bool
    is_reduced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnitState:
    """State of the units at one moment. Units are in the order of backward: finished, resharded, gathered, others.

    finished: number of units whose backward is finished.
    resharded: number of units after these whose weights are resharded already.
    gathered: number of units after these that are gathered, if units are resharded after forward.
    incoming: the unit that is being gathered, if any.
    ready_bytes: existing whole gradients of the outer unit and of the unit in backward.
    in_flight_bytes: the buffers of the current reduction.
    """

    finished: int = 0
    resharded: int = 0
    gathered: int = 0
    incoming: int | None = None
    ready_bytes: int = 0
    in_flight_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """The moments of a step. units: of all blocks, in the order of backward; outer: the outer unit."""

    sharding: Sharding
    kept_ranks: int | None
    step: StepMoments
    blocks: BlockMoments
    units: Sequence[_Unit]
    outer: _Unit

    def moments(self) -> Iterator[_Live]:
        """Yield the moments that can be the peak."""
        layers, count = self.sharding.shape.layers, self.sharding.microbatches
        for one_pass in {self._pass(index) for index in {0, 1, count - 1} & set(range(count))}:
            yield from self._forward(one_pass)
            yield self._live(one_pass, self.step.head(), _UnitState(incoming=0))
            yield self._live(one_pass, self.step.last_norm(), _UnitState(incoming=0, ready_bytes=self._head_bytes))
            # Inner blocks are alike, and so is the change from each to the one below; each outermost block lacks a
            # buffer. So two blocks at either end are enough, unless only some blocks are checkpointed.
            ends = {0, min(1, layers - 1), max(0, layers - 2), layers - 1}
            for below in ends if self.step.microbatch.checkpoint_every == 1 else range(layers):
                yield from self._block(one_pass, below)
        yield from self._end()

    def _pass(self, index: int) -> _Pass:
        is_last = index == self.sharding.microbatches - 1
        return _Pass(is_first=index == 0, is_last=is_last, is_reduced=is_last or not self.sharding.is_reduced_last)

    def _forward(self, one_pass: _Pass) -> Iterator[_Live]:
        """Yield the moments of forward: the last unit is gathered, its buffer kept until the head has computed."""
        if one_pass.is_first or self.sharding.is_resharded:
            yield self._gathered_in_forward(one_pass)
            buffer_bytes = self.units[0].gathered_bytes
            yield self._live(one_pass, _with_buffer(self.blocks.last_mlp_ends(), buffer_bytes), _UnitState(gathered=1))
            yield self._live(one_pass, _with_buffer(self.blocks.head_ends(), buffer_bytes), _UnitState())
        yield self._live(one_pass, self.step.end_of_forward(), _UnitState())
        yield self._live(one_pass, self.step.loss(), _UnitState())

    def _gathered_in_forward(self, one_pass: _Pass) -> _Live:
        """Return the moment at which the last unit, its buffer and the previous unit's buffer live together."""
        last, before = self.units[0], (*self.units, self.outer)[1]
        moment = self.blocks.last_block_begins() if self._units_each == 1 else self.blocks.last_mlp_begins()
        live = self._live(
            one_pass, _with_buffer(moment, last.gathered_bytes + before.gathered_bytes), _UnitState(gathered=1)
        )
        if not one_pass.is_first:
            return live
        # In the first pass no module has used the last unit and the head yet: they still count as activations.
        unused_bytes = last.gathered_bytes + self._head_bytes
        return replace(
            live,
            gathered_bytes=live.gathered_bytes - unused_bytes,
            activations_bytes=live.activations_bytes + unused_bytes,
        )

    def _block(self, one_pass: _Pass, below: int) -> Iterator[_Live]:
        """Yield the moments of a block's backward: its units are gathered, used and reduced one after the other.

        The MLP is in the first unit, the query in the last. below: number of blocks beneath this one.
        """
        size, shape = self.step.microbatch.at_block(below), self.sharding.shape
        above = shape.layers - 1 - below
        first, last = above * self._units_each, (above + 1) * self._units_each - 1
        begins = _UnitState(finished=first, gathered=1, incoming=first, ready_bytes=self._head_bytes)
        yield self._live(one_pass, self.blocks.backward_begins(below), begins)
        # A recomputed forward has gathered all units of the block.
        is_again = size.checkpoint != "none" and last > first
        at_mlp = replace(begins, gathered=2, incoming=None) if is_again else replace(begins, incoming=first + 1)
        for moment in self.step.mlp(below):
            # `moment.ready` is a share of the whole model's weights; the blocks above are counted by `finished` here.
            ready = int(moment.ready * shape.parameters()) - above * shape.block_parameters()
            yield self._live(one_pass, moment, replace(at_mlp, ready_bytes=FULL_BYTES * ready))
        if size.is_autocast:
            product_bytes = FULL_BYTES * shape.width * shape.mlp_width
            for moment, ready in ((self.blocks.up(below), 1), (self.blocks.gate(below), 2)):
                yield self._live(
                    one_pass, moment, replace(at_mlp, ready_bytes=self._head_bytes + ready * product_bytes)
                )
        if last > first:
            yield from self._reduction(one_pass, self.blocks.mlp_ends(below), at_mlp)
        query_bytes = FULL_BYTES * shape.width * shape.query_width
        at_query = _UnitState(
            finished=last,
            gathered=1,
            incoming=last + 1,
            ready_bytes=self._head_bytes + self.units[last].gradients_bytes - query_bytes,
        )
        yield self._live(one_pass, self.blocks.query(below), at_query)
        yield from self._reduction(one_pass, self.blocks.backward_ends(below), at_query)

    def _reduction(self, one_pass: _Pass, moment: Moment, state: _UnitState) -> Iterator[_Live]:
        """Yield the two moments of a reduction.

        First the unit's weights are divided again and its gradients are laid end to end; then gloo reduces a copy.
        """
        if not one_pass.is_reduced:
            return
        unit = self.units[state.finished]
        resharded = replace(state, resharded=1, gathered=state.gathered - 1)
        for own_bytes, in_flight_bytes in (
            (unit.gradients_bytes, unit.reduced_bytes),
            (unit.last_bytes, self._copied_bytes(unit)),
        ):
            ready_bytes = self._head_bytes + own_bytes
            yield self._live(
                one_pass, moment, replace(resharded, ready_bytes=ready_bytes, in_flight_bytes=in_flight_bytes)
            )

    def _end(self) -> Iterator[_Live]:
        """Yield the end of backward: the embedding gets its gradient, then the outer unit is reduced."""
        outer, parts_bytes = self.outer, sum(unit.part_bytes for unit in self.units)
        if self.sharding.microbatches > 1 and not self.sharding.is_reduced_last:
            parts_bytes += outer.part_bytes
        yield _Live(
            gathered_bytes=outer.gathered_bytes,
            gradients_bytes=parts_bytes + outer.gradients_bytes,
            activations_bytes=self.step.held_bytes,
            temporary_bytes=self.units[-1].reduced_bytes + self.step.microbatch.stream_bytes,
        )
        yield _Live(
            gathered_bytes=0,
            gradients_bytes=parts_bytes + outer.last_bytes,
            activations_bytes=self.step.held_bytes,
            temporary_bytes=self._copied_bytes(outer),
        )

    def _live(self, one_pass: _Pass, moment: Moment, state: _UnitState) -> _Live:
        """Add gathered weights, travelling buffers and gradients to a moment of computation."""
        # gathered: gathered units; coming_bytes: buffer of the arriving unit; parts_bytes: parts kept by `kept_ranks`.
        units, resharded = self.units, state.finished + state.resharded
        gathered, coming_bytes, parts_bytes = units[resharded:] if one_pass.is_last else units, 0, 0
        if self.sharding.is_resharded:
            gathered = units[resharded : resharded + state.gathered]
            if state.incoming is not None:
                coming_bytes = _gathered_bytes(units[state.incoming : state.incoming + 1])
            if self.kept_ranks is not None:
                parts_bytes = _gathered_bytes(units[resharded + state.gathered :]) // self.kept_ranks
        in_flight_bytes = state.in_flight_bytes
        if one_pass.is_reduced and state.finished and not state.resharded:
            in_flight_bytes = units[state.finished - 1].reduced_bytes  # The buffer is kept until the next reduction.
        return _Live(
            gathered_bytes=self.outer.gathered_bytes + _gathered_bytes(gathered),
            gradients_bytes=self._gradients_bytes(one_pass, state),
            activations_bytes=moment.activations_bytes + parts_bytes,
            temporary_bytes=moment.temporary_bytes + coming_bytes + in_flight_bytes,
        )

    def _gradients_bytes(self, one_pass: _Pass, state: _UnitState) -> int:
        finished, after = self.units[: state.finished], self.units[state.finished :]
        finished_bytes = sum(unit.part_bytes if one_pass.is_reduced else unit.gradients_bytes for unit in finished)
        if one_pass.is_first:
            return finished_bytes + state.ready_bytes
        if not self.sharding.is_reduced_last:
            # Each earlier microbatch has left this rank's part of all gradients.
            return sum(unit.part_bytes for unit in (*self.units, self.outer)) + state.ready_bytes
        # From the second microbatch on, gradients that are not reduced yet are already whole.
        whole_bytes = finished_bytes + self.outer.gradients_bytes + sum(unit.gradients_bytes for unit in after)
        if state.resharded:
            return whole_bytes - self._head_bytes - after[0].gradients_bytes + state.ready_bytes
        return whole_bytes

    def _copied_bytes(self, unit: _Unit) -> int:
        """Return the bytes of a reduction's input, gloo's copy of it, and its output."""
        return 2 * unit.reduced_bytes + unit.reduced_bytes // self.sharding.ranks

    @property
    def _units_each(self) -> int:
        """Number of units in a block."""
        return len(self.units) // self.sharding.shape.layers

    @property
    def _head_bytes(self) -> int:
        return FULL_BYTES * self.sharding.shape.vocabulary * self.sharding.shape.width


def _unit(weights: Sequence[Dimensions], sharding: Sharding) -> _Unit:
    part = padded_elements(weights, sharding.ranks)
    return _Unit(
        part_bytes=ELEMENT_BYTES * part,
        gathered_bytes=sharding.gathered_bytes * sharding.ranks * part,
        gradients_bytes=ELEMENT_BYTES * elements(weights),
        last_bytes=ELEMENT_BYTES * elements(weights[-1:]),
        reduced_bytes=sharding.reduced_bytes * sharding.ranks * part,
    )


def _gathered_bytes(units: Iterable[_Unit]) -> int:
    return sum(unit.gathered_bytes for unit in units)


def _with_buffer(moment: Moment, buffer_bytes: int) -> Moment:
    """Return the moment with one more buffer from forward."""
    return replace(moment, activations_bytes=moment.activations_bytes + buffer_bytes)
