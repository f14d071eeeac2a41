"""Cost model of `three_d`: states and traffic of a rank whose pipeline stages are divided by tensors and replicated.

Exact to the byte. A rank's number is (data x stages + stage) x tensors + tensor: see `workloads.three_d.strategy`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from workloads.cost_models.schedules import Pipeline
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import (
    Collective,
    Dimensions,
    StageTransfers,
    States,
    Transfer,
    block_weights,
    elements,
    outer_weights,
)
from workloads.fsdp.cost_model import ELEMENT_BYTES, NUMBER_BYTES, own_elements, padded_elements
from workloads.pipeline_parallel.memory import boundary_agreements, boundary_transfers, stage_states
from workloads.tensor_parallel.cost_model import TensorTraffic


def fill_buckets(sizes: Sequence[int], bucket_bytes: int) -> list[range]:
    """Return the index range of each bucket's tensors: as many consecutive ones as fit; a larger tensor goes alone.

    sizes: bytes of each tensor.

    Raises:
        ValueError: a bucket has no byte.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}; it must be 1 or more")
    buckets: list[range] = []
    begin, filled_bytes = 0, 0
    for place, size_bytes in enumerate(sizes):
        if place > begin and filled_bytes + size_bytes > bucket_bytes:
            buckets.append(range(begin, place))
            begin, filled_bytes = place, 0
        filled_bytes += size_bytes
    return [*buckets, range(begin, len(sizes))] if sizes else []


_BLOCK_DIMS = (None, 0, 0, 0, 1, None, 0, 0, 1)
"""Dim of each block weight that tensor ranks divide: 0 if it reads the stream, 1 if it writes it, None for norms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshStages:
    """A model on a mesh of three axes.

    counts: blocks of each stage.
    traffic: of the whole model over the axis `tensor`; its ranks are those of the axis.
    bucket_bytes: size of the buckets in which replicas average gradients; None if FSDP2 divides what a stage holds.
    gathered_bytes, reduced_bytes: bytes of an element of weights and of gradients in FSDP2's transfers.
    numbers: single numbers that ranks of an axis agree on in an update, if they hold different gradients.
    """

    shape: Shape
    pipeline: Pipeline
    counts: Sequence[int]
    data_ranks: int
    traffic: TensorTraffic
    bucket_bytes: int | None
    numbers: int
    gathered_bytes: int = ELEMENT_BYTES
    reduced_bytes: int = ELEMENT_BYTES

    def units(self, stage: int) -> tuple[tuple[Dimensions, ...], ...]:
        """Return the weights of a stage on one tensor rank: block by block, then those outside the blocks."""
        embedding, norm, head = outer_weights(self.shape)
        block = tuple(
            _divided(weight, dim, self.traffic.ranks)
            for weight, dim in zip(block_weights(self.shape), _BLOCK_DIMS, strict=True)
        )
        first = (_divided(embedding, 1, self.traffic.ranks),) if stage == 0 else ()
        last = (norm, _divided(head, 0, self.traffic.ranks)) if stage == len(self.counts) - 1 else ()
        return *(block,) * self.counts[stage], (*first, *last)

    def weights(self, pipeline_rank: int) -> tuple[Dimensions, ...]:
        """Return all weights of a rank's stages."""
        by_stage = (self.units(stage) for stage in self.pipeline.stages_of(pipeline_rank))
        return tuple(weight for units in by_stage for unit in units for weight in unit)

    def states(self, rank: int) -> States:
        """Return a rank's states between steps."""
        data, pipeline_rank = divmod(rank // self.traffic.ranks, self.pipeline.ranks)
        if self.bucket_bytes is not None:
            return _replicated_states(self, pipeline_rank)
        weights = _counted_weights(self, pipeline_rank)
        padded_bytes = ELEMENT_BYTES * padded_elements(weights, self.data_ranks)
        own_bytes = ELEMENT_BYTES * own_elements(weights, rank=data, ranks=self.data_ranks)
        return States(
            parameters_bytes=padded_bytes,
            gradients_bytes=padded_bytes,
            optimizer_bytes=2 * own_bytes + NUMBER_BYTES * weights.total(),
        )

    def kept_gathered_bytes(self, rank: int) -> int:
        """Return the bytes of a rank's whole weights, which FSDP2 gathers once a step and keeps."""
        if self.bucket_bytes is not None:
            return 0
        pipeline_rank = rank // self.traffic.ranks % self.pipeline.ranks
        return self.gathered_bytes * elements(self.weights(pipeline_rank))

    def unreduced_bytes(self, rank: int) -> int:
        """Return the bytes of a rank's whole gradients, which FSDP2 reduces only in the last microbatch."""
        if self.bucket_bytes is not None or self.pipeline.microbatches == 1:
            return 0
        pipeline_rank = rank // self.traffic.ranks % self.pipeline.ranks
        return ELEMENT_BYTES * elements(self.weights(pipeline_rank))

    def transfers(self) -> tuple[Transfer, ...]:
        """Return, for each axis and collective, the transfers of the rank that transfers most by it."""
        ranks = range(self.pipeline.ranks)
        return (
            *boundary_transfers(self.pipeline, numbers=self.numbers),
            *_most([list(self._over_tensor(rank)) for rank in ranks]),
            *_most([list(self._over_data(rank)) for rank in ranks]),
        )

    def stage_transfers(self, stage: int) -> StageTransfers:
        """Return the collectives within a stage's actions: those of its products, and of weights that FSDP2 divides."""
        gathers, reductions = self._sharded_stage(stage)
        return StageTransfers(each=tuple(self._products(stage)), first=gathers, last=reductions)

    def update_transfers(self) -> tuple[Transfer, ...]:
        """Return the collectives after all actions of the rank that transfers most: averages and agreed numbers."""
        ranks = range(self.pipeline.ranks)
        return (
            *boundary_agreements(self.pipeline, numbers=self.numbers),
            *_most([list(self._update_over_tensor(rank)) for rank in ranks]),
            *_most([list(self._update_over_data(rank)) for rank in ranks]),
        )

    def _over_tensor(self, pipeline_rank: int) -> Iterator[Transfer]:
        for stage in self.pipeline.stages_of(pipeline_rank):
            yield from self._products(stage)
        yield from self._update_over_tensor(pipeline_rank)

    def _products(self, stage: int) -> Iterator[Transfer]:
        """Yield the collectives of a stage's products."""
        if self.traffic.ranks == 1:
            return
        if stage == 0:
            yield from self.traffic.embedding()
        yield from self.traffic.blocks(self.counts[stage], first=sum(self.counts[:stage]))
        if stage == self.pipeline.stages - 1:
            yield from self.traffic.head()

    def _update_over_tensor(self, pipeline_rank: int) -> Iterator[Transfer]:
        if self.traffic.ranks == 1:
            return
        if self.traffic.is_stream_sharded:
            norms = [weight for weight in self.weights(pipeline_rank) if len(weight) == 1]
            elements = own_elements(norms, rank=0, ranks=1 if self.bucket_bytes is not None else self.data_ranks)
            yield Transfer(collective="all_reduce", axis="tensor", payload_bytes=ELEMENT_BYTES * elements)
        yield from self._agreed("tensor")

    def _over_data(self, pipeline_rank: int) -> Iterator[Transfer]:
        sharded = [self._sharded_stage(stage) for stage in self.pipeline.stages_of(pipeline_rank)]
        for of_stages in zip(*sharded, strict=True):
            if joined := list(chain.from_iterable(of_stages)):
                payload_bytes, calls = (
                    sum(transfer.payload_bytes for transfer in joined),
                    sum(transfer.calls for transfer in joined),
                )
                yield replace(joined[0], payload_bytes=payload_bytes, calls=calls)
        yield from self._update_over_data(pipeline_rank)

    def _sharded_stage(self, stage: int) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]]:
        """Return the gathers and the reductions of a stage that FSDP2 divides among the replicas."""
        if self.data_ranks == 1 or self.bucket_bytes is not None:
            return (), ()
        units = [unit for unit in self.units(stage) if unit]
        whole = sum(self.data_ranks * padded_elements(unit, self.data_ranks) for unit in units)
        gathers = Transfer(
            collective="all_gather", axis="data", payload_bytes=self.gathered_bytes * whole, calls=len(units)
        )
        reductions = Transfer(
            collective="reduce_scatter", axis="data", payload_bytes=self.reduced_bytes * whole, calls=len(units)
        )
        return (gathers,), (reductions,)

    def _update_over_data(self, pipeline_rank: int) -> Iterator[Transfer]:
        if self.data_ranks == 1:
            return
        if self.bucket_bytes is None:
            yield from self._agreed("data")
            return
        sizes = [ELEMENT_BYTES * elements([weight]) for weight in self.weights(pipeline_rank)]
        yield Transfer(
            collective="all_reduce",
            axis="data",
            payload_bytes=sum(sizes),
            calls=len(fill_buckets(sizes, self.bucket_bytes)),
        )

    def _agreed(self, axis: str) -> Iterator[Transfer]:
        if self.numbers:
            size_bytes = NUMBER_BYTES * self.numbers
            yield Transfer(collective="all_reduce", axis=axis, payload_bytes=size_bytes, calls=self.numbers)


# Values that a plan of thousands of ranks needs for each rank; they are equal for all ranks of a pipeline rank.


@lru_cache(maxsize=256)
def _counted_weights(mesh: MeshStages, pipeline_rank: int) -> Counter[Dimensions]:
    return Counter(mesh.weights(pipeline_rank))


@lru_cache(maxsize=256)
def _replicated_states(mesh: MeshStages, pipeline_rank: int) -> States:
    return stage_states(mesh.weights(pipeline_rank))


def _divided(weight: Dimensions, dim: int | None, ranks: int) -> Dimensions:
    return tuple(size // ranks if place == dim else size for place, size in enumerate(weight))


def _most(by_rank: Iterable[Sequence[Transfer]]) -> Iterator[Transfer]:
    """Yield, for each collective, all transfers of the rank with the most bytes in it."""
    most: dict[Collective, list[Transfer]] = {}
    for transfers in by_rank:
        for collective in dict.fromkeys(transfer.collective for transfer in transfers):
            own = [transfer for transfer in transfers if transfer.collective == collective]
            size_bytes, most_bytes = (
                sum(transfer.payload_bytes for transfer in each) for each in (own, most.get(collective, []))
            )
            if size_bytes > most_bytes:
                most[collective] = own
    for transfers in most.values():
        yield from transfers
