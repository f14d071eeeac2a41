"""Specs of `ring_attention` and `ulysses`: options, refusals and costs of training with a divided sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workloads.context_parallel.cost_model import HeadTraffic, Layout, RingTraffic, ring_pairs
from workloads.cost_models.memory import FULL_BYTES, INDEX_BYTES, Microbatch, paper_activation_bytes, paper_states
from workloads.cost_models.peak_memory import Prediction, bucketed_gradients, step_peak
from workloads.cost_models.terms import NotCovered, States, Transfer, replicated_states
from workloads.options import (
    BUCKET_MB,
    COLLECTIVES_IN_GRAPHS,
    HEAD_MULTIPLE,
    HIGH_PRIORITY,
    TRAINING_OPTIONS,
    WIDEST_HEAD,
    bucket_refusals,
    buckets,
    graph_refusals,
    local_batch,
    microbatch,
    parts,
    peak_not_covered,
    pinned_kernel,
    priority_axes,
    priority_refusals,
    training_refusals,
)
from workloads.spec import ELEMENT_BYTES, Needs, Option, Parity, Setup, StrategySpec

# Shared by both specs: options, mesh, refusals, states and gradient averaging.

SEQUENCE_OPTIONS: tuple[Option, ...] = (*TRAINING_OPTIONS, BUCKET_MB)


def sequence_mesh(setup: Setup) -> dict[str, int]:
    """Return the mesh: one axis, whose ranks read the same sequences."""
    return {"sequence": setup.ranks}


def sequence_refusals(setup: Setup, *, chunks: int) -> list[str]:
    """Return why no strategy can divide the sequence like this. chunks: number of equal parts that the layout needs."""
    return [*training_refusals(setup, data_ranks=1), *bucket_refusals(setup), *_chunk_refusals(setup, chunks)]


def _chunk_refusals(setup: Setup, chunks: int) -> list[str]:
    sequence = setup.shape.sequence
    if sequence % chunks == 0:
        return []
    lower = sequence - sequence % chunks
    fitting = f"{lower} or {lower + chunks}" if lower else str(chunks)
    return [f"sequence {sequence} cannot be cut into {chunks} equal chunks; --sequence {fitting} would fit"]


def own_microbatch(setup: Setup) -> Microbatch:
    """Return the tensors of one microbatch at a rank's own positions, except those of attention."""
    whole = microbatch(setup, data_ranks=1)
    return replace(whole, shape=replace(setup.shape, sequence=setup.shape.sequence // setup.ranks))


def sequence_peak(setup: Setup, *, is_zigzag: bool = False) -> Prediction | NotCovered:
    """Predict the peak of a rank as if it trained alone on sequences of its own length, plus all tokens of the batch.

    The rank gets the tokens of all positions, and its replica keeps the tables of all positions, though the model uses
    only its own by then. Attention keeps as much wherever it is computed: buffers of an exchange are freed before the
    peak in the MLP.
    """
    if (reason := peak_not_covered(setup)) is not None:
        return reason
    own, states = own_microbatch(setup), replicated_states(setup.shape)
    peak = step_peak(own, states=states, backwards=bucketed_gradients(states.gradients_bytes, parts(setup)))
    whole = microbatch(setup, data_ranks=1)
    # Own inputs are a copy; of own targets there is a copy in any case.
    more_bytes = (
        parts(setup) * (whole.tokens_bytes - own.tokens_bytes) + INDEX_BYTES * own.sequences * own.shape.sequence
    )
    # Plain positions are a view of all positions; zigzag positions are a new tensor.
    positions = own.shape.sequence if is_zigzag else whole.shape.sequence
    tables_bytes = FULL_BYTES * whole.shape.sequence * whole.shape.head_width
    return replace(
        peak,
        activations_bytes=peak.activations_bytes + more_bytes,
        other_bytes=tables_bytes + INDEX_BYTES * positions,
    )


def gradient_average(setup: Setup) -> tuple[Transfer, ...]:
    """Return the all_reduce that averages the gradients of all positions, bucket by bucket during backward."""
    if setup.ranks == 1:
        return ()
    return (
        Transfer(
            collective="all_reduce",
            axis="sequence",
            payload_bytes=4 * setup.shape.parameters(),
            calls=buckets(setup),
            behind="backward",
        ),
    )


def sequence_states(setup: Setup, rank: int) -> States:
    """Return the states of a rank, which holds the whole model."""
    return replicated_states(setup.shape)


def sequence_paper_states(setup: Setup) -> States:
    """Return the paper's states: nothing is divided, as ranks share activations only."""
    return paper_states(setup.shape.parameters(), stage=0, data_ranks=1)


def sequence_paper_activations(setup: Setup) -> int:
    """Return the paper's activations, all divided: by positions, and attention's scores by queries or by heads."""
    whole = microbatch(setup, data_ranks=1)
    return paper_activation_bytes(whole.shape, whole.sequences, whole.checkpoint) // setup.ranks


def chunks(setup: Setup) -> int:
    """Return the number of equal parts that the layout cuts the sequence into."""
    return 2 * setup.ranks if _layout(setup) == "zigzag" else setup.ranks


def _ring_attention_refusals(setup: Setup) -> list[str]:
    return [
        *sequence_refusals(setup, chunks=chunks(setup)),
        *_kernel_refusals(setup),
        *_compile_refusals(setup),
        *priority_refusals(setup),
    ]


def _kernel_refusals(setup: Setup) -> Iterator[str]:
    """Yield what the GPU kernels that return a log-sum-exp do not support."""
    width = setup.shape.head_width
    if setup.device == "cuda" and (width % HEAD_MULTIPLE or width > WIDEST_HEAD):
        yield (
            f"width / heads is {width}; attention's kernels on a GPU take multiples of {HEAD_MULTIPLE} up to"
            f" {WIDEST_HEAD}: take such a --width for {setup.shape.heads} heads"
        )
    if setup.device == "cuda" and pinned_kernel(setup) == "math":
        yield (
            "option attention is math, which gives no log-sum-exp to merge the keys of all ranks by; take"
            " attention=efficient, or ulysses"
        )


def _compile_refusals(setup: Setup) -> Iterator[str]:
    """Yield what the compiler cannot trace."""
    if setup.options["compile"] != "none":
        yield (
            f"option compile is {setup.options['compile']}; a compiled block is one graph, and torch compiles no"
            " message from one rank to another, such as attention sends on the ring: leave it out, or take ulysses"
        )


def _incomparable(setup: Setup) -> str | None:
    if setup.options["causal"]:
        return None
    return "causal is false, and single's attention is causal; causal=true is comparable"


def _ring_attention_transfers(setup: Setup) -> tuple[Transfer, ...]:
    traffic = RingTraffic(
        shape=setup.shape,
        ranks=setup.ranks,
        sequences=local_batch(setup, data_ranks=1),
        microbatches=parts(setup),
        element_bytes=ELEMENT_BYTES[setup.precision],
        is_recomputed=setup.options["checkpoint"] != "none",
        is_overlapped=bool(setup.options["overlap"]),
    )
    return (*traffic.transfers, *gradient_average(setup))


def _attention_pairs(setup: Setup) -> tuple[int, ...]:
    shape, layout, is_causal = setup.shape, _layout(setup), bool(setup.options["causal"])
    sequences = parts(setup) * local_batch(setup, data_ranks=1)
    return tuple(
        sequences
        * shape.layers
        * shape.heads
        * ring_pairs(layout, is_causal=is_causal, sequence=shape.sequence, rank=rank, ranks=setup.ranks)
        for rank in range(setup.ranks)
    )


def _layout(setup: Setup) -> Layout:
    return "zigzag" if setup.options["layout"] == "zigzag" else "plain"


def _peak(setup: Setup) -> Prediction | NotCovered:
    if setup.options["checkpoint"] == "selective" and setup.ranks > 1:
        return NotCovered(reason="selective checkpointing keeps attention's output for the keys of each rank")
    return sequence_peak(setup, is_zigzag=_layout(setup) == "zigzag")


def _notes(setup: Setup) -> list[str]:
    notes = []
    if not setup.options["causal"]:
        notes.append("attention is not causal: tokens are seen before they are predicted, so that losses mean nothing")
    if setup.options["checkpoint"] == "selective" and setup.ranks > 1:
        notes.append("selective checkpointing keeps attention's output for the keys of each rank, not only their sum")
    if setup.backend == "gloo" and setup.ranks > 1:
        notes.append("in a trace a message on gloo lasts until it is waited for: attention's time where that is longer")
    return notes


RING_ATTENTION_CARD = StrategySpec(
    name="ring_attention",
    entry="workloads.context_parallel.ring_attention:build",
    kind="training",
    summary="positions divided among ranks; keys and values travel a ring while attention runs",
    version=1,
    options=(
        *SEQUENCE_OPTIONS,
        Option(
            name="layout",
            default="zigzag",
            choices=("plain", "zigzag"),
            help="positions of a rank: neighbouring ones, or chunks from both ends, which makes causal work equal",
        ),
        Option(name="overlap", default=True, help="attend while keys and values travel; false: wait for them first"),
        Option(name="causal", default=True, help="a token sees none after it; false: all, for measurements only"),
        HIGH_PRIORITY,
    ),
    needs=Needs(),
    parity=Parity(
        kind="exact",
        variants=(
            {},
            {"layout": "plain"},
            {"overlap": False},
            {"bucket_mb": 0.1},
            {"accumulate": 2},
            {"checkpoint": "full"},
            {"checkpoint": "selective", "accumulate": 2},
        ),
        incomparable=_incomparable,
    ),
    mesh=sequence_mesh,
    refusals=_ring_attention_refusals,
    sends_messages=lambda setup: setup.ranks > 1,
    high_priority_axes=lambda setup: priority_axes(setup, "sequence"),
    transfers=_ring_attention_transfers,
    states=sequence_states,
    paper_states=sequence_paper_states,
    peak=_peak,
    paper_activations=sequence_paper_activations,
    attention_pairs=_attention_pairs,
    notes=_notes,
)


# Ulysses: ranks hold positions, and exchange them for heads where attention needs all positions.


def _ulysses_refusals(setup: Setup) -> list[str]:
    graphs = graph_refusals(setup, COLLECTIVES_IN_GRAPHS) if setup.ranks > 1 else []
    return [*sequence_refusals(setup, chunks=setup.ranks), *_head_refusals(setup), *graphs]


def _head_refusals(setup: Setup) -> Iterator[str]:
    """Yield heads that the ranks cannot share: no rank gets copies of keys and values that another rank has too."""
    shape, ranks = setup.shape, setup.ranks
    uneven = [
        f"{name} {count}" for name, count in (("heads", shape.heads), ("kv_heads", shape.kv_heads)) if count % ranks
    ]
    if uneven:
        # Divisors of kv_heads divide the query heads too.
        *fewer, most = [str(count) for count in range(1, shape.kv_heads + 1) if shape.kv_heads % count == 0]
        fitting = f"{', '.join(fewer)} or {most}" if fewer else most
        yield (
            f"{' and '.join(uneven)} cannot be shared equally by {ranks} ranks;"
            f" --ranks {fitting} would fit these heads, and ring_attention divides none"
        )


def _ulysses_transfers(setup: Setup) -> tuple[Transfer, ...]:
    traffic = HeadTraffic(
        shape=setup.shape,
        ranks=setup.ranks,
        sequences=local_batch(setup, data_ranks=1),
        microbatches=parts(setup),
        element_bytes=ELEMENT_BYTES[setup.precision],
        is_recomputed=setup.options["checkpoint"] != "none",
    )
    return (*traffic.transfers, *gradient_average(setup))


ULYSSES_CARD = StrategySpec(
    name="ulysses",
    entry="workloads.context_parallel.ulysses:build",
    kind="training",
    summary="positions divided among ranks; all_to_all exchanges them for heads around attention (DeepSpeed-Ulysses)",
    version=1,
    options=SEQUENCE_OPTIONS,
    needs=Needs(),
    parity=Parity(
        kind="exact",
        variants=(
            {},
            {"bucket_mb": 0.1},
            {"accumulate": 2},
            {"checkpoint": "full"},
            {"checkpoint": "selective", "accumulate": 2},
        ),
    ),
    mesh=sequence_mesh,
    refusals=_ulysses_refusals,
    transfers=_ulysses_transfers,
    states=sequence_states,
    paper_states=sequence_paper_states,
    peak=sequence_peak,
    paper_activations=sequence_paper_activations,
)
