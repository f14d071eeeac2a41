"""The card of `ddp`: each rank holds the whole model and a share of the batch; gradients are averaged."""

from __future__ import annotations

from workloads.cards.card import Card, Needs, Option, Parity, Setup
from workloads.cards.training_options import TRAINING_OPTIONS, batch_refusals
from workloads.laws.terms import States, Transfer, replicated_states


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
    return (
        Transfer(
            collective="all_reduce",
            axis="data",
            payload_bytes=4 * setup.shape.parameters(),
            behind="backward" if setup.options["overlap"] else None,
        ),
    )


def _states(setup: Setup) -> States:
    return replicated_states(setup.shape)


CARD = Card(
    name="ddp",
    kind="training",
    summary="data parallel: whole model on each rank, gradients averaged while backward runs",
    version=1,
    options=(
        *TRAINING_OPTIONS,
        Option(name="overlap", default=True, help="average gradients during backward; false: once, after it"),
        Option(name="bucket_mb", default=25.0, minimum=0.001, help="MiB of gradients that are averaged together"),
    ),
    needs=Needs(),
    parity=Parity(
        kind="exact",
        variants=(
            {},
            {"overlap": False},
            {"bucket_mb": 0.1},
            {"accumulate": 2},
            {"accumulate": 2, "overlap": False},
            {"checkpoint": "full"},
        ),
    ),
    mesh=_mesh,
    refusals=_refusals,
    transfers=_transfers,
    states=_states,
)
