"""The card of `hsdp`: the model is divided within each group of ranks, and gradients are averaged between groups."""

from __future__ import annotations

from workloads.cards.card import Card, Needs, Option, Parity, Setup
from workloads.cards.sharding_options import (
    RESHARD,
    SHARDING_OPTIONS,
    divisors,
    sharding_notes,
    sharding_of,
    sharding_refusals,
)
from workloads.cards.sharding_peak import sharding_peak
from workloads.laws.live_tensors import Prediction
from workloads.laws.memory import paper_states
from workloads.laws.sharding import Sharding, sharded_states, sharded_transfers
from workloads.laws.terms import NotCovered, States, Transfer

SHARD_RANKS = Option(
    name="shard_ranks", default=2, minimum=2, help="neighbouring ranks that share a weight, such as those of a node"
)


def _shard_ranks(setup: Setup) -> int:
    return int(setup.options[SHARD_RANKS.name])


def _mesh(setup: Setup) -> dict[str, int]:
    shard_ranks = _shard_ranks(setup)
    return {"replicate": setup.ranks // shard_ranks, "shard": shard_ranks}


def _refusals(setup: Setup) -> list[str]:
    shard_ranks, fitting = _shard_ranks(setup), divisors(setup.ranks)
    if shard_ranks not in fitting:
        remedy = f"take {' or '.join(map(str, fitting))}" if fitting else f"take --ranks {2 * shard_ranks}, or fsdp"
        return [
            f"option shard_ranks is {shard_ranks}; it must divide {setup.ranks} ranks into two groups or more: {remedy}"
        ]
    return sharding_refusals(setup, ranks=shard_ranks)


def _sharding(setup: Setup) -> Sharding:
    return sharding_of(setup, ranks=_shard_ranks(setup), is_resharded=True)


def _transfers(setup: Setup) -> tuple[Transfer, ...]:
    return sharded_transfers(_sharding(setup))


def _states(setup: Setup, rank: int) -> States:
    return sharded_states(_sharding(setup), rank)


def _paper_states(setup: Setup) -> States:
    return paper_states(setup.shape.parameters(), stage=3, data_ranks=_shard_ranks(setup))


def _peak(setup: Setup) -> Prediction | NotCovered:
    return sharding_peak(setup, _sharding(setup))


CARD = Card(
    name="hsdp",
    kind="training",
    summary="hybrid sharded: as fsdp within each group of ranks, gradients averaged between groups",
    version=1,
    options=(*SHARDING_OPTIONS, SHARD_RANKS, RESHARD),
    needs=Needs(minimum_ranks=4),
    parity=Parity(
        kind="exact",
        variants=(
            {},
            {"accumulate": 2},
            {"wrap": "layer", "checkpoint": "full"},
        ),
    ),
    mesh=_mesh,
    refusals=_refusals,
    transfers=_transfers,
    states=_states,
    notes=sharding_notes,
    paper_states=_paper_states,
    peak=_peak,
)
