"""Spec of `tensor_parallel`: every matrix product divided among ranks, which all train on the same sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd

from workloads.core.cuda_setup import cuda_model, cuda_peak_not_covered
from workloads.core.precision_options import DIVIDED_ROWS, NO_MASTER, stream_bytes
from workloads.cost_models.absent import Absent
from workloads.cost_models.cuda.peak import replicated_peak
from workloads.cost_models.memory import Weights, paper_states
from workloads.cost_models.peak_memory import Prediction, fresh_gradients, step_peak
from workloads.cost_models.terms import States, Transfer
from workloads.options import (
    COLLECTIVES_IN_GRAPHS,
    TRAINING_OPTIONS,
    checkpoint_every,
    graph_refusals,
    local_batch,
    microbatch,
    microbatch_count,
    numbers_agreed,
    peak_not_covered,
    tied_refusals,
    training_refusals,
    unchunked_refusals,
)
from workloads.spec import DIVIDED_SUMS_LIMIT, ELEMENT_BYTES, Option, Parity, Search, Setup, StrategySpec
from workloads.tensor_parallel.cost_model import (
    TensorTraffic,
    paper_activation_bytes,
    shard_microbatch,
    tensor_parallel_peak,
    tensor_parallel_states,
)

# Shared with `three_d`: the option that also divides the stream, and refusals.

SEQUENCE_PARALLEL = Option(
    name="sequence_parallel",
    default=False,
    help="shard the residual stream and norms by positions: all_gather and reduce_scatter in place of all_reduce",
    search=Search(values=(False, True), falls=True),
)


def divisibility_refusals(setup: Setup, *, ranks: int, option: str | None = None) -> Iterator[str]:
    """Yield why these ranks cannot divide the model's products equally, with numbers of ranks that could.

    option: the option that sets their number, if it is not all ranks.
    """
    shape = setup.shape
    sharded = {
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "mlp_width": shape.mlp_width,
        "vocabulary": shape.vocabulary,
    }
    if setup.options[SEQUENCE_PARALLEL.name]:
        sharded["sequence"] = shape.sequence
    uneven = [f"{name} {size}" for name, size in sharded.items() if size % ranks]
    if uneven:
        most = gcd(*sharded.values())
        fitting = [str(count) for count in range(1, most + 1) if most % count == 0]
        # Megatron copies kv heads if there are more ranks. DTensor's plan divides a weight or keeps it whole: for
        # copies on some ranks of an axis, it would neither sum the gradients nor know the norm.
        single = "; no kv head is copied to a second rank" if ranks > shape.kv_heads else ""
        noun = "rank" if fitting == ["1"] else "ranks"
        sharing, fit = (f"{ranks} ranks", f"{noun} would fit") if option is None else (f"{option} {ranks}", "would fit")
        yield (
            f"{' and '.join(uneven)} cannot be shared equally by {sharing}; {' or '.join(fitting)} {fit}"
            f" {', '.join(sharded)}{single}"
        )


def compile_refusals(setup: Setup, *, ranks: int) -> Iterator[str]:
    """Yield why divided blocks cannot be compiled."""
    options = setup.options
    if ranks > 1:
        yield from graph_refusals(setup, COLLECTIVES_IN_GRAPHS)
    if ranks > 1 and options["compile"] != "none" and options["checkpoint"] == "full":
        yield (
            f"option compile is {options['compile']} with checkpoint=full; torch 2.13 cannot compile sharded blocks"
            " that are recomputed in full: use checkpoint=selective or none"
        )


LOSS_PARALLEL = Option(
    name="loss_parallel",
    default=False,
    help="keep the logits sharded by vocabulary, and compute the loss from the shards",
    search=Search(values=(False, True), falls=True),
)
ASYNC_TP = Option(
    name="async_tp",
    default=False,
    help="overlap collectives with neighbouring matrix products; CUDA, compiled blocks only",
)


def _async_refusals(setup: Setup, *, ranks: int) -> Iterator[str]:
    """Yield why torch cannot hide collectives behind products here."""
    if not setup.options[ASYNC_TP.name]:
        return
    if setup.device != "cuda":
        yield (
            f"option async_tp is true on {setup.device}; it needs torch's symmetric memory, which only GPUs have:"
            " leave it out, or use --device cuda"
        )
        return
    if setup.options["compile"] == "none":
        yield (
            "option async_tp is true with compile=none, but the compiler is what splits the products; use"
            " compile=default"
        )
    if not setup.options[SEQUENCE_PARALLEL.name]:
        yield (
            "option async_tp is true with sequence_parallel=false, whose all_reduce it cannot overlap: only all_gather"
            " and reduce_scatter; use sequence_parallel=true"
        )
    if ranks == 1:
        yield "option async_tp is true on 1 rank, which sends nothing; leave it out, or use --ranks 2"


SHARDED_HEAD = "ranks share the head's vocabulary and would gather each chunk's logits again in backward"
"""Why the loss is not computed in chunks; part of a message."""


def divided_weights(ranks: int) -> Mapping[Weights, str]:
    """Return the values of the option `weights` that this many tensor ranks refuse, each with the reason."""
    return {"bf16": NO_MASTER, "fp8": DIVIDED_ROWS} if ranks > 1 else {"bf16": NO_MASTER}


class TensorParallelSpec(StrategySpec):
    name = "tensor_parallel"
    summary = "each matrix product sharded over ranks, by columns and then by rows (Megatron-LM, on DTensor)"
    options = (*TRAINING_OPTIONS, SEQUENCE_PARALLEL, LOSS_PARALLEL, ASYNC_TP)
    parity = Parity(
        half_weights_limit=DIVIDED_SUMS_LIMIT,
        variants=(
            {},
            {"sequence_parallel": True},
            {"loss_parallel": True, "accumulate": 2},
            {"sequence_parallel": True, "loss_parallel": True, "checkpoint": "full", "accumulate": 2},
            {"sequence_parallel": True, "checkpoint": "selective"},
        ),
    )

    def mesh(self, setup: Setup) -> dict[str, int]:
        return {"tensor": setup.ranks}

    def refusals(self, setup: Setup) -> list[str]:
        return [
            *training_refusals(setup, data_ranks=1, weights_refused=divided_weights(setup.ranks)),
            *unchunked_refusals(setup, SHARDED_HEAD),
            *tied_refusals(setup, "ranks divide the embedding by columns and the head by words"),
            *divisibility_refusals(setup, ranks=setup.ranks),
            *compile_refusals(setup, ranks=setup.ranks),
            *_async_refusals(setup, ranks=setup.ranks),
        ]

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        options = setup.options
        return TensorTraffic(
            shape=setup.shape,
            ranks=setup.ranks,
            sequences=local_batch(setup, data_ranks=1),
            microbatches=microbatch_count(setup),
            product_bytes=ELEMENT_BYTES[setup.precision],
            stream_element_bytes=stream_bytes(setup),
            is_stream_sharded=bool(options[SEQUENCE_PARALLEL.name]),
            is_loss_sharded=bool(options[LOSS_PARALLEL.name]),
            is_recomputed=options["checkpoint"] != "none",
            recomputed_every=checkpoint_every(setup),
            numbers=numbers_agreed(setup),
            has_all_to_all=setup.device == "cuda",
        ).transfers

    def states(self, setup: Setup, rank: int) -> States:
        return tensor_parallel_states(setup.shape, setup.ranks)

    def paper_states(self, setup: Setup) -> States:
        return paper_states(setup.shape.parameters(), stage=0, data_ranks=1, model_ranks=setup.ranks)

    def paper_activations(self, setup: Setup) -> int:
        full = microbatch(setup, data_ranks=1)
        return paper_activation_bytes(
            setup.shape,
            full.sequences,
            full.checkpoint,
            checkpoint_every=full.checkpoint_every,
            ranks=setup.ranks,
            is_stream_sharded=bool(setup.options[SEQUENCE_PARALLEL.name]),
        )

    def peak(self, setup: Setup) -> Prediction | Absent:
        if setup.device == "cuda":
            return self._cuda_peak(setup)
        if (reason := peak_not_covered(setup)) is not None:
            return reason
        states = tensor_parallel_states(setup.shape, setup.ranks)
        backwards = fresh_gradients(states.gradients_bytes, microbatch_count(setup))
        full = microbatch(setup, data_ranks=1)
        if setup.ranks == 1:
            return step_peak(full, states=states, backwards=backwards)
        own = shard_microbatch(
            full,
            ranks=setup.ranks,
            is_stream_sharded=bool(setup.options[SEQUENCE_PARALLEL.name]),
            is_loss_sharded=bool(setup.options[LOSS_PARALLEL.name]),
        )
        return tensor_parallel_peak(own, states=states, backwards=backwards)

    def _cuda_peak(self, setup: Setup) -> Prediction | Absent:
        if (reason := cuda_peak_not_covered(setup)) is not None:
            return reason
        model = replace(
            cuda_model(setup, data_ranks=1),
            tensor_ranks=setup.ranks,
            is_stream_sharded=bool(setup.options[SEQUENCE_PARALLEL.name]) and setup.ranks > 1,
            is_loss_sharded=bool(setup.options[LOSS_PARALLEL.name]) and setup.ranks > 1,
        )
        return replicated_peak(model, states=self.states(setup, 0), microbatches=microbatch_count(setup))

    def notes(self, setup: Setup) -> list[str]:
        if setup.ranks == 1 or setup.device == "cuda" or not setup.options[SEQUENCE_PARALLEL.name]:
            return []
        return [
            "torch reshards the embedding's output from columns to positions by an all_gather of the full tensor on"
            " cpu, and on cuda by an all_to_all, which sends each rank its own part only"
        ]
