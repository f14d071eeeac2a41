"""Specs of the strategies on torch's `fully_shard` (FSDP2): `fsdp`, `hsdp` and `zero2`, with their shared options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from workloads.core.cuda_setup import cuda_model, cuda_peak_not_covered
from workloads.core.learning_rate import RECIPE
from workloads.core.precision_options import GRAD_DTYPE, grad_dtype_of, gradient_bytes, stream_bytes
from workloads.cost_models.absent import Absent
from workloads.cost_models.memory import Weights, paper_states
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.terms import States, Transfer
from workloads.fsdp.cost_model import (
    Sharding,
    Wrap,
    largest_gathered_bytes,
    sharded_states,
    sharded_step_peak,
    sharded_transfers,
    unreduced_bytes,
)
from workloads.fsdp.cuda_peak import sharded_cuda_peak
from workloads.options import (
    GATHERED_IN_GRAPHS,
    TRAINING_OPTIONS,
    graph_refusals,
    microbatch,
    numbers_agreed,
    offload_notes,
    peak_not_covered,
    training_refusals,
)
from workloads.spec import Needs, Option, OptionValue, Parity, Search, Setup, StrategySpec

REDUCE = Option(
    name="reduce",
    default="each",
    choices=("each", "last"),
    help="with accumulate: reduce gradients in each microbatch, or only in the last, with whole ones until then",
    search=Search(values=("last", "each"), falls=True),
    added_later=True,
)
SHARDING_OPTIONS: tuple[Option, ...] = (
    *TRAINING_OPTIONS,
    Option(
        name="wrap",
        default="block",
        choices=("block", "layer"),
        help="unit of sharding and gathering: a block, or its attention and its MLP separately",
        search=Search(values=("block", "layer"), falls=True),
    ),
    REDUCE,
    Option(
        name="offload",
        default=False,
        help="keep weights, gradients and optimizer states on the host; on a CPU this is control flow only",
    ),
    Option(
        name="prefetch",
        default=0,
        minimum=0,
        help="units gathered ahead of the one that computes; 0: FSDP2's own prefetching",
    ),
)

RESHARD = Option(
    name="reshard",
    default=0,
    minimum=0,
    help="ranks over which weights are sharded between forward and backward, such as a node's; 0: their whole group",
)
SHARD_RANKS = Option(
    name="shard_ranks",
    default=2,
    minimum=2,
    help="neighbouring ranks over which the model is sharded, such as a node's",
    search=Search(values="ranks"),
)


SHARDS_ARE_MASTERS = (
    "FSDP2's fp32 shards already are the master, so that bf16 weights would only add memory; use weights=bf16_compute"
)


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, without 1 and the number itself."""
    return [candidate for candidate in range(2, number) if number % candidate == 0]


def _sharding_refusals(setup: Setup, ranks: int) -> Iterator[str]:
    """Yield why FSDP2 cannot divide this setup's weights. ranks: those that share a weight."""
    options, reshard = setup.options, int(setup.options.get(RESHARD.name, 0))
    if reshard == 1:
        yield "option reshard is 1, with which each rank would keep all weights gathered; use zero2, which does that"
    elif reshard and ranks % reshard:
        fitting = " or ".join(map(str, [0, *_divisors(ranks)]))
        yield f"option reshard is {reshard}; it must divide the {ranks} ranks of a shard group: use {fitting}"
    if REDUCE.of(setup) == "last" and options["accumulate"] == 1:
        yield (
            f"option {REDUCE.name} is last with accumulate=1, where the only microbatch is the last: leave it out, or"
            " use accumulate=2 or more"
        )
    yield from graph_refusals(setup, GATHERED_IN_GRAPHS)
    if options["prefetch"] and setup.backend == "gloo":
        yield (
            f"option prefetch is {options['prefetch']} on gloo, where FSDP2 waits for each collective at once:"
            " prefetching would hide nothing and hold more memory; leave it out, or use --backend nccl"
        )
    if options["compile"] != "none" and options["wrap"] == "layer":
        yield (
            f"option wrap is layer with compile={options['compile']}; a compiled block is one graph, and its"
            " attention and MLP cannot be gathered separately: use wrap=block"
        )
    if options["offload"] and setup.precision == "fp16" and setup.device == "cuda":
        yield (
            "option offload is true in fp16 on cuda, whose ranks would agree on overflow by tensors of the host, which"
            " nccl does not reduce; use --precision bf16"
        )


class ShardedSpec(StrategySpec):
    """Base of the specs whose weights are divided by FSDP2; the cost model is `workloads.fsdp.cost_model`.

    stage: of ZeRO; in stage 3, weights are divided again between forward and backward.
    """

    stage: Literal[2, 3] = 3

    def mesh(self, setup: Setup) -> dict[str, int]:
        """Return the mesh; the ranks of its axis `shard` share a weight."""
        return {"shard": setup.ranks}

    def sharding(self, setup: Setup) -> Sharding:
        """Describe the setup to the cost model."""
        options, ranks = setup.options, self.mesh(setup)["shard"]
        wrap: Wrap = options["wrap"]  # type: ignore[assignment]  # The option allows no other word.
        return Sharding(
            shape=setup.shape,
            ranks=ranks,
            replicas=setup.ranks // ranks,
            wrap=wrap,
            is_resharded=self.stage == 3,
            resharded_ranks=int(options.get(RESHARD.name, 0)) or None,
            microbatches=int(options["accumulate"]),
            is_reduced_last=REDUCE.of(setup) == "last",
            gathered_bytes=stream_bytes(setup),
            reduced_bytes=gradient_bytes(setup),
            numbers=numbers_agreed(setup),
            is_copied_away=bool(options["offload"]) and setup.device == "cuda",
            # On gloo FSDP2 waits for each collective as soon as it has started it.
            is_overlapped=setup.backend == "nccl",
        )

    def refusals(self, setup: Setup) -> list[str]:
        shard_ranks = self.mesh(setup)["shard"]
        return [
            *training_refusals(
                setup, data_ranks=setup.ranks, weights_refused={"bf16": SHARDS_ARE_MASTERS}, is_reduced_rounded=True
            ),
            *_sharding_refusals(setup, shard_ranks),
        ]

    def incomparable(self, setup: Setup) -> str | None:
        if grad_dtype_of(setup) == "fp32":
            return None
        return f"grad_dtype={grad_dtype_of(setup)} rounds each gradient; use grad_dtype=fp32"

    def default_weights(self, setup: Setup) -> Weights:
        return "bf16_compute" if setup.precision == "bf16" else "autocast"

    def options_in_key(self, values: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
        """See `StrategySpec`; older keys hold `grad_dtype` by its former name, even at its default."""
        named = super().options_in_key(values)
        if GRAD_DTYPE.name in values:
            named["reduce_dtype"] = named.pop(GRAD_DTYPE.name, GRAD_DTYPE.default)
        return named

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        return sharded_transfers(self.sharding(setup))

    def states(self, setup: Setup, rank: int) -> States:
        return sharded_states(self.sharding(setup), rank)

    def gathered_bytes(self, setup: Setup, rank: int) -> int:
        return largest_gathered_bytes(self.sharding(setup))

    def unreduced_bytes(self, setup: Setup, rank: int) -> int:
        return unreduced_bytes(self.sharding(setup))

    def paper_states(self, setup: Setup) -> States:
        return paper_states(setup.shape.parameters(), stage=self.stage, data_ranks=self.mesh(setup)["shard"])

    def peak(self, setup: Setup) -> Prediction | Absent:
        sharding = self.sharding(setup)
        if setup.device == "cuda":
            return self._cuda_peak(setup, sharding)
        if (reason := peak_not_covered(setup)) is not None:
            return reason
        if sharding.is_overlapped or setup.options["prefetch"]:
            return Absent(reason="how many gathered units live at once depends on the backend and on prefetch")
        if setup.options["offload"]:
            return Absent(reason="the cost model does not cover offloading's copies of weights and gradients")
        if grad_dtype_of(setup) == "bf16":
            return Absent(reason="gradients rounded before they are reduced live in two precisions at once")
        if sharding.ranks == 1:
            return Absent(reason="one rank alone gathers and reduces by code that the cost model does not cover")
        states = max(
            (sharded_states(sharding, rank) for rank in range(sharding.ranks)),
            key=lambda states: states.optimizer_bytes,
        )
        kept_ranks = int(setup.options.get(RESHARD.name, 0))
        return sharded_step_peak(
            microbatch(setup, setup.ranks),
            sharding=sharding,
            states=states,
            kept_ranks=kept_ranks if 0 < kept_ranks < sharding.ranks else None,
        )

    def _cuda_peak(self, setup: Setup, sharding: Sharding) -> Prediction | Absent:
        if (reason := cuda_peak_not_covered(setup)) is not None:
            return reason
        if setup.options["offload"]:
            return Absent(reason="the cost model does not cover offloading's copies of weights and gradients")
        kept_ranks = int(setup.options.get(RESHARD.name, 0))
        return sharded_cuda_peak(
            cuda_model(setup, setup.ranks, is_gathered=True),
            sharding=sharding,
            states=sharded_states(sharding, 0),
            prefetch=int(setup.options["prefetch"]),
            kept_ranks=kept_ranks if 0 < kept_ranks < sharding.ranks else None,
        )

    def notes(self, setup: Setup) -> list[str]:
        return offload_notes(setup)


class FsdpSpec(ShardedSpec):
    """Spec of `fsdp`: weights, gradients and optimizer states are divided; a block is gathered when it computes."""

    name = "fsdp"
    summary = "fully sharded (ZeRO-3): weights, gradients and optimizer states sharded; blocks gathered to compute"
    options = (*SHARDING_OPTIONS, RESHARD)
    parity = Parity(
        variants=(
            {},
            {"wrap": "layer"},
            {"accumulate": 2},
            {"accumulate": 2, "reduce": "last"},
            {"checkpoint": "full"},
            {"wrap": "layer", "checkpoint": "selective", "accumulate": 2},
            {"checkpoint": "full", "checkpoint_every": 2, "accumulate": 2},
            {"offload": True},
            RECIPE,
            {"loss_chunks": 4, "checkpoint": "full", "accumulate": 2},
        )
    )


class HsdpSpec(ShardedSpec):
    """Spec of `hsdp`: the model is divided within each group of ranks, and gradients are averaged between groups."""

    name = "hsdp"
    summary = "hybrid sharded: as fsdp within each group of ranks, gradients averaged between groups"
    options = (*SHARDING_OPTIONS, SHARD_RANKS, RESHARD)
    needs = Needs(minimum_ranks=4)
    parity = Parity(
        variants=(
            {},
            {"accumulate": 2},
            {"wrap": "layer", "checkpoint": "full"},
            {"loss_chunks": 2},
        )
    )

    def mesh(self, setup: Setup) -> dict[str, int]:
        shard_ranks = int(setup.options[SHARD_RANKS.name])
        return {"replicate": setup.ranks // shard_ranks, "shard": shard_ranks}

    def refusals(self, setup: Setup) -> list[str]:
        shard_ranks, fitting = int(setup.options[SHARD_RANKS.name]), _divisors(setup.ranks)
        if shard_ranks in fitting:
            return super().refusals(setup)
        remedy = f"use {' or '.join(map(str, fitting))}" if fitting else f"use --ranks {2 * shard_ranks}, or fsdp"
        return [
            f"option shard_ranks is {shard_ranks}; it must divide {setup.ranks} ranks into two groups or more: {remedy}"
        ]


class Zero2Spec(ShardedSpec):
    """Spec of `zero2`: FSDP2 without resharding. Weights are gathered once a step and divided between steps.

    The paper's second stage keeps weights whole at all times, as `deepspeed` with stage=2 does.
    """

    name = "zero2"
    summary = (
        "FSDP2 without resharding: weights gathered once a step, states as ZeRO-3 between; deepspeed stage=2 is ZeRO-2"
    )
    stage = 2
    options = SHARDING_OPTIONS
    parity = Parity(
        variants=(
            {},
            {"wrap": "layer"},
            {"accumulate": 2},
            {"accumulate": 2, "reduce": "last"},
            {"checkpoint": "full"},
            {"loss_chunks": 2, "accumulate": 2},
        )
    )
