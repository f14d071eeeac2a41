"""The card of `fsdp`: weights, gradients and optimizer states are divided; each block is gathered when it computes."""

from __future__ import annotations

from workloads.cards.card import Card, Needs, Parity, Setup
from workloads.cards.sharding_options import RESHARD, SHARDING_OPTIONS, sharding_notes, sharding_of, sharding_refusals
from workloads.cards.sharding_peak import sharding_peak
from workloads.laws.live_tensors import Prediction
from workloads.laws.memory import paper_states
from workloads.laws.sharding import Sharding, sharded_states, sharded_transfers
from workloads.laws.terms import NotCovered, States, Transfer


def _mesh(setup: Setup) -> dict[str, int]:
    return {"shard": setup.ranks}


def _refusals(setup: Setup) -> list[str]:
    return sharding_refusals(setup, ranks=setup.ranks)


def _sharding(setup: Setup) -> Sharding:
    return sharding_of(setup, ranks=setup.ranks, is_resharded=True)


def _transfers(setup: Setup) -> tuple[Transfer, ...]:
    return sharded_transfers(_sharding(setup))


def _states(setup: Setup, rank: int) -> States:
    return sharded_states(_sharding(setup), rank)


def _paper_states(setup: Setup) -> States:
    return paper_states(setup.shape.parameters(), stage=3, data_ranks=setup.ranks)


def _peak(setup: Setup) -> Prediction | NotCovered:
    return sharding_peak(setup, _sharding(setup))


CARD = Card(
    name="fsdp",
    kind="training",
    summary="fully sharded (ZeRO-3): weights, gradients and optimizer divided; blocks gathered when they compute",
    version=1,
    options=(*SHARDING_OPTIONS, RESHARD),
    needs=Needs(),
    parity=Parity(
        kind="exact",
        variants=(
            {},
            {"wrap": "layer"},
            {"accumulate": 2},
            {"checkpoint": "full"},
            {"wrap": "layer", "checkpoint": "selective", "accumulate": 2},
            {"offload": True},
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
