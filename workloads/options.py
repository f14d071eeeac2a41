"""Options that training strategies share: definitions, refusals, and the values that cost models and training read.

A refusal is a message that says why a setup cannot run, and what would; see `StrategySpec.refusals`. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Literal, get_args

from workloads.core.learning_rate import RATE_OPTIONS, rate_refusals
from workloads.core.precision_options import (
    NO_MASTER,
    PRECISION_OPTIONS,
    gradient_refusals,
    is_rounded,
    weights_refusals,
)
from workloads.cost_models.absent import Absent
from workloads.cost_models.memory import Checkpoint, Microbatch, Weights, recomputed_count
from workloads.cost_models.schedules import HALVED_BACKWARD, ScheduleName
from workloads.spec import Option, OptionValue, Search, Setup, nearest_multiples

# Attention: the option that pins the kernel on a GPU.

KernelName = Literal["cudnn", "flash", "efficient", "math"]
"""Kernels of torch's scaled_dot_product_attention. math: keeps all scores in memory, on any device and precision."""

ATTENTION = Option(
    name="attention",
    default="auto",
    choices=("auto", "cudnn", "flash", "efficient", "math"),
    help="attention kernel on a GPU, pinned so that compared strategies run the same one; auto: torch chooses",
    added_later=True,
)
HEAD_MULTIPLE = 8
WIDEST_HEAD = 256
"""Elements of a head that cuDNN's and the flash kernel take at most; fused kernels take multiples of HEAD_MULTIPLE."""
FP32_HEAD_MULTIPLE = 4
"""The same multiple for the efficient kernel in fp32."""


def pinned_kernel(setup: Setup) -> KernelName | None:
    """Return the kernel that the setup names; None if torch chooses."""
    word = ATTENTION.of(setup)
    return None if word == ATTENTION.default else word  # type: ignore[return-value]  # The option allows no other word.


def attention_refusals(setup: Setup) -> Iterator[str]:
    """Yield why the named kernel cannot attend; checks of the GPU itself run when the model is made."""
    kernel, width = pinned_kernel(setup), setup.shape.head_width
    if kernel is None:
        return
    if setup.device == "cpu":
        yield f"option attention is {kernel} on cpu, but it is a GPU kernel; leave it out, or use --device cuda"
        return
    if kernel in ("cudnn", "flash") and setup.precision == "fp32":
        yield (
            f"option attention is {kernel} in fp32, which this kernel does not support; use --precision bf16, or"
            " attention=efficient"
        )
        return
    multiple = FP32_HEAD_MULTIPLE if setup.precision == "fp32" else HEAD_MULTIPLE
    if kernel != "math" and (width % multiple or (kernel != "efficient" and width > WIDEST_HEAD)):
        most = "" if kernel == "efficient" else f" up to {WIDEST_HEAD}"
        yield (
            f"option attention is {kernel} with {setup.shape.head_words} {width}; this kernel takes multiples of"
            f" {multiple}{most}: {head_remedy(setup)}, or attention=math"
        )


def head_remedy(setup: Setup) -> str:
    """Return how to get heads of another width, for messages."""
    if setup.shape.head_dim is not None:
        return "use a config.json with such a head_dim"
    return f"use such a --width for {setup.shape.heads} heads"


# Convergence checks: the options that they add to a case. No spec lists them, no command line sets them and
# `observatory list` does not show them. They are recorded with all other options; a case with them is not comparable
# with a case without them.

Mistake = Literal["learning_rate", "sampler_epoch", "batch_statistics"]
"""A deliberate fault. learning_rate: the rule that scales it is not applied. sampler_epoch: every epoch has the order
of the first. batch_statistics: each rank normalises by its own share of the batch."""

MISTAKES: tuple[Mistake, ...] = get_args(Mistake)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How a convergence check changes a training.

    epoch_steps: steps after which the data begin again in another order.
    data_ranks: ranks that the learning rate's rule counts, so that one rank can train at the rates of many.
    has_batch_norm: the model has one layer that normalises over the batch.
    is_reversed: each batch is read backwards, which changes nothing but the order of additions.
    """

    epoch_steps: int
    data_ranks: int
    has_batch_norm: bool
    is_reversed: bool = False
    mistakes: tuple[Mistake, ...] = ()

    def options(self) -> dict[str, OptionValue]:
        """Return the check as options of a case."""
        return {
            "check_epoch_steps": self.epoch_steps,
            "check_data_ranks": self.data_ranks,
            "check_batch_norm": self.has_batch_norm,
            "check_reversed": self.is_reversed,
            "check_mistakes": ",".join(self.mistakes),
        }


def check_of(setup: Setup) -> Check | None:
    """Read the check from the setup's options; None if they hold none."""
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


# Messages between ranks: the options that say when they begin.

HIGH_PRIORITY = Option(
    name="high_priority_stream",
    default=False,
    help="on NCCL: send messages on a high-priority stream, so that they start before queued computation",
    added_later=True,
)
DEFER_RECEIVES = Option(
    name="defer_receives",
    default=False,
    help="post each receive just before the action that needs it, not as early as possible (torch 2.13)",
    added_later=True,
)
FIRST_TO_DEFER = (2, 13)
"""The first torch whose schedules take `defer_pp_recv`."""
RECEIVES_EARLY: tuple[ScheduleName, ...] = ("interleaved", "interleaved_zero_bubble", "zbv")
"""Schedules with several stages per rank: in these torch begins a receive as early as its sender computes; with one
stage per rank, no earlier than the receiving rank needs it."""
CAN_DEFER: tuple[ScheduleName, ...] = ("interleaved",)
"""Schedules whose receives torch 2.13 defers in the order of their sends. In zero-bubble schedules it does not keep
that order, so a rank mistakes one of a neighbour's tensors for another."""


def priority_refusals(setup: Setup) -> Iterator[str]:
    """Yield why messages cannot have high priority."""
    if not HIGH_PRIORITY.of(setup):
        return
    if setup.backend != "nccl":
        yield (
            f"option {HIGH_PRIORITY.name} is true on {setup.backend}, which has no streams; leave it out, or use"
            " --backend nccl"
        )
    elif setup.ranks == 1:
        yield f"option {HIGH_PRIORITY.name} is true on 1 rank, which sends nothing; leave it out, or use --ranks 2"


def priority_axes(setup: Setup, axis: str) -> tuple[str, ...]:
    """Return the axis that messages travel along if they have high priority, otherwise no axis."""
    return (axis,) if HIGH_PRIORITY.of(setup) else ()


def torch_release() -> tuple[int, int]:
    """Return major and minor version of the installed torch, without importing it."""
    major, minor, *_ = version("torch").split(".")
    return int(major), int(minor)


def deferring_refusals(setup: Setup, schedule: ScheduleName) -> Iterator[str]:
    """Yield why receives cannot be deferred with any torch."""
    if not DEFER_RECEIVES.of(setup):
        return
    if schedule in HALVED_BACKWARD:
        yield (
            f"option {DEFER_RECEIVES.name} is true with schedule {schedule}, whose receives torch 2.13 defers out of"
            " the order of their sends, so losses are silently wrong; leave it out, or use schedule interleaved"
        )
    elif schedule not in CAN_DEFER:
        yield (
            f"option {DEFER_RECEIVES.name} is true with schedule {schedule}, which posts no receive early;"
            " leave it out, or use schedule interleaved"
        )


def too_old_to_defer(setup: Setup, *, release: tuple[int, int] | None = None) -> Iterator[str]:
    """Yield why this torch cannot defer receives. release: torch's release; by default the installed one."""
    if DEFER_RECEIVES.of(setup) and (release or torch_release()) < FIRST_TO_DEFER:
        installed, first = (".".join(map(str, each)) for each in (release or torch_release(), FIRST_TO_DEFER))
        yield (
            f"option {DEFER_RECEIVES.name} is true, and torch {installed} has no schedule that defers receives;"
            f" leave it out, or install torch {first} or newer"
        )


def pipeline_message_notes(setup: Setup, schedule: ScheduleName) -> list[str]:
    """Return a note on the waits that a pipeline's bubble includes on NCCL."""
    if setup.backend != "nccl" or schedule not in RECEIVES_EARLY or DEFER_RECEIVES.of(setup):
        return []
    remedy = f"; {DEFER_RECEIVES.name}=true posts receives late" if schedule in CAN_DEFER else ""
    return [
        "on NCCL all messages of a rank share one stream, in order: a receive that is posted early delays the sends"
        f" behind it, and this wait is in the unexplained part of the bubble{remedy}"
    ]


def offload_notes(setup: Setup) -> list[str]:
    """Return a note if the option `offload` is set on a CPU, where nothing moves."""
    if setup.options["offload"] and setup.device == "cpu":
        return ["offload on a CPU is control flow only: nothing moves, so its figures say nothing about offloading"]
    return []


ACCUMULATE = Option(
    name="accumulate",
    default=1,
    minimum=1,
    help="microbatches that a rank's batch is split into; their gradients accumulate",
    search=Search(values="batch"),
)
MICROBATCHES = Option(
    name="microbatches",
    default=4,
    minimum=1,
    help="microbatches that a batch is split into, which follow each other through the stages",
    search=Search(values="batch"),
)
"""Replaces `accumulate` in pipelines."""

LOSS_CHUNKS = Option(
    name="loss_chunks",
    default=1,
    minimum=1,
    help="chunks of positions in which head and loss are computed, and again in backward, so that the logits of one"
    " chunk live at a time; 1: all at once",
    added_later=True,
)

CHECKPOINT_EVERY = Option(
    name="checkpoint_every",
    default=1,
    minimum=1,
    help="with checkpoint=full or selective: recompute one block in this many, so 2 recomputes half of them; 1: all",
    added_later=True,
)

GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""
COLLECTIVES_IN_GRAPHS = (
    "the graph would contain the block's collectives, and NCCL's Flight Recorder sees none in graphs"
)
GATHERED_IN_GRAPHS = "FSDP2 gathers weights at new addresses each time, so the graph would be recorded again"

TRAINING_OPTIONS: tuple[Option, ...] = (
    ACCUMULATE,
    *RATE_OPTIONS,
    Option(
        name="clip",
        default=1.0,
        minimum=0.0,
        help="gradient norm to which larger gradients are clipped; 0: no clipping",
    ),
    Option(
        name="checkpoint",
        default="none",
        choices=("none", "full", "selective"),
        help="activations that backward recomputes: none, full blocks, or all but matrix products and attention",
        search=Search(values=("none", "selective", "full"), falls=True),
    ),
    CHECKPOINT_EVERY,
    Option(
        name="compile",
        default="none",
        choices=("none", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        help="mode of torch.compile, which compiles each block",
    ),
    ATTENTION,
    LOSS_CHUNKS,
    *PRECISION_OPTIONS,
    Option(
        name="workers",
        default=1,
        minimum=0,
        help="data loader processes of a rank; 0: the training process loads each batch itself",
    ),
    Option(
        name="loader_delay_ms",
        default=0.0,
        minimum=0.0,
        help="milliseconds by which the data loader delays each batch on purpose",
    ),
)


def microbatch_option(setup: Setup) -> Option:
    """Return the option that sets the number of microbatches of a data rank."""
    return MICROBATCHES if MICROBATCHES.name in setup.options else ACCUMULATE


def microbatch_count(setup: Setup) -> int:
    """Return the number of microbatches that a data rank's batch is split into."""
    return int(setup.options[microbatch_option(setup).name])


def checkpoint_every(setup: Setup) -> int:
    """Return n: backward recomputes the last of every n blocks, if blocks are checkpointed."""
    return int(CHECKPOINT_EVERY.of(setup))


def rerun_ratio(setup: Setup) -> float:
    """Return the share of forward that backward computes again; selective checkpointing repeats no product."""
    return checkpointed_ratio(setup) if setup.options.get("checkpoint") == "full" else 0.0


def checkpointed_ratio(setup: Setup) -> float:
    """Return the share of blocks that are checkpointed, in full or selectively."""
    if setup.options.get("checkpoint", "none") == "none":
        return 0.0
    layers = setup.shape.layers
    return recomputed_count(range(layers), every=checkpoint_every(setup)) / layers


def _checkpoint_refusals(setup: Setup) -> Iterator[str]:
    """Yield why no block would be recomputed."""
    every, layers = checkpoint_every(setup), setup.shape.layers
    if every == 1:
        return
    if setup.options["checkpoint"] == "none":
        yield (
            f"option {CHECKPOINT_EVERY.name} is {every} with checkpoint=none, so nothing is recomputed; leave it out or"
            " use checkpoint=full or selective"
        )
    elif every > layers:
        yield (
            f"option {CHECKPOINT_EVERY.name} is {every} with {layers} layers, so no block would be recomputed; use"
            f" {layers} or less, or checkpoint=none"
        )


def loss_chunks(setup: Setup) -> int:
    """Return the number of chunks in which the loss is computed."""
    return int(LOSS_CHUNKS.of(setup))


def unchunked_refusals(setup: Setup, because: str) -> list[str]:
    """Return why a strategy cannot compute the loss in chunks. because: the obstacle, and what would work."""
    if loss_chunks(setup) == 1:
        return []
    return [f"option {LOSS_CHUNKS.name} is {loss_chunks(setup)}, but {because}; leave it out"]


def _chunk_refusals(setup: Setup, data_ranks: int) -> list[str]:
    """Return why a microbatch cannot be cut into the chunks; nothing if the batch is too small for the ranks anyway."""
    positions = local_batch(setup, data_ranks) * setup.shape.sequence
    if not positions or loss_chunks(setup) <= positions:
        return []
    return [
        f"option {LOSS_CHUNKS.name} is {loss_chunks(setup)}, and a microbatch of a rank has {positions} positions; use"
        f" {positions} or fewer"
    ]


def local_batch(setup: Setup, data_ranks: int) -> int:
    """Return the sequences of one microbatch: the effective batch divided by data ranks and microbatches."""
    return setup.shape.batch // (data_ranks * microbatch_count(setup))


def microbatch(setup: Setup, data_ranks: int) -> Microbatch:
    """Describe one of a rank's microbatches to the cost model of memory."""
    checkpoint: Checkpoint = setup.options["checkpoint"]  # type: ignore[assignment]  # The option allows no other word.
    assert setup.precision != "unknown", "only a watched run's is, which has no microbatches"
    return Microbatch(
        shape=setup.shape,
        sequences=local_batch(setup, data_ranks),
        precision=setup.precision,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every(setup),
    )


def numbers_agreed(setup: Setup) -> int:
    """Return how many scalars ranks with different gradients agree on in a step: their norm, and in fp16 overflow."""
    return (float(setup.options["clip"]) > 0) + (setup.precision == "fp16")


def peak_not_covered(setup: Setup) -> Absent | None:
    """Return why the cost model of activations cannot predict this setup's peak under any strategy; None if it may."""
    if setup.device != "cpu":
        return Absent(reason="the cost model of activations covers the CPU's kernels only")
    if setup.options["compile"] != "none":
        return Absent(reason="which activations a compiled block keeps is the compiler's choice")
    if loss_chunks(setup) > 1:
        return Absent(reason="the cost model of activations does not cover a loss that is computed in chunks")
    if setup.shape.is_tied:
        # Measured on torch 2.13: at the end two more tables live than the gradient itself.
        return Absent(reason="autograd holds the gradients of a tied head and embedding separately until both exist")
    if is_rounded(setup):
        return Absent(reason="the cost model of activations covers weights=autocast only")
    return None


def training_refusals(
    setup: Setup,
    data_ranks: int,
    *,
    weights_refused: Mapping[Weights, str] = MappingProxyType({"bf16": NO_MASTER}),
    is_reduced_rounded: bool = False,
) -> list[str]:
    """Return why the strategy cannot train this setup, except for reasons in how it divides the model.

    data_ranks: ranks that share a batch. weights_refused: values of `weights` that it refuses, with the reasons.
    is_reduced_rounded: it can round gradients for their reduction.
    """
    return [
        *batch_refusals(setup, data_ranks),
        *rate_refusals(setup),
        *attention_refusals(setup),
        *_chunk_refusals(setup, data_ranks),
        *_checkpoint_refusals(setup),
        *weights_refusals(setup, weights_refused),
        *gradient_refusals(setup, is_reduced=is_reduced_rounded),
    ]


def tied_refusals(setup: Setup, because: str) -> list[str]:
    """Return why a strategy cannot train a head that has the embedding's weight. because: where each is held."""
    if not setup.shape.is_tied:
        return []
    return [
        f"the shape ties head and embedding (tie_word_embeddings), but {because}: set tie_word_embeddings to false in"
        " its config.json, or use fsdp"
    ]


def batch_refusals(setup: Setup, data_ranks: int) -> list[str]:
    """Return why data ranks and microbatches cannot share the batch equally, with batches that they could share."""
    batch, microbatches = setup.shape.batch, microbatch_count(setup)
    share_count = data_ranks * microbatches
    if batch % share_count == 0:
        return []
    shares = "1 data rank" if data_ranks == 1 else f"{data_ranks} data ranks"
    if microbatches > 1:
        shares += f" x {microbatch_option(setup).name} {microbatches}"
    fitting = nearest_multiples(batch, share_count)
    return [f"batch {batch} cannot be shared equally by {shares}; --batch {fitting} would fit"]


def graph_refusals(setup: Setup, because: str) -> list[str]:
    """Return why compiled blocks cannot be CUDA graphs.

    because: what goes wrong in this strategy. DistributedDataParallel has no problem: its hooks run outside blocks.
    """
    mode = setup.options["compile"]
    if setup.device != "cuda" or mode not in GRAPH_MODES:
        return []
    return [
        f"option compile is {mode}, which replays a block as a CUDA graph; {because}: use compile=default, or"
        " max-autotune-no-cudagraphs"
    ]
