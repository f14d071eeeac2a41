"""The options that every training strategy takes, and what `parts.training` and `parts.data` refuse of them."""

from __future__ import annotations

from workloads.cards.attention_options import ATTENTION, attention_refusals
from workloads.cards.card import Option, Setup
from workloads.laws.activations import Checkpoint, Microbatch
from workloads.laws.learning_rate import RULES, Rule, factor
from workloads.laws.terms import NotCovered

ACCUMULATE = Option(
    name="accumulate", default=1, minimum=1, help="parts that a rank's batch is split into, one after another"
)
MICROBATCHES = Option(
    name="microbatches", default=4, minimum=1, help="parts that a batch is split into, which follow each other"
)
"""Of a pipeline, in place of `accumulate`."""

GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""
COLLECTIVES_IN_GRAPHS = "the block's own collectives would be in the graph, where NCCL's Flight Recorder sees none"
GATHERED_IN_GRAPHS = "FSDP2 gathers its weights to another place each time, for which a graph is recorded anew"

TRAINING_OPTIONS: tuple[Option, ...] = (
    ACCUMULATE,
    Option(name="learning_rate", default=3e-4, minimum=0.0, help="of AdamW"),
    Option(
        name="lr_rule",
        default="base",
        choices=RULES,
        help="the rate with more data ranks: base as given, linear times their number, sqrt times its square root",
    ),
    Option(name="lr_warm_up", default=0, minimum=0, help="steps in which the rate grows from the given to the scaled"),
    Option(name="clip", default=1.0, minimum=0.0, help="largest norm of the gradient; 0 does not clip"),
    Option(
        name="checkpoint",
        default="none",
        choices=("none", "full", "selective"),
        help="activations recomputed in backward: none, whole blocks, or all but products and attention",
    ),
    Option(
        name="compile",
        default="none",
        choices=("none", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        help="mode of torch.compile, block by block",
    ),
    ATTENTION,
    Option(name="workers", default=1, minimum=0, help="processes that make a rank's batches; 0: in the step"),
    Option(name="loader_delay_ms", default=0.0, minimum=0.0, help="slows each batch on purpose"),
)


def parts_option(setup: Setup) -> Option:
    """The option that says how many parts a data rank's batch is split into."""
    return MICROBATCHES if MICROBATCHES.name in setup.options else ACCUMULATE


def parts(setup: Setup) -> int:
    """Microbatches that a data rank's batch is split into."""
    return int(setup.options[parts_option(setup).name])


def local_batch(setup: Setup, data_ranks: int) -> int:
    """Sequences that one data rank takes through the model at a time: the effective batch over ranks and parts."""
    return setup.shape.batch // (data_ranks * parts(setup))


def rate_factor(setup: Setup, *, data_ranks: int, step: int) -> float:
    """What a step, counted from 0, multiplies the learning rate by, where so many ranks share each batch."""
    rule: Rule = setup.options["lr_rule"]  # type: ignore[assignment]  # The card allows no other word.
    return factor(rule, data_ranks=data_ranks, warm_up=int(setup.options["lr_warm_up"]), step=step)


def microbatch(setup: Setup, data_ranks: int) -> Microbatch:
    """The tensors of one of a rank's microbatches."""
    checkpoint: Checkpoint = setup.options["checkpoint"]  # type: ignore[assignment]  # The card allows no other word.
    return Microbatch(
        shape=setup.shape,
        sequences=local_batch(setup, data_ranks),
        precision=setup.precision,
        checkpoint=checkpoint,
    )


def peak_not_covered(setup: Setup) -> NotCovered | None:
    """Why the law of activations does not tell this setup's peak, whatever the strategy; None where it may."""
    if setup.device != "cpu":
        return NotCovered(reason="the law of activations is that of the CPU's kernels")
    if setup.options["compile"] != "none":
        return NotCovered(reason="compiled blocks keep what the compiler chooses")
    return None


def training_refusals(setup: Setup, data_ranks: int) -> list[str]:
    """Why no strategy could train so. data_ranks: those that a batch is shared out over."""
    return [*batch_refusals(setup, data_ranks), *_rate_refusals(setup), *attention_refusals(setup)]


def batch_refusals(setup: Setup, data_ranks: int) -> list[str]:
    """Why the batch cannot be shared out over data ranks and parts, with the numbers that could."""
    split = parts(setup)
    shares_of_all = data_ranks * split
    batch = setup.shape.batch
    if batch % shares_of_all == 0:
        return []
    shares = f"{data_ranks} data ranks" + (f" x {parts_option(setup).name} {split}" if split > 1 else "")
    lower = batch - batch % shares_of_all
    upper = lower + shares_of_all
    fitting = f"{lower} or {upper}" if lower else str(upper)
    return [f"batch {batch} cannot be shared equally by {shares}; --batch {fitting} would fit"]


def graph_refusals(setup: Setup, because: str) -> list[str]:
    """Why compiled blocks cannot be CUDA graphs.

    because: what goes wrong in this strategy. Bucket hooks of DistributedDataParallel run beside the blocks: no reason.
    """
    mode = setup.options["compile"]
    if setup.device != "cuda" or mode not in GRAPH_MODES:
        return []
    return [
        f"option compile is {mode}, which replays a block as a CUDA graph; {because}: take compile=default, or"
        " max-autotune-no-cudagraphs"
    ]


def _rate_refusals(setup: Setup) -> list[str]:
    """Why the learning rate cannot grow."""
    options = setup.options
    if options["lr_rule"] == "base" and options["lr_warm_up"]:
        return [
            f"option lr_warm_up is {options['lr_warm_up']} with lr_rule=base, where the rate stays as given and nothing"
            " grows: leave it out, or take lr_rule=linear or sqrt"
        ]
    return []
