"""The card of `ulysses`: positions divided among ranks, exchanged for heads where attention needs all positions."""

from __future__ import annotations

from collections.abc import Iterator

from workloads.cards.card import ELEMENT_BYTES, Card, Needs, Parity, Setup
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
from workloads.cards.training_options import COLLECTIVES_IN_GRAPHS, graph_refusals, local_batch, parts
from workloads.laws.terms import Transfer
from workloads.laws.ulysses import HeadTraffic


def _refusals(setup: Setup) -> list[str]:
    graphs = graph_refusals(setup, COLLECTIVES_IN_GRAPHS) if setup.ranks > 1 else []
    return [*sequence_refusals(setup, chunks=setup.ranks), *_head_refusals(setup), *graphs]


def _head_refusals(setup: Setup) -> Iterator[str]:
    """Heads that the ranks cannot share: no rank gets a copy of keys and values that another has too."""
    shape, ranks = setup.shape, setup.ranks
    uneven = [
        f"{name} {count}" for name, count in (("heads", shape.heads), ("kv_heads", shape.kv_heads)) if count % ranks
    ]
    if uneven:
        # They divide the query heads too.
        *fewer, most = [str(count) for count in range(1, shape.kv_heads + 1) if shape.kv_heads % count == 0]
        fitting = f"{', '.join(fewer)} or {most}" if fewer else most
        yield (
            f"{' and '.join(uneven)} cannot be shared equally by {ranks} ranks;"
            f" --ranks {fitting} would fit these heads, and ring_attention divides none"
        )


def _transfers(setup: Setup) -> tuple[Transfer, ...]:
    traffic = HeadTraffic(
        shape=setup.shape,
        ranks=setup.ranks,
        sequences=local_batch(setup, data_ranks=1),
        microbatches=parts(setup),
        element_bytes=ELEMENT_BYTES[setup.precision],
        is_recomputed=setup.options["checkpoint"] != "none",
    )
    return (*traffic.transfers, *gradient_average(setup))


CARD = Card(
    name="ulysses",
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
    refusals=_refusals,
    transfers=_transfers,
    states=sequence_states,
    paper_states=sequence_paper_states,
    peak=sequence_peak,
    paper_activations=sequence_paper_activations,
)
