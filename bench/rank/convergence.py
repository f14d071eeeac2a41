"""One rank of a convergence check: trains its case, and writes evidence of what each step used and computed.

Nothing here is timed: fingerprints cost more than small steps. A check adds two things that other trainings lack:
faults that it must find, and a layer after the embedding of the finished model. The layer normalises over the batch;
without it, a result does not depend on the other sequences of the batch. Dimensions: b sequences of a rank, s sequence,
d width.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data.distributed import DistributedSampler

from bench.case import Case
from bench.rank.distributed import TrialLog, joined
from bench.rank.evidence import EvidenceFile, Sketch, StepEvidence
from bench.rank.messages import RankOrder
from bench.rank.train import build_workload
from collectors.metrics.rank import LOSS
from workloads.core.data import Batches, NoBatches, RankSampler, make_batches, to_device
from workloads.core.trainer import full_tensor_of, plain_name
from workloads.core.transformer import Transformer
from workloads.options import Check, Mistake, check_of
from workloads.protocols import KeepsMaster, KnowsNorm, Workload
from workloads.spec import DataShare, Setup

EPSILON = 1e-5


def trained_case(case: Case, mistakes: Sequence[Mistake]) -> Case:
    """Return the case to train: the fault `learning_rate` omits the rule that scales the rate."""
    return replace(case, options={**case.options, "lr_rule": "base"}) if "learning_rate" in mistakes else case


class FirstEpochSampler(RankSampler):
    """The fault `sampler_epoch`: every epoch has the order of the first."""

    def set_epoch(self, epoch: int) -> None:
        """Do nothing, like a training that forgets to call this."""


def check_batches(setup: Setup, place: DataShare | None, check: Check) -> Batches | NoBatches:
    """Make a rank's batches: short epochs, with a faulty sampler if the check has that fault."""
    sampler_type: type[RankSampler] = FirstEpochSampler if "sampler_epoch" in check.mistakes else DistributedSampler
    return make_batches(setup, place, epoch_steps=check.epoch_steps, sampler_type=sampler_type)


def add_batch_norm(model: nn.Module, check: Check) -> None:
    """Insert the layer after the embedding of the reference model, inside any wrappers, if the check has the layer.

    With the fault `batch_statistics` each rank normalises its own share.
    """
    for module in list(model.modules()):
        if check.has_batch_norm and isinstance(module, Transformer):
            layer = BatchNorm(is_global="batch_statistics" not in check.mistakes)
            module.batch_norm = layer
            module.embedding.register_forward_hook(lambda embedding, inputs, x_bsd, layer=layer: layer(x_bsd))


class BatchNorm(nn.Module):
    """Subtracts each channel's mean and divides by its deviation; without weights and running statistics.

    Mean and variance are those of the full batch, of which all ranks have equal shares, or of this rank's share only.
    Source: Ioffe and Szegedy 2015, Batch normalization, algorithm 1; over all ranks: Peng et al. 2018, MegDet.
    """

    statistics_2d: Tensor | None = None
    """Mean and variance of each channel in the last forward."""

    def __init__(self, *, is_global: bool) -> None:
        super().__init__()
        self.is_global = is_global

    def forward(self, x_bsd: Tensor) -> Tensor:
        """Return the normalised stream, computed in float32, in the precision of the input."""
        stream_dtype, x_bsd = x_bsd.dtype, x_bsd.float()
        moments_2d = torch.stack((x_bsd.mean(dim=(0, 1)), x_bsd.square().mean(dim=(0, 1))))
        if self.is_global and dist.get_world_size() > 1:
            moments_2d = _Mean.apply(moments_2d)  # type: ignore[no-untyped-call]
        mean_d, square_d = moments_2d.unbind()
        variance_d = square_d - mean_d.square()
        self.statistics_2d = torch.stack((mean_d, variance_d)).detach()
        return ((x_bsd - mean_d) * torch.rsqrt(variance_d + EPSILON)).to(stream_dtype)


class _Mean(torch.autograd.Function):
    """Mean over all ranks. Strategies average gradients over ranks, so its gradient is also a mean over ranks."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        return _mean(tensor)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _mean(gradient)


def _mean(tensor: Tensor) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total / dist.get_world_size()


FINGERPRINT_BYTES = 8
CHANNELS = 16
"""The number of channels of the batch normalisation whose statistics are recorded."""
PROJECTED = 2**17
"""The number of elements at the beginning of a tensor that a sketch projects."""


def train_with_evidence(order: RankOrder, log: TrialLog) -> None:
    """Train all steps of the order's case as one rank; write the evidence and the log.

    Raises:
        LogUnwritable: the log cannot be written.
        Exception: whatever the workload raises.
    """
    case, check = order.case, check_of(order.case)
    assert check is not None, "only checks record evidence"
    with joined(order, log) as membership:
        _, workload = build_workload(trained_case(case, check.mistakes), log, lambda name: nullcontext())
        add_batch_norm(workload.model, check)
        membership.leave_store(has_communicated=False)
        batches = check_batches(case, case.spec().data_share(case, order.rank), check)
        with closing(batches), closing(EvidenceFile(Path(order.folder), order.rank)) as file:
            for evidence in steps_with_evidence(case, workload, batches, membership.device):
                membership.leave_store(has_communicated=True)
                file.write(evidence)
                # Marked as warm-up, so that no reading counts as speed.
                log.reading("warm_up", [] if evidence.loss is None else [LOSS.at(evidence.loss)])
                log.step += 1


def steps_with_evidence(
    case: Case, workload: Workload, batches: Batches | NoBatches, device: torch.device
) -> Iterator[StepEvidence]:
    """Train all steps of a convergence check's case; yield what each step used and computed as soon as it is done."""
    parameters, check = case.shape.parameters(), check_of(case)
    assert check is not None, "only checks record evidence"
    for step in range(case.steps):
        # This rank's part of each weight, by the weight's name in `single`. Empty weights are skipped: an engine with
        # its own sharding leaves them behind, and a server holds nameless ones. If bf16 weights are rounded from a
        # master, updates are those of the master, because rounding hides small ones.
        weights = masters_of(workload) or {
            plain_name(name): weight for name, weight in workload.model.named_parameters() if weight.numel()
        }
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        fingerprint = fingerprint_of_weights(workload.model, parameters)
        tokens_bs = next(batches).flip(0) if check.is_reversed else next(batches)
        loss = workload.step(to_device(tokens_bs, device))
        loss_nats = None if loss is None else loss.item()
        norm = workload.gradient_norm() if isinstance(workload, KnowsNorm) else None
        norm_value = None if norm is None else norm.item()
        yield StepEvidence(
            step=step,
            loss=loss_nats if loss_nats is not None and math.isfinite(loss_nats) else None,
            is_finite=loss_nats is None or math.isfinite(loss_nats),
            learning_rates=[group["lr"] for group in workload.optimizer.param_groups if "lr" in group],
            sequences=fingerprints_of_sequences(tokens_bs),
            statistics=_statistics(workload.model),
            weights=fingerprint,
            initial={} if step else _sketches((name, full_tensor_of(weight)) for name, weight in before.items()),
            gradients=_sketches(workload.full_gradients().items()),
            gradient_norm=norm_value if norm_value is not None and math.isfinite(norm_value) else None,
            # A generator, one whole weight at a time: no rank has to hold an entire sharded model.
            updates=_sketches(
                (name, full_tensor_of(weight.detach() - before[name]))
                for name, weight in weights.items()
                if weight.shape == before[name].shape
            ),
        )


def masters_of(workload: Workload) -> dict[str, Tensor]:
    """Return the fp32 masters that this rank updates, by the names of their weights; empty if there are none."""
    if not isinstance(workload, KeepsMaster):
        return {}
    names = {weight: plain_name(name) for name, weight in workload.model.named_parameters()}
    return {names[weight]: master for weight, master in workload.own_masters().items()}


def fingerprints_of_sequences(tokens_bs: Tensor) -> list[str]:
    """Return a fingerprint of each sequence, the same for equal sequences. tokens_bs: on the CPU."""
    return [blake2b(row_s.tobytes(), digest_size=FINGERPRINT_BYTES).hexdigest() for row_s in tokens_bs.numpy()]


def fingerprint_of_weights(model: nn.Module, parameters: int) -> str | None:
    """Return a fingerprint of the bits of all weights; None if the model is sharded or has other parameters."""
    weights = list(model.parameters())
    if any(isinstance(weight, DTensor) for weight in weights) or sum(w.numel() for w in weights) != parameters:
        return None
    digest = blake2b(digest_size=FINGERPRINT_BYTES)
    for weight in weights:
        digest.update(weight.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _statistics(model: nn.Module) -> list[float]:
    """Return means, then variances, of the batch normalisation's last forward; empty without one or if not finite."""
    for module in model.modules():
        if isinstance(module, BatchNorm) and module.statistics_2d is not None:
            statistics: list[float] = module.statistics_2d[:, :CHANNELS].flatten().tolist()
            return statistics if all(map(math.isfinite, statistics)) else []
    return []


def _sketches(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Sketch]:
    """Return the finite sketches. Iterating may gather tensors from all ranks, so all ranks must call this."""
    sketches = {name: sketch_of(name, tensor) for name, tensor in tensors}
    return {name: sketch for name, sketch in sketches.items() if all(map(math.isfinite, sketch))}


def sketch_of(name: str, tensor: Tensor) -> Sketch:
    """Return two numbers that tell tensors apart: the norm, and the projection on a direction seeded by the name."""
    part = tensor.detach().flatten()[:PROJECTED].float().cpu()
    direction = torch.randn(part.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    return torch.linalg.vector_norm(tensor, dtype=torch.float32).item(), torch.dot(part, direction).item()
