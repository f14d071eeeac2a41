"""Cost model of torch's `fully_shard` (FSDP2): what a rank holds and sends, to the byte.

Each weight is divided along its first dimension into as many equal parts as there are ranks; the last parts are padded,
and padding is held and sent like weights. Traffic goes by units: weights that are gathered together.
Between forward and backward, weights may be divided among fewer ranks than otherwise: the second gather then collects
the same bytes among these ranks only.
Source: torch 2.13, _fsdp_param.py and _fsdp_collectives.py; Zhao et al. 2023, PyTorch FSDP.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

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
"""Bytes of an element of weights, gradients and moments, which are held in fp32, and of weights in transfer."""
NUMBER_BYTES = 4
"""Bytes of a single number in fp32: a count of steps, a norm, a flag."""

Wrap = Literal["block", "layer"]
"""What is gathered together: a block, or each half of one; in halves the block's norms belong to the outer unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How a model is divided, and how a step uses it.

    ranks: number of ranks that share a weight. replicas: groups of such ranks, which average their gradients.
    is_resharded: weights are divided again after forward, and gathered a second time in backward.
    resharded_ranks: ranks that weights are divided among between forward and backward, where these are not all.
    microbatches: forward and backward passes of a step; only the last one's backward reduces gradients.
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
    """Return the elements of each rank's part, padding included."""
    return sum(_padded_rows(weight, ranks) * math.prod(weight[1:]) for weight in weights)


def own_elements(weights: Iterable[Dimensions], *, rank: int, ranks: int) -> int:
    """Return the elements of one rank's part without padding: those that it updates."""
    count = 0
    for weight in weights:
        # 5 rows on 4 ranks: parts of 2 rows, of which the ranks own 2, 2, 1 and 0.
        part = _padded_rows(weight, ranks)
        own_rows = min(part, max(0, weight[0] - rank * part))
        count += own_rows * math.prod(weight[1:])
    return count


def sharded_states(sharding: Sharding, rank: int) -> States:
    """Return what a rank holds between steps; consecutive ranks share the weights, replicas follow each other."""
    ranks, weights = sharding.ranks, sharding.weights()
    padded_bytes = ELEMENT_BYTES * padded_elements(weights, ranks)
    own_bytes = ELEMENT_BYTES * own_elements(weights, rank=rank % ranks, ranks=ranks)
    return States(
        parameters_bytes=padded_bytes,
        gradients_bytes=own_bytes if sharding.is_copied_away else padded_bytes,
        optimizer_bytes=2 * own_bytes + NUMBER_BYTES * len(weights),
    )


def building_bytes(sharding: Sharding) -> int:
    """Return the most that a rank holds while a model that was made whole is divided, unit by unit.

    The parts of a unit's weights are copies; the whole weights are freed at the end of the unit. Parts that the host
    keeps leave the device one by one.
    """
    built = most = elements(sharding.weights())
    for unit in (*sharding.inner_units() * sharding.shape.layers, sharding.outer_unit()):
        parts = [padded_elements((weight,), sharding.ranks) for weight in unit]
        most = max(most, built + (max(parts) if sharding.is_copied_away else sum(parts)))
        built += (0 if sharding.is_copied_away else sum(parts)) - elements(unit)
    return ELEMENT_BYTES * most


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
        payload_bytes=calls * ELEMENT_BYTES * sharding.ranks * padded_elements(unit, sharding.ranks),
        calls=calls,
        behind=phase if sharding.is_overlapped else None,
    )


def _reductions(sharding: Sharding) -> Iterator[Transfer]:
    units = [(unit, sharding.shape.layers) for unit in reversed(sharding.inner_units())]
    behind: Literal["backward"] | None = "backward" if sharding.is_overlapped else None
    for unit, calls in (*units, (sharding.outer_unit(), 1)):
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
