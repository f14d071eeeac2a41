"""Spec of `deepspeed`: the reference model under DeepSpeed's own engine, with ZeRO's stages 0 to 3."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec

from workloads.core.learning_rate import RECIPE
from workloads.cost_models.absent import Absent
from workloads.cost_models.memory import Weights, ZeroStage, paper_states
from workloads.cost_models.terms import States, Transfer
from workloads.deepspeed.cost_model import EngineModel, engine_states, engine_transfers
from workloads.options import (
    TRAINING_OPTIONS,
    checkpoint_every,
    offload_notes,
    training_refusals,
    unchunked_refusals,
)
from workloads.spec import LIMITS, Option, Parity, Search, Setup, StrategySpec

STAGES: tuple[ZeroStage, ...] = (0, 1, 2, 3)

OFFLOAD = Option(
    name="offload",
    default=False,
    help="stages 1 to 3: keep optimizer states on the host, and update there; on a CPU this is control flow only",
)
OVERLAP_COMM = Option(
    name="overlap_comm",
    default=False,
    help="stages 1 to 3: communicate weights and gradients on a stream of their own; no effect on a CPU",
)
REDUCE_BUCKET_SIZE = Option(
    name="reduce_bucket_size",
    default=50_000_000,
    minimum=1,
    help="stages 1 to 3: gradient elements of a bucket and its buffer, reduced together (DeepSpeed's default: 5e8)",
)
PARAM_PERSISTENCE_THRESHOLD = Option(
    name="param_persistence_threshold",
    default=100_000,
    minimum=0,
    help="stage 3: weights of at most this many elements are not sharded",
)
MAX_REUSE_DISTANCE = Option(
    name="max_reuse_distance",
    default=1_000_000_000,
    minimum=0,
    help="stage 3: weights stay gathered if they are used again within this many elements",
)
PREFETCH_BUCKET_SIZE = Option(
    name="prefetch_bucket_size",
    default=50_000_000,
    minimum=0,
    help="stage 3: elements that are gathered ahead of their use; 0: each weight is gathered when it is used",
)
READ_FROM = (
    (OFFLOAD, 1),
    (OVERLAP_COMM, 1),
    (REDUCE_BUCKET_SIZE, 1),
    (PARAM_PERSISTENCE_THRESHOLD, 3),
    (MAX_REUSE_DISTANCE, 3),
    (PREFETCH_BUCKET_SIZE, 3),
)
"""Options that some stages do not read, each with the first stage that does."""


ENGINE_CASTS: Mapping[Weights, str] = dict.fromkeys(
    ("bf16_compute", "bf16", "fp8"),
    "DeepSpeed's engine casts weights by rules of its own, so that no baseline would match it; leave it out, or use"
    " fsdp or zero1",
)
"""Why the engine refuses values of `weights` that other strategies allow."""


def not_installed(find: Callable[[str], object] = find_spec) -> list[str]:
    """Return why DeepSpeed cannot be imported, with what would help; empty if it can.

    find: returns None for a module that is not installed.
    """
    if find("deepspeed") is not None:
        return []
    return ["strategy deepspeed needs DeepSpeed, which is not installed: pip install 'parallel-observatory[deepspeed]'"]


def _idle_options(setup: Setup, stage: int) -> Iterator[str]:
    """Yield options that are set but not read by the stage."""
    for option, first in READ_FROM:
        value = setup.options[option.name]
        if value != option.default and stage < first:
            readers = "only stage 3 reads it" if first == 3 else "stage 0 does not read it"
            yield f"option {option.name} is {value} with stage={stage}; {readers}: leave it out, or use stage={first}"


def _engine_refusals(setup: Setup, stage: int) -> Iterator[str]:
    """Yield combinations that DeepSpeed's engine does not support."""
    if setup.options["compile"] != "none" and stage == 3:
        yield (
            f"option compile is {setup.options['compile']} with stage=3, which gathers weights in hooks of each"
            " layer, but a compiled block is one graph: leave it out, or use stage=2"
        )
    if setup.precision == "fp16" and stage > 0:
        yield (
            f"precision fp16 with stage={stage}: under autocast DeepSpeed clips gradients before it unscales them, and"
            " never lowers a loss scale that has overflowed; use --precision bf16, or stage=0"
        )


def _engine(setup: Setup) -> EngineModel:
    options = setup.options
    return EngineModel(
        shape=setup.shape,
        ranks=setup.ranks,
        stage=STAGES[int(options["stage"])],
        microbatches=int(options["accumulate"]),
        bucket=int(options[REDUCE_BUCKET_SIZE.name]),
        threshold=int(options[PARAM_PERSISTENCE_THRESHOLD.name]),
        reuse_distance=int(options[MAX_REUSE_DISTANCE.name]),
        prefetch=int(options[PREFETCH_BUCKET_SIZE.name]),
        is_recomputed=options["checkpoint"] != "none",
        recomputed_every=checkpoint_every(setup),
        is_clipped=float(options["clip"]) > 0,
        is_offloaded=bool(options[OFFLOAD.name]),
        is_overlapped=bool(options[OVERLAP_COMM.name]) and setup.backend == "nccl",
    )


class DeepSpeedSpec(StrategySpec):
    name = "deepspeed"
    summary = "DeepSpeed's own engine (an extra to install): ZeRO stages 0 to 3, optionally with CPU offload"
    options = (
        *TRAINING_OPTIONS,
        Option(
            name="stage",
            default=2,
            minimum=0,
            help="ZeRO stage: 0 shards nothing, 1 optimizer states, 2 also gradients, 3 also weights",
            search=Search(values=(1, 2, 3)),
        ),
        OFFLOAD,
        OVERLAP_COMM,
        REDUCE_BUCKET_SIZE,
        PARAM_PERSISTENCE_THRESHOLD,
        MAX_REUSE_DISTANCE,
        PREFETCH_BUCKET_SIZE,
    )
    parity = Parity(
        # Only stage 0 supports fp16.
        limits={precision: LIMITS[precision] for precision in ("fp32", "bf16")},
        variants=(
            {"stage": 0},
            {"stage": 1, "accumulate": 2},
            {"stage": 2, "reduce_bucket_size": 10_000, "accumulate": 2},
            {"stage": 3, "param_persistence_threshold": 100, "checkpoint": "full"},
            {"stage": 3, "offload": True, "accumulate": 2},
            {"stage": 2, **RECIPE},
        ),
    )

    def missing_packages(self) -> list[str]:
        return not_installed()

    def refusals(self, setup: Setup) -> list[str]:
        stage = int(setup.options["stage"])
        if stage not in STAGES:
            return [f"option stage is {stage}; ZeRO has the stages 0, 1, 2 and 3"]
        return [
            *training_refusals(setup, data_ranks=setup.ranks, weights_refused=ENGINE_CASTS),
            *unchunked_refusals(setup, "DeepSpeed's engine may free the head's weight before backward"),
            *_idle_options(setup, stage),
            *_engine_refusals(setup, stage),
        ]

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        return engine_transfers(_engine(setup))

    def states(self, setup: Setup, rank: int) -> States:
        return engine_states(_engine(setup))

    def paper_states(self, setup: Setup) -> States:
        stage = STAGES[int(setup.options["stage"])]
        return paper_states(setup.shape.parameters(), stage=stage, data_ranks=setup.ranks)

    def peak(self, setup: Setup) -> Absent:
        return Absent(
            reason="DeepSpeed's engine keeps gradients and weights in buffers of its own and frees them in hooks of its"
            " own, which no cost model covers"
        )

    def notes(self, setup: Setup) -> list[str]:
        return offload_notes(setup)
