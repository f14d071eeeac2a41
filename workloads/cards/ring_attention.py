"""The card of `ring_attention`: positions divided among ranks, whose keys and values visit each other on a ring."""

from __future__ import annotations

from collections.abc import Iterator

from workloads.cards.attention_options import HEAD_MULTIPLE, WIDEST_HEAD, pinned_kernel
from workloads.cards.card import ELEMENT_BYTES, Card, Needs, Option, Parity, Setup
from workloads.cards.message_options import HIGH_PRIORITY, priority_axes, priority_refusals
from workloads.cards.sequence_options import (
    SEQUENCE_OPTIONS,
    gradient_average,
    sequence_mesh,
    sequence_paper_activations,
    sequence_paper_states,
    sequence_peak,
    sequence_refusals,
    sequence_states,
)
from workloads.cards.training_options import local_batch, parts
from workloads.laws.live_tensors import Prediction
from workloads.laws.ring_attention import Layout, RingTraffic, pairs
from workloads.laws.terms import NotCovered, Transfer


def chunks(setup: Setup) -> int:
    """Equal parts that the layout cuts the sequence into."""
    return 2 * setup.ranks if _layout(setup) == "zigzag" else setup.ranks


def _refusals(setup: Setup) -> list[str]:
    return [
        *sequence_refusals(setup, chunks=chunks(setup)),
        *_kernel_refusals(setup),
        *_compile_refusals(setup),
        *priority_refusals(setup),
    ]


def _kernel_refusals(setup: Setup) -> Iterator[str]:
    """What no kernel of a GPU that gives a log-sum-exp takes."""
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
    """What the compiler cannot trace."""
    if setup.options["compile"] != "none":
        yield (
            f"option compile is {setup.options['compile']}; a compiled block is one graph, and torch compiles no"
            " message from one rank to another, such as attention sends on the ring: leave it out, or take ulysses"
        )


def _incomparable(setup: Setup) -> str | None:
    if setup.options["causal"]:
        return None
    return "causal is false, and single's attention is causal; causal=true is comparable"


def _transfers(setup: Setup) -> tuple[Transfer, ...]:
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
        * pairs(layout, is_causal=is_causal, sequence=shape.sequence, rank=rank, ranks=setup.ranks)
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


CARD = Card(
    name="ring_attention",
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
    refusals=_refusals,
    sends_messages=lambda setup: setup.ranks > 1,
    high_priority_axes=lambda setup: priority_axes(setup, "sequence"),
    transfers=_transfers,
    states=sequence_states,
    paper_states=sequence_paper_states,
    peak=_peak,
    paper_activations=sequence_paper_activations,
    attention_pairs=_attention_pairs,
    notes=_notes,
)
