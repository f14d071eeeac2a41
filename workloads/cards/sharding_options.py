"""The options that strategies on `fully_shard` share: their words, what is refused of them, what laws make of them."""

from __future__ import annotations

from collections.abc import Iterator

from workloads.cards.card import Option, Setup
from workloads.cards.training_options import (
    GATHERED_IN_GRAPHS,
    TRAINING_OPTIONS,
    graph_refusals,
    training_refusals,
)
from workloads.laws.sharding import Sharding, Wrap

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
    """Why this setup cannot be divided so. ranks: those that share a weight."""
    return [
        *training_refusals(setup, data_ranks=setup.ranks),
        *_reshard_refusals(setup, ranks),
        *_combination_refusals(setup),
    ]


def sharding_of(setup: Setup, *, ranks: int, is_resharded: bool) -> Sharding:
    """The setup as the laws see it. ranks: those that share a weight."""
    options = setup.options
    wrap: Wrap = options["wrap"]  # type: ignore[assignment]  # The card allows no other word.
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
        # On gloo FSDP2 waits for each collective where it begins.
        is_overlapped=setup.backend == "nccl",
    )


def divisors(number: int) -> list[int]:
    """What divides the number, without 1 and the number itself."""
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
