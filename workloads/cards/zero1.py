"""The card of `zero1`: as `ddp`, but each rank updates only some weights, and holds their optimizer states alone."""

from __future__ import annotations

from workloads.cards.card import Card, Needs, Parity, Setup
from workloads.cards.replica_options import BUCKET_MB, bucket_refusals, buckets
from workloads.cards.training_options import TRAINING_OPTIONS, microbatch, peak_not_covered, training_refusals
from workloads.laws.live_tensors import Prediction, bucketed_gradients, step_peak
from workloads.laws.memory import paper_states
from workloads.laws.partition import partitioned_states, sent_bytes
from workloads.laws.terms import NotCovered, States, Transfer


def _mesh(setup: Setup) -> dict[str, int]:
    return {"data": setup.ranks}


def _refusals(setup: Setup) -> list[str]:
    return [*training_refusals(setup, data_ranks=setup.ranks), *bucket_refusals(setup)]


def _transfers(setup: Setup) -> tuple[Transfer, ...]:
    if setup.ranks == 1:
        return ()
    return (
        Transfer(
            collective="all_reduce",
            axis="data",
            payload_bytes=4 * setup.shape.parameters(),
            calls=buckets(setup),
            behind="backward",
        ),
        Transfer(
            collective="broadcast",
            axis="data",
            payload_bytes=sent_bytes(setup.shape, setup.ranks),
            calls=setup.ranks,
        ),
    )


def _states(setup: Setup, rank: int) -> States:
    return partitioned_states(setup.shape, rank=rank, ranks=setup.ranks)


def _paper_states(setup: Setup) -> States:
    return paper_states(setup.shape.parameters(), stage=1, data_ranks=setup.ranks)


def _peak(setup: Setup) -> Prediction | NotCovered:
    if (reason := peak_not_covered(setup)) is not None:
        return reason
    states = max((_states(setup, rank) for rank in range(setup.ranks)), key=lambda held: held.optimizer_bytes)
    backwards = bucketed_gradients(states.gradients_bytes, int(setup.options["accumulate"]))
    return step_peak(microbatch(setup, setup.ranks), states=states, backwards=backwards)


def _notes(setup: Setup) -> list[str]:
    if setup.ranks == 1:
        return []
    shares = [f"{_states(setup, rank).optimizer_bytes:,}" for rank in range(setup.ranks)]
    return [f"whole weights are divided, and so not evenly: bytes of optimizer state by rank are {', '.join(shares)}"]


CARD = Card(
    name="zero1",
    kind="training",
    summary="ZeRO-1: as ddp, but optimizer states are divided among ranks by whole weights, unevenly",
    version=1,
    options=(*TRAINING_OPTIONS, BUCKET_MB),
    needs=Needs(),
    parity=Parity(
        kind="exact",
        variants=(
            {},
            {"bucket_mb": 0.1},
            {"accumulate": 2},
            {"checkpoint": "full"},
        ),
    ),
    mesh=_mesh,
    refusals=_refusals,
    transfers=_transfers,
    states=_states,
    notes=_notes,
    paper_states=_paper_states,
    peak=_peak,
)
