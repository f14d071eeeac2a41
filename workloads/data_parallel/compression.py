"""Gradient compression for DistributedDataParallel: schemes that average buckets of gradients with less traffic.

Schemes: `Uncompressed`, `Rounding`, `PowerSGD` and `TopK`. `CompressionThread` runs one of them during backward.
"""

# Without `from __future__ import annotations`: DistributedDataParallel compares the hook's annotations with types.
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from workloads.core.collectives import all_gather
from workloads.data_parallel.cost_model import kept_elements, usable_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are averaged together.

    index: of the bucket among those of a step; the same on every rank.
    flat: the gradients in fp32, laid end to end in the order of their weights.
    """

    index: int
    flat: Tensor
    weights: tuple[Tensor, ...]

    def views(self, flat: Tensor) -> list[Tensor]:
        """Split a tensor that is laid out like the bucket into views, each in its weight's shape."""
        parts = torch.split(flat, [weight.numel() for weight in self.weights])
        return [part.view(weight.shape) for weight, part in zip(self.weights, parts, strict=True)]


class Scheme(Protocol):
    """A way to average gradients over the ranks of a group.

    All ranks compute the same bits, so that their weights stay equal: values that differ between ranks are either
    reduced by the library, which gives each rank the same sum, or gathered and then added in the order of the ranks.
    Results that each rank then computes locally, for example orthonormal factors, are equal only if all devices are of
    one kind.
    """

    def average(self, bucket: Bucket) -> None:
        """Replace the bucket's gradients by (nearly) their means over the group; all ranks call it in one order."""


class ErrorFeedback:
    """This rank's accumulated compression error of each weight's gradients.

    It is stored by weight: DistributedDataParallel rebuilds its buckets after the first step, and earlier errors must
    not be lost.
    Source: Stich et al. 2018, Sparsified SGD with memory; Vogels et al. 2019, PowerSGD, algorithm 2.
    """

    def __init__(self) -> None:
        self._layouts: dict[int, list[int]] = {}
        self._flats: dict[int, Tensor] = {}
        self._by_weight: dict[int, Tensor] = {}

    def of(self, bucket: Bucket) -> Tensor:
        """Return the errors of this bucket's weights, laid out like the bucket; the scheme writes new errors into them.

        They are zero at first.
        """
        layout = [id(weight) for weight in bucket.weights]
        if self._layouts.get(bucket.index) != layout:
            # The bucket is new or was rebuilt: copy its weights' errors from the tensors that held them.
            flat = torch.zeros_like(bucket.flat)
            for weight, errors in zip(bucket.weights, bucket.views(flat), strict=True):
                if (earlier := self._by_weight.get(id(weight))) is not None:
                    errors.copy_(earlier)
                self._by_weight[id(weight)] = errors
            self._layouts[bucket.index], self._flats[bucket.index] = layout, flat
        return self._flats[bucket.index]


class Uncompressed:
    """Averages all gradients of a bucket in one all_reduce."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def average(self, bucket: Bucket) -> None:
        bucket.flat.div_(self._group.size())
        dist.all_reduce(bucket.flat, group=self._group)


# The thread that averages a step's buckets while backward continues. There is only one, and nothing else uses its
# process group: several threads, or callbacks of futures, would enter the collectives of different buckets in an order
# that differs from rank to rank, which hangs on gloo and on NCCL.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A bucket to average: its gradients are complete at `ready`, and its averages when `average` has a result."""

    bucket: Bucket
    ready: torch.cuda.Event | None
    average: Future[Tensor]


class CompressionThread:
    """Averages buckets by a scheme, one after another in the order of `hand_in`.

    On CUDA the thread has a side stream, and no host waits for a device: the side stream waits for the event that the
    caller's stream records in `hand_in`; the future records an event on the side stream, for which the stream of the
    future's reader waits.
    The thread is in addition to the rank's compute threads.
    """

    def __init__(self, scheme: Scheme, device: torch.device) -> None:
        self._scheme = scheme
        self._device = device
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._error: BaseException | None = None
        self._side_stream: AbstractContextManager[object] = nullcontext()
        if device.type == "cuda":
            self._side_stream = torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        # A daemon: it may hang in a collective whose other ranks are gone, and must not keep the process alive.
        Thread(target=self._run, name="compression", daemon=True).start()

    def hand_in(self, bucket: Bucket) -> Future[Tensor]:
        """Queue a bucket; the future's result is the bucket's memory, holding the averages.

        After an error the memory's content is undefined, and `check` raises the error. The future itself fails only if
        not even the memory can be returned.
        """
        ready = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        result: Future[Tensor] = Future(devices=[self._device] if ready else None)
        self._jobs.put(_Job(bucket=bucket, ready=ready, average=result))
        return result

    def check(self) -> None:
        """Raise the thread's first error; call it when a step's futures are done, before a gradient is read.

        The futures themselves do not fail, because torch's reducer, which waits for them, could not report why.

        Raises:
            BaseException: the thread's first error, after which it averages nothing more.
        """
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        if self._device.type == "cuda":
            # A new thread starts on the first device and its default stream.
            torch.cuda.set_device(self._device)
        with torch.no_grad(), self._side_stream:
            while True:
                self._do(self._jobs.get())

    def _do(self, job: _Job) -> None:
        try:
            if self._error is None:
                if job.ready is not None:
                    job.ready.wait()
                self._scheme.average(job.bucket)
        except BaseException as error:  # noqa: BLE001  # `check` raises it in the step, whatever it is.
            self._error = error
        try:
            job.average.set_result(job.bucket.flat)
        except Exception as error:  # noqa: BLE001  # Whatever it is, nobody may wait for the future for ever.
            self._error = self._error or error
            job.average.set_exception(error)  # type: ignore[arg-type]  # It takes any exception.


def hook(
    thread: CompressionThread,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[Tensor]:
    """Communication hook: DistributedDataParallel calls it in backward when a bucket's gradients are complete."""
    return thread.hand_in(Bucket(index=bucket.index(), flat=bucket.buffer(), weights=tuple(bucket.parameters())))


# PowerSGD: each gradient matrix is averaged as a product of two thin factors, by one step of power iteration.
#
# Dimensions: n rows, m columns, r rank.
# Source: Vogels et al. 2019, PowerSGD: practical low-rank gradient compression for distributed optimization.


class PowerSGD:
    """Averages a bucket by two all_reduces: left factors with all gradients that are not matrices, then right factors.

    Gradients that are not matrices travel whole. A matrix whose smaller side is below the rank uses that side as its
    rank and loses nothing; its factors are then larger than the matrix, and are sent nevertheless.
    """

    def __init__(self, group: dist.ProcessGroup, *, rank: int, seed: int, feedback: ErrorFeedback) -> None:
        """Make the scheme. seed: of the first right factors; the same on all ranks."""
        self._group = group
        self._rank = rank
        self._feedback = feedback
        # On the CPU for every device, so that all ranks draw the same numbers; separate, so that no other draws change.
        self._random = torch.Generator().manual_seed(seed)
        self._rights: dict[int, Tensor] = {}

    def average(self, bucket: Bucket) -> None:
        errors = self._feedback.of(bucket)
        # M: gradients plus the last errors. The bucket and `errors` both start as M; means replace the first, new
        # errors the second.
        errors.add_(bucket.flat)
        bucket.flat.copy_(errors)
        parts = list(zip(bucket.weights, bucket.views(bucket.flat), bucket.views(errors), strict=True))
        matrices = [part for part in parts if part[0].dim() == 2]
        others = [part for part in parts if part[0].dim() != 2]

        # P <- M Q, summed over ranks, made orthonormal
        own_lefts_nr = [matrix_nm @ self._right_factor(weight) for weight, matrix_nm, _ in matrices]
        means = self._means([*own_lefts_nr, *(gradient for _, gradient, _ in others)])
        lefts_nr = [_orthonormal(left_nr) for left_nr in means[: len(matrices)]]
        for (_, gradient, error), mean in zip(others, means[len(matrices) :], strict=True):
            gradient.copy_(mean)
            error.zero_()

        # Q <- M' P, summed over ranks; the error is what this rank's own factors leave out of its matrix: M - P Q'
        own_rights_mr = [matrix_nm.T @ left_nr for (_, matrix_nm, _), left_nr in zip(matrices, lefts_nr, strict=True)]
        for (_, _, error_nm), left_nr, right_mr in zip(matrices, lefts_nr, own_rights_mr, strict=True):
            error_nm.addmm_(left_nr, right_mr.T, alpha=-1)
        for (weight, matrix_nm, _), left_nr, right_mr in zip(
            matrices, lefts_nr, self._means(own_rights_mr), strict=True
        ):
            torch.mm(left_nr, right_mr.T, out=matrix_nm)
            self._rights[id(weight)] = right_mr

    def _right_factor(self, weight: Tensor) -> Tensor:
        """Return the start of power iteration: the last step's right factor of this weight, a random one at first.

        It is made orthonormal, which changes no result in exact arithmetic, but keeps all r directions alive: a
        gradient of lower rank would leave columns of zeros, which could never grow again.
        """
        right_mr = self._rights.get(id(weight))
        if right_mr is None:
            rows, columns = weight.shape
            rank = usable_rank(rows, columns, self._rank)
            right_mr = torch.randn(columns, rank, generator=self._random).to(weight.device)
        return _orthonormal(right_mr)

    def _means(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return each tensor's mean over the group, by one all_reduce of them all; without tensors there is no call."""
        if not tensors:
            return []
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        flat /= self._group.size()
        dist.all_reduce(flat, group=self._group)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for tensor, part in zip(tensors, parts, strict=True)]


def _orthonormal(tall: Tensor) -> Tensor:
    """Return orthonormal columns whose span includes the given ones, even if these are linearly dependent.

    Uses QR by Householder reflections; the paper's Gram-Schmidt would divide by zero for dependent columns.
    """
    orthonormal: Tensor = torch.linalg.qr(tall).Q
    return orthonormal


class Rounding:
    """Averages a bucket in one all_reduce of half-precision elements, which the library also adds in half precision.

    It halves the bytes; rounding errors are lost.
    """

    def __init__(self, group: dist.ProcessGroup, dtype: torch.dtype) -> None:
        self._group = group
        self._dtype = dtype

    def average(self, bucket: Bucket) -> None:
        # Divide before the sum: in fp16 the sum over many ranks could overflow.
        rounded = (bucket.flat / self._group.size()).to(self._dtype)
        dist.all_reduce(rounded, group=self._group)
        bucket.flat.copy_(rounded)


# Top-k: each rank sends the largest elements of its gradients, and adds the others to the next step's.
#
# Every rank adds up what all ranks sent, so the average has up to ranks x k nonzero elements.
# Source: Stich et al. 2018, Sparsified SGD with memory; Lin et al. 2018, Deep gradient compression, section 3.1, whose
# momentum correction, warm-up and clipping before the choice are not covered.


class TopK:
    """Sends the share `density` of each weight's gradient, at least one element, in one all_gather for each bucket.

    Values are fp32; an index is int32 and counts from the start of its weight's gradient, because a bucket may have
    more elements than int32 can count.
    """

    def __init__(self, group: dist.ProcessGroup, *, density: float, feedback: ErrorFeedback) -> None:
        self._group = group
        self._density = density
        self._feedback = feedback

    def average(self, bucket: Bucket) -> None:
        flat, errors = bucket.flat, self._feedback.of(bucket)
        flat += errors
        # Choose elements of each weight, then address them in the bucket: start of the weight + index in the weight.
        chosen = [_largest(gradient, self._density) for gradient in bucket.views(flat)]
        starts_k = _starts(bucket, chosen)
        indices_k = torch.cat(chosen)
        values_k = flat[starts_k + indices_k]
        # The error is everything that is not sent.
        errors.copy_(flat)
        errors[starts_k + indices_k] = 0
        flat.zero_()
        # Values and indices travel as one int32 tensor; those of all ranks arrive in the order of the ranks.
        sent = torch.cat([values_k.view(torch.int32), indices_k.to(torch.int32)])
        arrived = sent.new_empty(self._group.size() * len(sent))
        all_gather(arrived, sent, group=self._group)
        for of_rank in arrived.chunk(self._group.size()):
            rank_values_k, rank_indices_k = of_rank.chunk(2)
            # One rank's indices are all different, so the result does not depend on the order of additions.
            flat.index_add_(0, starts_k + rank_indices_k.long(), rank_values_k.view(torch.float32))
        flat /= self._group.size()


def _largest(gradient: Tensor, density: float) -> Tensor:
    """Return the int64 indices of the elements to send: those of largest magnitude."""
    count = kept_elements(gradient.numel(), density)
    if count == gradient.numel():
        return torch.arange(count, device=gradient.device)
    return gradient.flatten().abs().topk(count, sorted=False).indices


def _starts(bucket: Bucket, chosen: list[Tensor]) -> Tensor:
    """Return where the gradient of each sent element's weight begins in the bucket; the same on all ranks.

    Example: two weights of 10 elements, of which 2 and 1 are sent, give 0, 0, 10.
    """
    start, starts = 0, []
    for weight, indices in zip(bucket.weights, chosen, strict=True):
        starts.append(torch.full_like(indices, start))
        start += weight.numel()
    return torch.cat(starts)
