"""Specs of the strategies on torch's `fully_shard` (FSDP2): `fsdp`, `hsdp` and `zero2`, with their shared options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from workloads.cost_models.memory import paper_states
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.terms import NotCovered, States, Transfer
from workloads.fsdp.cost_model import Sharding, Wrap, building_bytes, sharded_states, sharded_transfers
from workloads.fsdp.peak_memory import sharded_step_peak
from workloads.options import (
    GATHERED_IN_GRAPHS,
    TRAINING_OPTIONS,
    graph_refusals,
    microbatch,
    offload_notes,
    peak_not_covered,
    training_refusals,
)
from workloads.spec import Needs, Option, OptionValue, Parity, Setup, StrategySpec

SHARDING_OPTIONS: tuple[Option, ...] = (
    *TRAINING_OPTIONS,
    Option(
        name="wrap",
        default="block",
        choices=("block", "layer"),
        help="what is gathered together: a block, or its attention and its MLP each by itself",
    ),
    Option(
        name="reduce_dtype",
        default="fp32",
        choices=("fp32", "bf16"),
        help="what gradients are rounded to before they are reduced (and, whole, accumulated)",
    ),
    Option(
        name="offload",
        default=False,
        help="keep weights, gradients and optimizer states on the host; on a CPU this is control flow only",
    ),
    Option(
        name="prefetch",
        default=0,
        minimum=0,
        help="units gathered ahead of the one that computes; 0: as FSDP2 does by itself",
    ),
)

RESHARD = Option(
    name="reshard",
    default=0,
    minimum=0,
    help="ranks that share a weight between forward and backward, such as those of a node; 0: all that share it",
)


def sharding_refusals(setup: Setup, *, ranks: int) -> list[str]:
    """Return why this setup cannot be divided so. ranks: those that share a weight."""
    return [
        *training_refusals(setup, data_ranks=setup.ranks),
        *_reshard_refusals(setup, ranks),
        *_combination_refusals(setup),
    ]


def sharding_of(setup: Setup, *, ranks: int, is_resharded: bool) -> Sharding:
    """Describe the setup to the cost model. ranks: those that share a weight."""
    options = setup.options
    wrap: Wrap = options["wrap"]  # type: ignore[assignment]  # The option allows no other word.
    return Sharding(
        shape=setup.shape,
        ranks=ranks,
        replicas=setup.ranks // ranks,
        wrap=wrap,
        is_resharded=is_resharded,
        resharded_ranks=int(options.get(RESHARD.name, 0)) or None,
        microbatches=int(options["accumulate"]),
        reduced_bytes=2 if options["reduce_dtype"] == "bf16" else 4,
        numbers=(float(options["clip"]) > 0) + (setup.precision == "fp16"),
        is_copied_away=bool(options["offload"]) and setup.device == "cuda",
        # On gloo FSDP2 waits for each collective as soon as it has begun it.
        is_overlapped=setup.backend == "nccl",
    )


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, without 1 and itself."""
    return [candidate for candidate in range(2, number) if number % candidate == 0]


def _reshard_refusals(setup: Setup, ranks: int) -> Iterator[str]:
    reshard = int(setup.options.get(RESHARD.name, 0))
    if reshard == 1:
        yield "option reshard is 1, where each rank would keep all weights gathered; zero2 is the strategy that does so"
    elif reshard and ranks % reshard:
        fitting = " or ".join(map(str, [0, *divisors(ranks)]))
        yield f"option reshard is {reshard}; it must divide the {ranks} ranks that share a weight: {fitting}"


def _combination_refusals(setup: Setup) -> Iterator[str]:
    options = setup.options
    yield from graph_refusals(setup, GATHERED_IN_GRAPHS)
    if options["prefetch"] and setup.backend == "gloo":
        yield (
            f"option prefetch is {options['prefetch']} on gloo, where FSDP2 waits for each collective where it begins:"
            " nothing would be hidden, and more held; leave it out, or take nccl"
        )
    if options["compile"] != "none" and options["wrap"] == "layer":
        yield (
            f"option wrap is layer with compile={options['compile']}; a compiled block is one graph, and cannot be"
            " gathered in halves: take wrap=block"
        )
    if options["offload"] and setup.precision == "fp16" and setup.device == "cuda":
        yield (
            "option offload is true in fp16 on cuda, whose ranks would have to agree on overflow by tensors of the"
            " host, which nccl does not move; take --precision bf16"
        )


def sharding_peak(setup: Setup, sharding: Sharding) -> Prediction | NotCovered:
    """Predict the peak on the rank that holds most. sharding: the setup as the cost model sees it."""
    if (reason := _not_covered(setup, sharding)) is not None:
        return reason
    states = max(
        (sharded_states(sharding, rank) for rank in range(sharding.ranks)), key=lambda held: held.optimizer_bytes
    )
    kept_ranks = int(setup.options.get(RESHARD.name, 0))
    return sharded_step_peak(
        microbatch(setup, setup.ranks),
        sharding=sharding,
        states=states,
        kept_ranks=kept_ranks if 0 < kept_ranks < sharding.ranks else None,
    )


def _not_covered(setup: Setup, sharding: Sharding) -> NotCovered | None:
    if (reason := peak_not_covered(setup)) is not None:
        return reason
    options = setup.options
    if sharding.is_overlapped or options["prefetch"]:
        return NotCovered(reason="how many gathered units live at once is the backend's and prefetch's to choose")
    if options["offload"]:
        return NotCovered(reason="offloading copies weights and gradients, which the law does not follow")
    if options["reduce_dtype"] == "bf16":
        return NotCovered(reason="gradients rounded before they are reduced live in two precisions at once")
    if sharding.ranks == 1:
        return NotCovered(reason="one rank alone gathers and reduces by other ways than the law's")
    return None


def all_share(setup: Setup) -> dict[str, int]:
    """Return the mesh in which all ranks share each weight."""
    return {"shard": setup.ranks}


def _no_refusals(setup: Setup) -> list[str]:
    return []


def rounded_gradients(setup: Setup) -> str | None:
    """Return why gradients are not those of one rank: they are rounded before reduction; None where they are not."""
    if setup.options["reduce_dtype"] == "fp32":
        return None
    return f"reduce_dtype={setup.options['reduce_dtype']} rounds each gradient; take reduce_dtype=fp32"


def sharded_spec(
    *,
    name: str,
    entry: str,
    summary: str,
    options: tuple[Option, ...],
    stage: Literal[2, 3],
    variants: tuple[Mapping[str, OptionValue], ...],
    needs: Needs | None = None,
    mesh: Callable[[Setup], dict[str, int]] = all_share,
    mesh_refusals: Callable[[Setup], list[str]] = _no_refusals,
) -> StrategySpec:
    """Make the spec of a strategy from what distinguishes it; the cost model is `workloads.fsdp.cost_model`.

    stage: of ZeRO; in the third, weights are divided again between forward and backward.
    variants: of its parity.
    mesh: its axis `shard` has the ranks that share a weight.
    mesh_refusals: why there is no such mesh; other refusals are checked only where there is one.
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

    return StrategySpec(
        name=name,
        entry=entry,
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


# fsdp: weights, gradients and optimizer states are divided; each block is gathered when it computes.

FSDP_CARD = sharded_spec(
    name="fsdp",
    entry="workloads.fsdp.strategy:build_fsdp",
    summary="fully sharded (ZeRO-3): weights, gradients and optimizer divided; blocks gathered when they compute",
    options=(*SHARDING_OPTIONS, RESHARD),
    stage=3,
    variants=(
        {},
        {"wrap": "layer"},
        {"accumulate": 2},
        {"checkpoint": "full"},
        {"wrap": "layer", "checkpoint": "selective", "accumulate": 2},
        {"offload": True},
    ),
)


# hsdp: the model is divided within each group of ranks, and gradients are averaged between groups.

SHARD_RANKS = Option(
    name="shard_ranks", default=2, minimum=2, help="neighbouring ranks that share a weight, such as those of a node"
)


def _shard_ranks(setup: Setup) -> int:
    return int(setup.options[SHARD_RANKS.name])


def _mesh(setup: Setup) -> dict[str, int]:
    shard_ranks = _shard_ranks(setup)
    return {"replicate": setup.ranks // shard_ranks, "shard": shard_ranks}


def _mesh_refusals(setup: Setup) -> list[str]:
    shard_ranks, fitting = _shard_ranks(setup), divisors(setup.ranks)
    if shard_ranks in fitting:
        return []
    remedy = f"take {' or '.join(map(str, fitting))}" if fitting else f"take --ranks {2 * shard_ranks}, or fsdp"
    return [
        f"option shard_ranks is {shard_ranks}; it must divide {setup.ranks} ranks into two groups or more: {remedy}"
    ]


HSDP_CARD = sharded_spec(
    name="hsdp",
    entry="workloads.fsdp.strategy:build_hsdp",
    summary="hybrid sharded: as fsdp within each group of ranks, gradients averaged between groups",
    options=(*SHARDING_OPTIONS, SHARD_RANKS, RESHARD),
    stage=3,
    variants=(
        {},
        {"accumulate": 2},
        {"wrap": "layer", "checkpoint": "full"},
    ),
    needs=Needs(minimum_ranks=4),
    mesh=_mesh,
    mesh_refusals=_mesh_refusals,
)


# zero2: gradients and optimizer states are divided; weights are gathered once a step.

ZERO2_CARD = sharded_spec(
    name="zero2",
    entry="workloads.fsdp.strategy:build_zero2",
    summary="ZeRO-2: gradients and optimizer divided; weights gathered once a step, and divided between steps too",
    options=SHARDING_OPTIONS,
    stage=2,
    variants=(
        {},
        {"wrap": "layer"},
        {"accumulate": 2},
        {"checkpoint": "full"},
    ),
)
