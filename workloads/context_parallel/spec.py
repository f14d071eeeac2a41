"""Specs of `ring_attention` and `ulysses`: options, refusals and costs of training with a divided sequence."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace

from workloads.context_parallel.cost_model import HeadTraffic, PositionLayout, RingTraffic, ring_pairs
from workloads.core.buckets import (
    BUCKET_MB,
    bucket_notes,
    bucket_refusals,
    bucketed_average,
    settled_buckets,
    unused_bucket_refusals,
)
from workloads.core.cuda_setup import cuda_model, cuda_peak_not_covered
from workloads.core.precision_options import gradient_bytes, is_fp8, stream_bytes
from workloads.cost_models.absent import Absent
from workloads.cost_models.cuda.model import CudaModel
from workloads.cost_models.cuda.peak import replicated_peak
from workloads.cost_models.memory import FULL_BYTES, INDEX_BYTES, paper_activation_bytes, paper_states
from workloads.cost_models.peak_memory import Prediction, bucketed_gradients, step_peak
from workloads.cost_models.terms import States, Transfer, replicated_states
from workloads.fsdp.cost_model import Sharding, largest_gathered_bytes, sharded_states, sharded_transfers
from workloads.fsdp.cuda_peak import sharded_cuda_peak
from workloads.options import (
    COLLECTIVES_IN_GRAPHS,
    GATHERED_IN_GRAPHS,
    HEAD_MULTIPLE,
    HIGH_PRIORITY,
    TRAINING_OPTIONS,
    WIDEST_HEAD,
    checkpoint_every,
    graph_refusals,
    head_remedy,
    local_batch,
    microbatch,
    microbatch_count,
    numbers_agreed,
    peak_not_covered,
    pinned_kernel,
    priority_axes,
    priority_refusals,
    training_refusals,
)
from workloads.spec import (
    DIVIDED_SUMS_LIMIT,
    ELEMENT_BYTES,
    Option,
    OptionValue,
    Parity,
    Search,
    Setup,
    StrategySpec,
    nearest_multiples,
)

SHARDED = Option(
    name="sharded",
    default=False,
    help="shard weights, gradients and optimizer states over the ranks by FSDP2, as fsdp does; false: whole on each",
    search=Search(values=(False, True)),
    added_later=True,
)
SEQUENCE_OPTIONS: tuple[Option, ...] = (*TRAINING_OPTIONS, BUCKET_MB, SHARDED)


class SequenceSpec(StrategySpec):
    """Base of the specs whose ranks hold different positions of the same sequences, and by default the whole model."""

    options = SEQUENCE_OPTIONS

    def mesh(self, setup: Setup) -> dict[str, int]:
        return {"sequence": setup.ranks}

    def chunks(self, setup: Setup) -> int:
        """Return the number of equal parts that the sequence is cut into."""
        return setup.ranks

    def refusals(self, setup: Setup) -> list[str]:
        reasons = training_refusals(setup, data_ranks=1)
        if SHARDED.of(setup):
            reasons += unused_bucket_refusals(setup, "sharded=true", "sharded=false")
            reasons += graph_refusals(setup, GATHERED_IN_GRAPHS)
        else:
            reasons += bucket_refusals(setup)
        sequence, chunks = setup.shape.sequence, self.chunks(setup)
        if sequence % chunks:
            fitting = nearest_multiples(sequence, chunks)
            reasons.append(
                f"sequence {sequence} cannot be cut into {chunks} equal chunks; --sequence {fitting} would fit"
            )
        return reasons

    def sharding(self, setup: Setup) -> Sharding:
        """Describe sharded states to FSDP2's cost model."""
        return Sharding(
            shape=setup.shape,
            ranks=setup.ranks,
            microbatches=microbatch_count(setup),
            gathered_bytes=stream_bytes(setup),
            reduced_bytes=gradient_bytes(setup),
            numbers=numbers_agreed(setup),
            is_overlapped=setup.backend == "nccl",
        )

    def settled(self, setup: Setup) -> Mapping[str, OptionValue]:
        return {**super().settled(setup), **({} if SHARDED.of(setup) else settled_buckets(setup))}

    def notes(self, setup: Setup) -> list[str]:
        return [] if SHARDED.of(setup) else bucket_notes(setup)

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        """Return the average of the gradients of all positions: an all_reduce, bucket by bucket during backward.

        With sharded states, units are gathered and reduced instead.
        """
        if setup.ranks == 1:
            return ()
        if SHARDED.of(setup):
            return tuple(replace(each, axis="sequence") for each in sharded_transfers(self.sharding(setup)))
        return (bucketed_average(setup, "sequence"),)

    def states(self, setup: Setup, rank: int) -> States:
        return sharded_states(self.sharding(setup), rank) if SHARDED.of(setup) else replicated_states(setup.shape)

    def gathered_bytes(self, setup: Setup, rank: int) -> int:
        return largest_gathered_bytes(self.sharding(setup)) if SHARDED.of(setup) else 0

    def paper_states(self, setup: Setup) -> States:
        is_sharded = bool(SHARDED.of(setup))
        return paper_states(
            setup.shape.parameters(), stage=3 if is_sharded else 0, data_ranks=setup.ranks if is_sharded else 1
        )

    def paper_activations(self, setup: Setup) -> int:
        """Return the paper's activations, all divided: by positions, or for attention's scores by queries or heads."""
        full = microbatch(setup, data_ranks=1)
        all_bytes = paper_activation_bytes(
            full.shape, full.sequences, full.checkpoint, checkpoint_every=full.checkpoint_every
        )
        return all_bytes // setup.ranks

    def position_bytes(self, setup: Setup) -> int:
        """Return the bytes of a rank's own list of positions; plain positions are a view of all positions."""
        return INDEX_BYTES * setup.shape.sequence

    def peak(self, setup: Setup) -> Prediction | Absent:
        """Predict a rank's peak as if it trained alone on sequences of its own length, plus all tokens of a batch.

        The rank gets the tokens of all positions, and its replica keeps the tables of all positions, though the model
        uses only its own by then. Attention keeps the same amount wherever it is computed: buffers of an exchange are
        freed before the peak in the MLP.
        """
        if setup.device == "cuda":
            return self._cuda_peak(setup)
        if (reason := peak_not_covered(setup)) is not None:
            return reason
        if SHARDED.of(setup):
            return Absent(reason="no cost model of live tensors covers sharded states whose ranks divide a sequence")
        full, states = microbatch(setup, data_ranks=1), replicated_states(setup.shape)
        # The tensors of one microbatch at the rank's own positions, except those of attention.
        own = replace(full, shape=replace(setup.shape, sequence=setup.shape.sequence // setup.ranks))
        peak = step_peak(
            own, states=states, backwards=bucketed_gradients(states.gradients_bytes, microbatch_count(setup))
        )
        # The rank's inputs are a copy; its targets are copied in any case.
        more_bytes = (
            microbatch_count(setup) * (full.tokens_bytes - own.tokens_bytes)
            + INDEX_BYTES * own.sequences * own.shape.sequence
        )
        tables_bytes = FULL_BYTES * full.shape.sequence * full.shape.head_width
        return replace(
            peak,
            activations_bytes=peak.activations_bytes + more_bytes,
            other_bytes=tables_bytes + self.position_bytes(setup),
        )

    @abstractmethod
    def exchanged_bytes(self, setup: Setup, model: CudaModel) -> tuple[int, int]:
        """Return the bytes that attention's exchanges add on CUDA, in forward and in backward."""

    def _cuda_peak(self, setup: Setup) -> Prediction | Absent:
        if (reason := cuda_peak_not_covered(setup)) is not None:
            return reason
        if pinned_kernel(setup) == "math":
            return Absent(reason="the cost model of memory does not cover attention=math over a divided sequence")
        is_sharded, shape = bool(SHARDED.of(setup)), setup.shape
        whole = cuda_model(setup, 1, is_gathered=is_sharded)
        own = replace(whole, positions=shape.sequence // setup.ranks)
        forward_bytes, backward_bytes = self.exchanged_bytes(setup, own)
        own = replace(own, forward_attention_bytes=forward_bytes, backward_attention_bytes=backward_bytes)
        # The rank's inputs and targets are copies; the tables of all positions stay, and the model has its own.
        held_bytes = 2 * INDEX_BYTES * own.tokens
        other_bytes = FULL_BYTES * own.positions * shape.head_width + self.position_bytes(setup)
        if is_sharded:
            return sharded_cuda_peak(
                own,
                sharding=self.sharding(setup),
                states=self.states(setup, 0),
                held_bytes=held_bytes,
                other_bytes=other_bytes,
            )
        return replicated_peak(
            own,
            states=self.states(setup, 0),
            microbatches=microbatch_count(setup),
            is_bucketed=True,
            held_bytes=held_bytes,
            other_bytes=other_bytes,
        )


# Ring attention: ranks hold positions, and keys and values travel from rank to rank.


def _ring_refusals(setup: Setup) -> Iterator[str]:
    """Yield features that GPU kernels with a log-sum-exp do not support, or that the compiler cannot trace."""
    width = setup.shape.head_width
    if setup.device == "cuda" and (width % HEAD_MULTIPLE or width > WIDEST_HEAD):
        yield (
            f"{setup.shape.head_words} is {width}; attention's kernels on a GPU take multiples of {HEAD_MULTIPLE} up to"
            f" {WIDEST_HEAD}: {head_remedy(setup)}"
        )
    if setup.device == "cuda" and pinned_kernel(setup) == "math":
        yield (
            "option attention is math, which returns no log-sum-exp, and the ring merges attention by it; use"
            " attention=efficient, or ulysses"
        )
    if setup.options["compile"] != "none":
        yield (
            f"option compile is {setup.options['compile']}; torch cannot compile the sends and receives inside"
            " attention's ring: leave it out, or use ulysses"
        )


class RingAttentionSpec(SequenceSpec):
    name = "ring_attention"
    summary = "sequences sharded over ranks by positions; keys and values pass around a ring during attention"
    options = (
        *SEQUENCE_OPTIONS,
        Option(
            name="layout",
            default="zigzag",
            choices=("plain", "zigzag"),
            help="positions of a rank: contiguous, or a chunk from each end (zigzag), which balances causal attention",
        ),
        Option(
            name="overlap",
            default=True,
            help="compute attention while keys and values are sent; false: wait for them first",
        ),
        Option(
            name="causal", default=True, help="a token attends to none after it; false: to all, for measurements only"
        ),
        HIGH_PRIORITY,
    )
    parity = Parity(
        half_weights_limit=DIVIDED_SUMS_LIMIT,
        variants=(
            {},
            {"layout": "plain"},
            {"overlap": False},
            {"bucket_mb": 0.1},
            {"accumulate": 2},
            {"sharded": True},
            {"sharded": True, "accumulate": 2, "checkpoint": "full"},
            {"checkpoint": "full"},
            {"checkpoint": "selective", "accumulate": 2},
            {"loss_chunks": 2},
        ),
    )

    def chunks(self, setup: Setup) -> int:
        return 2 * setup.ranks if setup.options["layout"] == "zigzag" else setup.ranks

    def refusals(self, setup: Setup) -> list[str]:
        return [
            *super().refusals(setup),
            *_ring_refusals(setup),
            *priority_refusals(setup),
        ]

    def incomparable(self, setup: Setup) -> str | None:
        if is_fp8(setup) and setup.ranks > 1:
            return (
                "weights=fp8 amplifies the ring's differences in rounding, up to 5 % of a gradient; use"
                " weights=bf16_compute, or ulysses"
            )
        if setup.options["causal"]:
            return None
        return "causal is false, and single's attention is causal; causal=true is comparable"

    def sends_messages(self, setup: Setup) -> bool:
        return setup.ranks > 1

    def high_priority_axes(self, setup: Setup) -> tuple[str, ...]:
        return priority_axes(setup, "sequence")

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        traffic = RingTraffic(
            shape=setup.shape,
            ranks=setup.ranks,
            sequences=local_batch(setup, data_ranks=1),
            microbatches=microbatch_count(setup),
            element_bytes=ELEMENT_BYTES[setup.precision],
            is_recomputed=setup.options["checkpoint"] != "none",
            recomputed_every=checkpoint_every(setup),
            is_overlapped=bool(setup.options["overlap"]),
        )
        return (*traffic.transfers, *super().transfers(setup))

    def attention_pairs(self, setup: Setup) -> tuple[int, ...]:
        shape, is_causal = setup.shape, bool(setup.options["causal"])
        layout: PositionLayout = "zigzag" if setup.options["layout"] == "zigzag" else "plain"
        sequences = microbatch_count(setup) * local_batch(setup, data_ranks=1)
        return tuple(
            sequences
            * shape.layers
            * shape.heads
            * ring_pairs(layout, is_causal=is_causal, sequence=shape.sequence, rank=rank, ranks=setup.ranks)
            for rank in range(setup.ranks)
        )

    def exchanged_bytes(self, setup: Setup, model: CudaModel) -> tuple[int, int]:
        """Return the bytes that the ring holds: passing keys and values, and fp32 sums of results or of gradients."""
        elements = model.tokens * setup.shape.head_width
        query, keys = elements * setup.shape.heads, 2 * elements * setup.shape.kv_heads
        passing = 2 * model.product_bytes * keys
        return (
            (model.product_bytes + 2 * FULL_BYTES) * query + passing,
            (FULL_BYTES + model.product_bytes) * query + passing + 2 * FULL_BYTES * keys,
        )

    def position_bytes(self, setup: Setup) -> int:
        if setup.options["layout"] == "plain":
            return super().position_bytes(setup)
        # Zigzag positions are a new tensor.
        return INDEX_BYTES * (setup.shape.sequence // setup.ranks)

    def peak(self, setup: Setup) -> Prediction | Absent:
        if setup.options["checkpoint"] == "selective" and setup.ranks > 1:
            return Absent(reason="selective checkpointing keeps attention's output for the keys of each rank")
        return super().peak(setup)

    def notes(self, setup: Setup) -> list[str]:
        notes = super().notes(setup)
        if not setup.options["causal"]:
            notes.append("attention is not causal: tokens are seen before they are predicted, so losses mean nothing")
        if setup.options["checkpoint"] == "selective" and setup.ranks > 1:
            notes.append(
                "selective checkpointing keeps attention's output for the keys of each rank, not only the merged one"
            )
        if setup.backend == "gloo" and setup.ranks > 1:
            notes.append(
                "in a trace a gloo message lasts until the rank waits for it, so at least as long as the attention that"
                " overlaps it"
            )
        return notes


# Ulysses: ranks hold positions, and exchange them for heads where attention needs all positions.


def _head_refusals(setup: Setup) -> Iterator[str]:
    """Yield heads that the ranks cannot share: no rank gets copies of another rank's keys and values."""
    shape, ranks = setup.shape, setup.ranks
    uneven = [
        f"{name} {count}" for name, count in (("heads", shape.heads), ("kv_heads", shape.kv_heads)) if count % ranks
    ]
    if uneven:
        # Divisors of kv_heads also divide the query heads.
        *fewer, most = [str(count) for count in range(1, shape.kv_heads + 1) if shape.kv_heads % count == 0]
        fitting = f"{', '.join(fewer)} or {most}" if fewer else most
        yield (
            f"{' and '.join(uneven)} cannot be shared equally by {ranks} ranks;"
            f" --ranks {fitting} would fit these heads, and ring_attention shards no heads"
        )


class UlyssesSpec(SequenceSpec):
    name = "ulysses"
    summary = "sequences sharded over ranks by positions, and by heads in attention: all_to_all (DeepSpeed-Ulysses)"
    parity = Parity(
        variants=(
            {},
            {"bucket_mb": 0.1},
            {"accumulate": 2},
            {"sharded": True},
            {"sharded": True, "accumulate": 2, "checkpoint": "full"},
            {"checkpoint": "full"},
            {"checkpoint": "selective", "accumulate": 2},
            {"loss_chunks": 2},
        ),
    )

    def refusals(self, setup: Setup) -> list[str]:
        graphs = graph_refusals(setup, COLLECTIVES_IN_GRAPHS) if setup.ranks > 1 else []
        return [*super().refusals(setup), *_head_refusals(setup), *graphs]

    def exchanged_bytes(self, setup: Setup, model: CudaModel) -> tuple[int, int]:
        """Return the bytes sent and received in an exchange of queries, keys and values, or of their gradients."""
        heads = setup.shape.heads + 2 * setup.shape.kv_heads
        size_bytes = 2 * model.product_bytes * model.tokens * setup.shape.head_width * heads
        return size_bytes, size_bytes

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        traffic = HeadTraffic(
            shape=setup.shape,
            ranks=setup.ranks,
            sequences=local_batch(setup, data_ranks=1),
            microbatches=microbatch_count(setup),
            element_bytes=ELEMENT_BYTES[setup.precision],
            is_recomputed=setup.options["checkpoint"] != "none",
            recomputed_every=checkpoint_every(setup),
        )
        return (*traffic.transfers, *super().transfers(setup))
