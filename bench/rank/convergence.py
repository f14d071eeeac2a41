"""One rank of a convergence check: trains its case, and writes evidence of what each step used and computed.

Nothing here is timed: fingerprints cost more than small steps do.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from hashlib import blake2b
from pathlib import Path
from pkgutil import resolve_name

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bench.case import Case
from bench.rank.distributed import Position, joined
from bench.rank.evidence import EvidenceFile, Sketch, StepEvidence
from bench.rank.messages import RankOrder
from collectors.metrics.rank import LOSS
from collectors.sample_log import Note, Reading, SampleLog
from workloads.core.batch_norm import BatchNorm
from workloads.core.data import Batches, NoBatches, make_batches, to_device
from workloads.core.mesh import make_mesh
from workloads.core.trainer import plain_name, whole_of
from workloads.options import check_of
from workloads.protocols import KnowsNorm, KnowsNotes, Workload

FINGERPRINT_BYTES = 8
CHANNELS = 16
"""How many channels of the batch normalisation have their statistics written."""
PROJECTED = 2**17
"""How many elements of a tensor a sketch projects, from its beginning."""


def witness(order: RankOrder, log: SampleLog, position: Position) -> None:
    """Train all steps of the order's case as one rank; write the evidence and the log.

    Raises:
        LogUnwritable: the log cannot be written.
        Exception: whatever the workload raises.
    """
    case = order.case
    with joined(order, log) as device:
        spec = case.spec()
        mesh = make_mesh(spec.mesh(case), case.device, high_priority=spec.high_priority_axes(case))
        workload: Workload = resolve_name(spec.entry)(case, mesh, _unmarked)
        for text in workload.notes() if isinstance(workload, KnowsNotes) else ():
            log.write(Note(trial=order.trial, time_ns=time.time_ns(), text=text))
        batches = make_batches(case, spec.place_of(case, order.rank))
        with closing(batches), closing(EvidenceFile(Path(order.folder), order.rank)) as file:
            for seen in witnessed_steps(case, workload, batches, device):
                file.write(seen)
                samples = [] if seen.loss is None else [LOSS.at(seen.loss)]
                # Marked as warm-up, so that nothing of it is read as speed.
                log.write(
                    Reading(trial=order.trial, time_ns=time.time_ns(), mark="warm_up", step=seen.step, samples=samples)
                )
                position.step += 1


def witnessed_steps(
    case: Case, workload: Workload, batches: Batches | NoBatches, device: torch.device
) -> Iterator[StepEvidence]:
    """Train all steps of a convergence check's case; yield what each step used and computed as soon as it is done."""
    parameters, check = case.shape.parameters(), check_of(case)
    assert check is not None, "a witness is of a check"
    for step in range(case.steps):
        weights = fingerprint_of_weights(workload.model, parameters)
        held = _held_weights(workload.model)
        before = {name: weight.detach().clone() for name, weight in held.items()}
        tokens_bs = next(batches).flip(0) if check.is_reversed else next(batches)
        loss = workload.step(to_device(tokens_bs, device))
        value = None if loss is None else loss.item()
        norm = workload.gradient_norm() if isinstance(workload, KnowsNorm) else None
        yield StepEvidence(
            step=step,
            loss=value if value is not None and math.isfinite(value) else None,
            is_finite=value is None or math.isfinite(value),
            learning_rates=[group["lr"] for group in workload.optimizer.param_groups if "lr" in group],
            sequences=fingerprints_of_sequences(tokens_bs),
            statistics=_statistics(workload.model),
            weights=weights,
            initial={} if step else _sketches((name, whole_of(weight)) for name, weight in before.items()),
            gradients=_sketches(workload.full_gradients().items()),
            gradient_norm=norm if norm is not None and math.isfinite(norm) else None,
            # A generator, one whole weight at a time: no rank need hold the whole of a sharded model.
            updates=_sketches(
                (name, whole_of(weight.detach() - before[name]))
                for name, weight in held.items()
                if weight.shape == before[name].shape
            ),
        )


def fingerprints_of_sequences(tokens_bs: Tensor) -> list[str]:
    """Return a fingerprint of each sequence; equal sequences have equal ones. tokens_bs: on the CPU."""
    return [blake2b(row_s.tobytes(), digest_size=FINGERPRINT_BYTES).hexdigest() for row_s in tokens_bs.numpy()]


def fingerprint_of_weights(model: nn.Module, parameters: int) -> str | None:
    """Return a fingerprint of the bits of all weights; None if the model is sharded or has not this many parameters."""
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


def _held_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return this rank's part of each weight, by the weight's name in `single`."""
    # Skip empty weights: an engine that shards by itself leaves them behind, and a server holds nameless ones.
    return {plain_name(name): weight for name, weight in model.named_parameters() if weight.numel()}


def _sketches(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Sketch]:
    """Return the finite sketches. Iterating may gather tensors from all ranks, so all ranks must call it."""
    sketches = {name: sketch_of(name, tensor) for name, tensor in tensors}
    return {name: sketch for name, sketch in sketches.items() if all(map(math.isfinite, sketch))}


def sketch_of(name: str, tensor: Tensor) -> Sketch:
    """Return two numbers that tell tensors apart: the norm, and the projection on a direction seeded by the name."""
    part = tensor.detach().flatten()[:PROJECTED].cpu()
    direction = torch.randn(part.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    return tensor.norm().item(), torch.dot(part, direction).item()


def _unmarked(name: str) -> nullcontext[None]:
    """Mark no phase, since none is timed."""
    return nullcontext()
