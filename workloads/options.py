"""The options that every training strategy takes, and what `parts.training` and `parts.data` refuse of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal, get_args

from workloads.cost_models.memory import Checkpoint, Microbatch
from workloads.cost_models.schedules import HALVED_BACKWARD, ScheduleName
from workloads.cost_models.terms import NotCovered, bucket_count
from workloads.spec import Option, OptionValue, Setup

# The option that pins attention's kernel on a GPU, and what is refused of it.

KernelName = Literal["cudnn", "flash", "efficient", "math"]
"""torch's kernels of scaled_dot_product_attention. math: all scores in memory, on any device and precision."""

ATTENTION = Option(
    name="attention",
    default="auto",
    choices=("auto", "cudnn", "flash", "efficient", "math"),
    help="kernel of attention on a GPU, so that strategies can be compared by the same; auto: torch's choice",
    added_later=True,
)
HEAD_MULTIPLE = 8
WIDEST_HEAD = 256
"""Elements of a head that torch's fused kernels on a GPU take."""
FP32_HEAD_MULTIPLE = 4
"""What the efficient kernel needs of a head in fp32."""


def pinned_kernel(setup: Setup) -> KernelName | None:
    """The kernel that the setup names; None where the choice is torch's."""
    word = ATTENTION.of(setup)
    return None if word == ATTENTION.default else word  # type: ignore[return-value]  # The option allows no other word.


def attention_refusals(setup: Setup) -> Iterator[str]:
    """Why the named kernel cannot attend; what depends on the GPU itself is told when the model is made."""
    kernel, width = pinned_kernel(setup), setup.shape.head_width
    if kernel is None:
        return
    if setup.device == "cpu":
        yield f"option attention is {kernel}, which chooses among a GPU's kernels; leave it out, or take --device cuda"
        return
    if kernel in ("cudnn", "flash") and setup.precision == "fp32":
        yield (
            f"option attention is {kernel} in fp32, which it does not compute in; take --precision bf16, or"
            " attention=efficient"
        )
        return
    multiple = FP32_HEAD_MULTIPLE if setup.precision == "fp32" else HEAD_MULTIPLE
    if kernel != "math" and (width % multiple or (kernel != "efficient" and width > WIDEST_HEAD)):
        most = "" if kernel == "efficient" else f" up to {WIDEST_HEAD}"
        yield (
            f"option attention is {kernel} with width / heads {width}, and it takes multiples of {multiple}{most}; take"
            f" such a --width for {setup.shape.heads} heads, or attention=math"
        )


# What a convergence check adds to the options of a case: the harness's own, which no card lists.
#
# So no command line sets them, `observatory list` does not show them, they are recorded where all options are, and no
# case that has them is comparable with one that has not.

Mistake = Literal["learning_rate", "sampler_epoch", "batch_statistics"]
"""What is made wrong on purpose. learning_rate: the rule that scales it is not applied. sampler_epoch: each epoch has
the order of the first. batch_statistics: each rank normalises by its own share of the batch."""

MISTAKES: tuple[Mistake, ...] = get_args(Mistake)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How a training is changed so that a check can see what it does.

    epoch_steps: after which the data begin anew in another order.
    data_ranks: that the rule of the learning rate counts, so that one rank trains at the rates of many.
    has_batch_norm: the model has one layer that normalises over the batch.
    is_reversed: each batch is read backwards, which changes nothing but the order of additions.
    """

    epoch_steps: int
    data_ranks: int
    has_batch_norm: bool
    is_reversed: bool = False
    mistakes: tuple[Mistake, ...] = ()

    def options(self) -> dict[str, OptionValue]:
        """It as options of a case."""
        return {
            "check_epoch_steps": self.epoch_steps,
            "check_data_ranks": self.data_ranks,
            "check_batch_norm": self.has_batch_norm,
            "check_reversed": self.is_reversed,
            "check_mistakes": ",".join(self.mistakes),
        }


def check_of(setup: Setup) -> Check | None:
    """What the setup's options say of a check; None where it is none."""
    options = setup.options
    if "check_epoch_steps" not in options:
        return None
    words = str(options["check_mistakes"]).split(",")
    return Check(
        epoch_steps=int(options["check_epoch_steps"]),
        data_ranks=int(options["check_data_ranks"]),
        has_batch_norm=bool(options["check_batch_norm"]),
        is_reversed=bool(options["check_reversed"]),
        mistakes=tuple(mistake for mistake in MISTAKES if mistake in words),
    )


def is_made(mistake: Mistake, setup: Setup) -> bool:
    """Whether this training makes the mistake."""
    check = check_of(setup)
    return check is not None and mistake in check.mistakes


# The options that say when messages between ranks begin, what is refused of them, and what a reader must know.

HIGH_PRIORITY = Option(
    name="high_priority_stream",
    default=False,
    help="on NCCL: send messages on a stream of high priority, so that they begin before computation that is queued",
    added_later=True,
)
DEFER_RECEIVES = Option(
    name="defer_receives",
    default=False,
    help="begin each receive only before the action that needs it, not as early as it can be (torch 2.13)",
    added_later=True,
)
FIRST_TO_DEFER = (2, 13)
"""The torch whose schedules take `defer_pp_recv`."""
RECEIVES_EARLY: tuple[ScheduleName, ...] = ("interleaved", "interleaved_zero_bubble", "zbv")
"""Schedules of several stages for each rank: torch begins a receive when its sender computes, in those of one stage
when the rank itself would."""
CAN_DEFER: tuple[ScheduleName, ...] = ("interleaved",)
"""Those of which torch 2.13 defers receives in the order of their sends. Of zero-bubble schedules it does not, and a
rank takes one tensor of a neighbour for another."""


def priority_refusals(setup: Setup) -> Iterator[str]:
    """Why messages cannot go first."""
    if not HIGH_PRIORITY.of(setup):
        return
    if setup.backend != "nccl":
        yield (
            f"option {HIGH_PRIORITY.name} is true on {setup.backend}, which has no streams; leave it out, or take"
            " --backend nccl"
        )
    elif setup.ranks == 1:
        yield f"option {HIGH_PRIORITY.name} is true on 1 rank, which sends nothing; leave it out, or take --ranks 2"


def priority_axes(setup: Setup, axis: str) -> tuple[str, ...]:
    """The axis that messages travel along, where they go first."""
    return (axis,) if HIGH_PRIORITY.of(setup) else ()


def torch_release() -> tuple[int, int]:
    """The first two numbers of the torch that is installed, without importing it."""
    major, minor, *_ = version("torch").split(".")
    return int(major), int(minor)


def deferring_refusals(
    setup: Setup, schedule: ScheduleName, *, release: tuple[int, int] | None = None
) -> Iterator[str]:
    """Why receives cannot be deferred. release: of torch; that which is installed, where it is left out."""
    if not DEFER_RECEIVES.of(setup):
        return
    if schedule in HALVED_BACKWARD:
        yield (
            f"option {DEFER_RECEIVES.name} is true with schedule {schedule}, of which torch 2.13 defers receives out of"
            " the order of their sends, so that losses are wrong without a word; leave it out, or take schedule"
            " interleaved"
        )
    elif schedule not in CAN_DEFER:
        yield (
            f"option {DEFER_RECEIVES.name} is true with schedule {schedule}, which receives no earlier than it needs;"
            " leave it out, or take schedule interleaved"
        )
    elif (release or torch_release()) < FIRST_TO_DEFER:
        installed, first = (".".join(map(str, each)) for each in (release or torch_release(), FIRST_TO_DEFER))
        yield (
            f"option {DEFER_RECEIVES.name} is true, and torch {installed} has no schedule that defers;"
            f" leave it out, or install torch {first} or newer"
        )


def pipeline_message_notes(setup: Setup, schedule: ScheduleName) -> list[str]:
    """What the figures of a pipeline's bubble hold on NCCL."""
    if setup.backend != "nccl" or schedule not in RECEIVES_EARLY or DEFER_RECEIVES.of(setup):
        return []
    remedy = f"; {DEFER_RECEIVES.name}=true begins receives late" if schedule in CAN_DEFER else ""
    return [
        "on NCCL all messages of a rank pass one stream in order: a receive that begins early holds back the sends"
        f" after it, and this wait is in the unexplained part of the bubble{remedy}"
    ]


# What figures of offloading say where the rank computes on the host already.


def offload_notes(setup: Setup) -> list[str]:
    """What a reader must know of the figures of a strategy that has the option `offload`."""
    if setup.options["offload"] and setup.device == "cpu":
        return ["offload on a CPU is control flow only: nothing moves, so its figures say nothing of offloading"]
    return []


# The options of strategies on DistributedDataParallel: the size of its buckets, and how many they are.

BUCKET_MB = Option(name="bucket_mb", default=25.0, minimum=0.001, help="MiB of gradients that are averaged together")


def bucket_refusals(setup: Setup) -> list[str]:
    """Why buckets of this size cannot be."""
    bucket_mb, compile_mode = setup.options[BUCKET_MB.name], setup.options["compile"]
    if compile_mode == "none" or float(bucket_mb) >= 1:
        return []
    return [
        f"option bucket_mb is {bucket_mb} with compile={compile_mode}; torch.compile needs buckets of at least 1 MB"
    ]


def buckets(setup: Setup) -> int:
    """How many buckets hold all gradients, nearly: a weight is not cut."""
    bucket_bytes = int(float(setup.options[BUCKET_MB.name]) * 2**20)
    return bucket_count(4 * setup.shape.parameters(), bucket_bytes)


# The learning rate of each step as a multiple of the given one, by the rules that scale it with data ranks.

Rule = Literal["base", "linear", "sqrt"]
"""How the rate grows with the data ranks: not at all, as their number, or as its square root."""

RULES: tuple[Rule, ...] = get_args(Rule)


def scale(rule: Rule, data_ranks: int) -> float:
    """What the rule multiplies the rate by, once it is warm.

    Source: linear: Goyal et al. 2017, Accurate, large minibatch SGD, section 2.1. sqrt: Krizhevsky 2014, One weird
    trick for parallelizing convolutional neural networks; Hoffer et al. 2017, Train longer, generalize better.
    """
    match rule:
        case "base":
            return 1.0
        case "linear":
            return float(data_ranks)
        case "sqrt":
            return math.sqrt(data_ranks)


def factor(rule: Rule, *, data_ranks: int, warm_up: int, step: int) -> float:
    """What the rate of a step, counted from 0, is multiplied by: from 1 in equal increments to the rule's scale.

    Step `warm_up` is the first that has the whole scale.
    Source: Goyal et al. 2017, section 2.2, gradual warm-up.
    """
    warm = scale(rule, data_ranks)
    return warm if step >= warm_up else 1.0 + (warm - 1.0) * step / warm_up


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
