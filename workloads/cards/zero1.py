"""The card of `zero1`: as `ddp`, but each rank updates only some weights, and holds their optimizer states alone."""

from __future__ import annotations

from workloads.cards.card import Card, Needs, Option, Parity, Setup
from workloads.cards.training_options import TRAINING_OPTIONS, batch_refusals, microbatch, peak_not_covered
from workloads.laws.live_tensors import Prediction, bucketed_gradients, step_peak
from workloads.laws.memory import paper_states
from workloads.laws.partition import partitioned_states, sent_bytes
from workloads.laws.terms import NotCovered, States, Transfer, bucket_count


def _mesh(setup: Setup) -> dict[str, int]:
    return {"data": setup.ranks}


def _refusals(setup: Setup) -> list[str]:
    reasons = batch_refusals(setup, data_ranks=setup.ranks)
    if setup.options["compile"] != "none" and float(setup.options["bucket_mb"]) < 1:
        reasons.append(
            f"option bucket_mb is {setup.options['bucket_mb']} with compile={setup.options['compile']};"
            " torch.compile needs buckets of at least 1 MB"
        )
    return reasons


def _transfers(setup: Setup) -> tuple[Transfer, ...]:
    if setup.ranks == 1:
        return ()
    gradients_bytes = 4 * setup.shape.parameters()
    bucket_bytes = int(float(setup.options["bucket_mb"]) * 2**20)
    return (
        Transfer(
            collective="all_reduce",
            axis="data",
            payload_bytes=gradients_bytes,
            calls=bucket_count(gradients_bytes, bucket_bytes),
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
    options=(
        *TRAINING_OPTIONS,
        Option(name="bucket_mb", default=25.0, minimum=0.001, help="MiB of gradients that are averaged together"),
    ),
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
