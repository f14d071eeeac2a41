"""The card of a strategy on `fully_shard`, made of what tells it from the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from workloads.cards.card import Card, Needs, Option, OptionValue, Parity, Setup
from workloads.cards.offload import offload_notes
from workloads.cards.sharding_options import sharding_of, sharding_refusals
from workloads.cards.sharding_peak import sharding_peak
from workloads.laws.live_tensors import Prediction
from workloads.laws.memory import paper_states
from workloads.laws.sharding import Sharding, building_bytes, sharded_states, sharded_transfers
from workloads.laws.terms import NotCovered, States, Transfer


def all_share(setup: Setup) -> dict[str, int]:
    """The mesh of ranks that all share each weight."""
    return {"shard": setup.ranks}


def _no_refusals(setup: Setup) -> list[str]:
    return []


def rounded_gradients(setup: Setup) -> str | None:
    """Why gradients are not those of one rank: they are rounded before they are reduced."""
    if setup.options["reduce_dtype"] == "fp32":
        return None
    return f"reduce_dtype={setup.options['reduce_dtype']} rounds each gradient; take reduce_dtype=fp32"


def sharded_card(
    *,
    name: str,
    summary: str,
    options: tuple[Option, ...],
    stage: Literal[2, 3],
    variants: tuple[Mapping[str, OptionValue], ...],
    needs: Needs | None = None,
    mesh: Callable[[Setup], dict[str, int]] = all_share,
    mesh_refusals: Callable[[Setup], list[str]] = _no_refusals,
) -> Card:
    """The card, by the laws of `laws.sharding`.

    stage: of ZeRO; from the third on weights are divided again between forward and backward.
    variants: of its parity.
    mesh: its axis `shard` has the ranks that share a weight. mesh_refusals: why there is no such mesh; what else is
    refused is asked only where there is one.
    """

    def shard_ranks(setup: Setup) -> int:
        return mesh(setup)["shard"]

    def sharding(setup: Setup) -> Sharding:
        return sharding_of(setup, ranks=shard_ranks(setup), is_resharded=stage == 3)

    def refusals(setup: Setup) -> list[str]:
        return mesh_refusals(setup) or sharding_refusals(setup, ranks=shard_ranks(setup))

    def transfers(setup: Setup) -> tuple[Transfer, ...]:
        return sharded_transfers(sharding(setup))

    def states(setup: Setup, rank: int) -> States:
        return sharded_states(sharding(setup), rank)

    def building(setup: Setup, rank: int) -> int:
        return building_bytes(sharding(setup))

    def paper(setup: Setup) -> States:
        return paper_states(setup.shape.parameters(), stage=stage, data_ranks=shard_ranks(setup))

    def peak(setup: Setup) -> Prediction | NotCovered:
        return sharding_peak(setup, sharding(setup))

    return Card(
        name=name,
        kind="training",
        summary=summary,
        version=1,
        options=options,
        needs=needs or Needs(),
        parity=Parity(kind="exact", variants=variants, incomparable=rounded_gradients),
        mesh=mesh,
        refusals=refusals,
        transfers=transfers,
        states=states,
        building_bytes=building,
        notes=offload_notes,
        paper_states=paper,
        peak=peak,
    )
