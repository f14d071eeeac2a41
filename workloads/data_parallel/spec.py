"""Specs of data parallelism: `ddp`, `single` and `zero1`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from workloads.core.buckets import BUCKET_MB, bucket_notes, bucket_refusals, bucketed_average, buckets, settled_buckets
from workloads.core.cuda_setup import cuda_model, cuda_peak_not_covered
from workloads.core.learning_rate import RECIPE
from workloads.core.precision_options import gradient_bytes, is_master_kept, master_bytes_each
from workloads.cost_models.absent import Absent
from workloads.cost_models.cuda.peak import THREAD_WORKSPACE_BYTES, replicated_peak
from workloads.cost_models.memory import FULL_BYTES, HALF_BYTES, ZeroStage, paper_states
from workloads.cost_models.peak_memory import Prediction, bucketed_gradients, fresh_gradients, step_peak
from workloads.cost_models.terms import Collective, States, Transfer, replicated_states
from workloads.data_parallel.cost_model import (
    INDEXED_ELEMENTS,
    VALUE_BYTES,
    largest_rank,
    largest_weight,
    partitioned_states,
    powersgd_bytes,
    rounded_bytes,
    sent_bytes,
    top_k_bytes,
    top_k_temporary_bytes,
)
from workloads.options import (
    TRAINING_OPTIONS,
    microbatch,
    microbatch_count,
    peak_not_covered,
    training_refusals,
)
from workloads.spec import Needs, Option, OptionValue, Parity, Setup, StrategySpec

COMPRESS_RANK = Option(name="compress_rank", default=2, minimum=1, help="powersgd: columns of each low-rank factor")
DENSITY = Option(name="density", default=0.01, minimum=0.0, help="topk: share of a gradient's elements that is sent")

WITH_MEMORY = ("powersgd", "topk")
"""Schemes with error feedback: they add to a gradient what they left out of the last one."""

# ddp: each rank holds the whole model and a share of the batch; gradients are averaged.


def _replica_refusals(setup: Setup) -> Iterator[str]:
    """Yield combinations that DistributedDataParallel does not support."""
    options = setup.options
    if options["find_unused_parameters"] and options["static_graph"]:
        yield (
            "option find_unused_parameters is true with static_graph=true, which finds unused weights in the first step"
            " already; leave one of them out"
        )
    if options["static_graph"] and int(options["accumulate"]) > 1:
        yield (
            f"option static_graph is true with accumulate={options['accumulate']}; torch records the graph in the"
            " first backward, in which accumulation synchronises nothing (no_sync), and fails: leave one of them out"
        )
    for name in ("find_unused_parameters", "static_graph"):
        if options[name] and not options["overlap"]:
            yield f"option {name} is true with overlap=false, which averages nothing in backward; leave one out"


def _is_compressed_beside_backward(setup: Setup) -> bool:
    return setup.options["compress"] != "none" and bool(setup.options["overlap"])


def _compression_refusals(setup: Setup) -> Iterator[str]:
    """Yield why a compression scheme cannot run, and options that the chosen scheme does not read."""
    options, compress = setup.options, setup.options["compress"]
    if compress in WITH_MEMORY and setup.precision == "fp16":
        yield (
            f"option compress is {compress} in fp16, whose loss scale changes between steps, so the error feedback"
            " of the last step would have another scale; use --precision bf16, or compress=fp16"
        )
    if compress == "powersgd" and int(options["compress_rank"]) > largest_rank(setup.shape):
        yield (
            f"option compress_rank is {options['compress_rank']}; this shape's matrices have at most rank"
            f" {largest_rank(setup.shape)}, at which nothing is lost: use 1 to {largest_rank(setup.shape)}"
        )
    if compress == "topk" and not 0 < float(options["density"]) <= 1:
        yield f"option density is {options['density']}; it must be above 0 and at most 1"
    if compress == "topk" and largest_weight(setup.shape) >= INDEXED_ELEMENTS:
        yield (
            f"option compress is topk with a weight of {largest_weight(setup.shape)} elements; its indices are int32,"
            f" so a weight must have fewer than {INDEXED_ELEMENTS}: use another compress"
        )
    if _is_compressed_beside_backward(setup) and options["find_unused_parameters"] and setup.backend == "nccl":
        yield (
            f"option compress is {compress} with find_unused_parameters=true on nccl: compression and the search for"
            " unused weights would use two communicators at once in no fixed order, which may hang; leave one out"
        )
    for option, scheme in ((COMPRESS_RANK, "powersgd"), (DENSITY, "topk")):
        value = options[option.name]
        if value != option.default and compress != scheme:
            yield (
                f"option {option.name} is {value} with compress={compress}; only {scheme} reads it:"
                f" leave it out, or use compress={scheme}"
            )


def _master_refusals(setup: Setup) -> Iterator[str]:
    """Yield options that cannot be combined with bf16 weights and a master."""
    if not is_master_kept(setup):
        return
    for name in ("compress", "find_unused_parameters", "static_graph"):
        value = setup.options[name]
        if value not in ("none", False):
            yield (
                f"option {name} is {str(value).lower()}, but weights=bf16 averages gradients in plain buckets; leave it"
                " out, or use weights=bf16_compute"
            )


def kept_states(setup: Setup) -> States:
    """Return the states of a rank that keeps the whole model, by the option `weights`."""
    if not is_master_kept(setup):
        return replicated_states(setup.shape)
    return partitioned_states(setup.shape, rank=0, ranks=1, bytes_each=master_bytes_each(setup))


def _paper_states(setup: Setup, *, stage: ZeroStage) -> States:
    """Return a rank's states as the ZeRO paper counts them, or as Megatron does if the optimizer has the master."""
    return paper_states(
        setup.shape.parameters(), stage=stage, data_ranks=setup.ranks, bytes_each=master_bytes_each(setup)
    )


def _payloads(setup: Setup) -> list[tuple[Collective, int]]:
    """Return the collectives of each bucket, in their order, with their bytes over all buckets."""
    shape = setup.shape
    match setup.options["compress"]:
        case "fp16" | "bf16":
            return [("all_reduce", rounded_bytes(shape))]
        case "powersgd":
            factors = powersgd_bytes(shape, int(setup.options["compress_rank"]))
            return [("all_reduce", factors.left_bytes), ("all_reduce", factors.right_bytes)]
        case "topk":
            return [("all_gather", setup.ranks * top_k_bytes(shape, float(setup.options["density"])))]
        case _:
            return [("all_reduce", gradient_bytes(setup) * shape.parameters())]


def _remembered_bytes(setup: Setup) -> int:
    """Return the bytes that a scheme keeps from step to step: its errors and, for PowerSGD, the last right factors.

    Temporary tensors of its thread do not count; they are freed after the step.
    """
    compress = setup.options["compress"]
    errors_bytes = VALUE_BYTES * setup.shape.parameters() if compress in WITH_MEMORY else 0
    if compress != "powersgd":
        return errors_bytes
    return errors_bytes + powersgd_bytes(setup.shape, int(setup.options["compress_rank"])).right_bytes


def _cuda_peak(setup: Setup, states: States, *, data_ranks: int) -> Prediction | Absent:
    """Predict the peak of a rank that keeps all weights, on CUDA."""
    if (reason := cuda_peak_not_covered(setup)) is not None:
        return reason
    is_averaged = setup.strategy != "single"
    is_overlapped = is_averaged and bool(setup.options.get("overlap", True))
    # The fp32 copy of bf16 gradients that the master is updated with.
    copy_bytes = 2 * states.gradients_bytes if is_master_kept(setup) and gradient_bytes(setup) == HALF_BYTES else 0
    after_bytes = copy_bytes
    if is_averaged and not is_overlapped:
        after_bytes = states.gradients_bytes + _compression_bytes(setup, states)
    compress = setup.options.get("compress", "none")
    # PowerSGD multiplies matrices in a thread of its own.
    workspace_bytes = THREAD_WORKSPACE_BYTES if compress == "powersgd" and is_overlapped else 0
    return replicated_peak(
        cuda_model(setup, data_ranks),
        states=states,
        microbatches=microbatch_count(setup),
        # fp32 gradients of bf16 weights are in `GradientBuckets`, which take the place of the gradients.
        is_bucketed=is_overlapped and not (is_master_kept(setup) and gradient_bytes(setup) == FULL_BYTES),
        after_backward_bytes=after_bytes,
        other_bytes=workspace_bytes + (0 if compress == "none" else _remembered_bytes(setup)),
    )


def _compression_bytes(setup: Setup, states: States) -> int:
    """Return the most bytes that compressing all gradients at once makes beside their copy."""
    match setup.options.get("compress"):
        case "fp16" | "bf16":
            return 3 * states.gradients_bytes // 2  # A share, and the share rounded.
        case "topk":
            return top_k_temporary_bytes(setup.shape, float(setup.options["density"]), setup.ranks)
        case "powersgd":
            factors = powersgd_bytes(setup.shape, int(setup.options["compress_rank"]))
            # Left factors: this rank's, their mean, and orthonormal. Right factors: this rank's, and their mean.
            return 3 * factors.left_bytes + 2 * factors.right_bytes
        case _:
            return 0


class ReplicaSpec(StrategySpec):
    """Base of the specs whose ranks keep all weights of the model."""

    def states(self, setup: Setup, rank: int) -> States:
        return kept_states(setup)

    def paper_states(self, setup: Setup) -> States:
        return _paper_states(setup, stage=0)


class DdpSpec(ReplicaSpec):
    name = "ddp"
    summary = "data parallel: full model on each rank, gradients averaged during backward"
    options = (
        *TRAINING_OPTIONS,
        Option(
            name="overlap", default=True, help="average gradients during backward; false: all at once after backward"
        ),
        BUCKET_MB,
        Option(
            name="compress",
            default="none",
            choices=("none", "fp16", "bf16", "powersgd", "topk"),
            help="how gradients are compressed before they are averaged",
        ),
        COMPRESS_RANK,
        DENSITY,
        Option(
            name="find_unused_parameters",
            default=False,
            help="search the graph of each step for weights that get no gradient",
        ),
        Option(
            name="static_graph",
            default=False,
            help="DistributedDataParallel may assume that all steps have the same graph",
        ),
    )
    parity = Parity(
        variants=(
            {},
            {"overlap": False},
            {"bucket_mb": 0.1},
            {"accumulate": 2},
            {"accumulate": 2, "overlap": False},
            RECIPE,
            {"loss_chunks": 3, "accumulate": 2},
            {"checkpoint": "full"},
            {"static_graph": True},
            {"find_unused_parameters": True},
            # Compression loses nothing if it sends all elements, or as many columns as the matrices have.
            {"compress": "topk", "density": 1.0, "bucket_mb": 0.1},
            # Learning rate 0, because AdamW makes a whole step of a gradient of 1e-9 that is 0 in `single`.
            {"compress": "powersgd", "compress_rank": 64, "bucket_mb": 0.1, "learning_rate": 0.0},
        ),
    )

    def refusals(self, setup: Setup) -> list[str]:
        return [
            *training_refusals(setup, data_ranks=setup.ranks, weights_refused={}),
            *bucket_refusals(setup),
            *_replica_refusals(setup),
            *_compression_refusals(setup),
            *_master_refusals(setup),
        ]

    def settled(self, setup: Setup) -> Mapping[str, OptionValue]:
        return {**super().settled(setup), **settled_buckets(setup)}

    def notes(self, setup: Setup) -> list[str]:
        return bucket_notes(setup) if setup.options["overlap"] else []

    def incomparable(self, setup: Setup) -> str | None:
        compress = setup.options["compress"]
        is_lossless = {
            "none": True,
            "topk": float(setup.options["density"]) == 1,
            "powersgd": int(setup.options["compress_rank"]) == largest_rank(setup.shape),
        }.get(str(compress), False)
        if is_lossless:
            return None
        return f"compress={compress} loses a part of each gradient with these options; use compress=none"

    def has_second_communicator(self, setup: Setup) -> bool:
        return _is_compressed_beside_backward(setup)

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        if setup.ranks == 1:
            return ()
        is_overlapped = bool(setup.options["overlap"])
        transfers = [
            Transfer(
                collective=collective,
                axis="data",
                payload_bytes=payload_bytes,
                calls=buckets(setup) if is_overlapped else 1,
                behind="backward" if is_overlapped else None,
            )
            for collective, payload_bytes in _payloads(setup)
        ]
        if setup.options["find_unused_parameters"]:
            # For each weight an int32 that says whether any rank used it, sent after backward.
            used_bytes = 4 * setup.shape.parameter_tensors()
            transfers.append(Transfer(collective="all_reduce", axis="data", payload_bytes=used_bytes))
        return tuple(transfers)

    def peak(self, setup: Setup) -> Prediction | Absent:
        if setup.device == "cuda":
            return _cuda_peak(setup, self.states(setup, 0), data_ranks=setup.ranks)
        if (reason := peak_not_covered(setup)) is not None:
            return reason
        states, is_overlapped = replicated_states(setup.shape), bool(setup.options["overlap"])
        if setup.options["compress"] != "none" and not is_overlapped:
            return Absent(reason="the cost model does not cover the temporary tensors of compression after backward")
        grow = bucketed_gradients if is_overlapped else fresh_gradients
        peak = step_peak(
            microbatch(setup, setup.ranks),
            states=states,
            backwards=grow(states.gradients_bytes, int(setup.options["accumulate"])),
            averaged_bytes=0 if is_overlapped else states.gradients_bytes,
        )
        return replace(peak, other_bytes=_remembered_bytes(setup))


# single: one rank trains the model alone; all other strategies are compared with it.


class SingleSpec(ReplicaSpec):
    name = "single"
    summary = "one rank trains the full model; the baseline of all others"
    options = TRAINING_OPTIONS
    needs = Needs(maximum_ranks=1)
    parity = Parity(
        variants=(
            {"accumulate": 2},
            {"checkpoint": "full"},
            {"checkpoint": "selective"},
            {"checkpoint": "full", "checkpoint_every": 2},
            {"loss_chunks": 5},
        )
    )

    def refusals(self, setup: Setup) -> list[str]:
        return training_refusals(setup, data_ranks=1, weights_refused={})

    def mesh(self, setup: Setup) -> dict[str, int]:
        return {"data": 1}

    def peak(self, setup: Setup) -> Prediction | Absent:
        if setup.device == "cuda":
            return _cuda_peak(setup, self.states(setup, 0), data_ranks=1)
        if (reason := peak_not_covered(setup)) is not None:
            return reason
        states = replicated_states(setup.shape)
        backwards = fresh_gradients(states.gradients_bytes, int(setup.options["accumulate"]))
        return step_peak(microbatch(setup, 1), states=states, backwards=backwards)


# zero1: as ddp, but each rank updates only some weights, and holds optimizer states for these only.


class Zero1Spec(ReplicaSpec):
    name = "zero1"
    summary = (
        "ZeRO-1: as ddp, but ranks shard optimizer states by whole weights, and so unevenly; with weights=bf16 the"
        " counterpart of Megatron's distributed optimizer"
    )
    options = (*TRAINING_OPTIONS, BUCKET_MB)
    parity = Parity(
        variants=({}, {"bucket_mb": 0.1}, {"accumulate": 2}, {"checkpoint": "full"}, RECIPE, {"loss_chunks": 2})
    )

    def refusals(self, setup: Setup) -> list[str]:
        return [*training_refusals(setup, data_ranks=setup.ranks, weights_refused={}), *bucket_refusals(setup)]

    def settled(self, setup: Setup) -> Mapping[str, OptionValue]:
        return {**super().settled(setup), **settled_buckets(setup)}

    def transfers(self, setup: Setup) -> tuple[Transfer, ...]:
        if setup.ranks == 1:
            return ()
        weights_bytes = sent_bytes(setup.shape, setup.ranks, weight_bytes=2 if is_master_kept(setup) else VALUE_BYTES)
        update = Transfer(collective="broadcast", axis="data", payload_bytes=weights_bytes, calls=setup.ranks)
        return (bucketed_average(setup, "data"), update)

    def states(self, setup: Setup, rank: int) -> States:
        if not is_master_kept(setup):
            return partitioned_states(setup.shape, rank=rank, ranks=setup.ranks)
        return partitioned_states(setup.shape, rank=rank, ranks=setup.ranks, bytes_each=master_bytes_each(setup))

    def paper_states(self, setup: Setup) -> States:
        return _paper_states(setup, stage=1)

    def peak(self, setup: Setup) -> Prediction | Absent:
        states = max(
            (self.states(setup, rank) for rank in range(setup.ranks)), key=lambda states: states.optimizer_bytes
        )
        if setup.device == "cuda":
            return _cuda_peak(setup, states, data_ranks=setup.ranks)
        if (reason := peak_not_covered(setup)) is not None:
            return reason
        backwards = bucketed_gradients(states.gradients_bytes, int(setup.options["accumulate"]))
        return step_peak(microbatch(setup, setup.ranks), states=states, backwards=backwards)

    def notes(self, setup: Setup) -> list[str]:
        if setup.ranks == 1:
            return []
        shares = [f"{self.states(setup, rank).optimizer_bytes:,}" for rank in range(setup.ranks)]
        return [
            *bucket_notes(setup),
            f"optimizer states are sharded weight by weight, and so unevenly: bytes by rank are {', '.join(shares)}",
        ]
