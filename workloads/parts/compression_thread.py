"""One thread that compresses and averages a step's buckets in their order, while backward goes on beside it.

Two threads, or callbacks of futures, would enter the collectives of different buckets in an order that differs from
rank to rank, which hangs on gloo and on NCCL alike. So there is one thread, and it alone uses its process group.
"""

# Without `from __future__ import annotations`: DistributedDataParallel compares the hook's annotations with types.

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from workloads.parts.compression import Bucket, Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A bucket whose gradients are there when the device has passed `ready`, and where its averages are awaited."""

    bucket: Bucket
    ready: torch.cuda.Event | None
    done: Future[Tensor]


class CompressionThread:
    """Averages buckets by a scheme, one after another in the order in which they are handed in.

    On CUDA the thread has a stream of its own. Each hand-over is an event, and no host waits for a device: the side
    stream waits for the event that the caller's stream records when it hands in a bucket, and the future records one on
    the side stream, which the stream of whoever waits for the future waits for.
    A rank's thread is one more than the threads that it was given to compute with.
    """

    def __init__(self, scheme: Scheme, device: torch.device) -> None:
        self._scheme = scheme
        self._device = device
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._error: BaseException | None = None
        self._side_stream: AbstractContextManager[object] = nullcontext()
        if device.type == "cuda":
            self._side_stream = torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        # A daemon: it may stand in a collective whose other ranks are gone, and must not keep the process alive.
        Thread(target=self._run, name="compression", daemon=True).start()

    def hand_in(self, bucket: Bucket) -> Future[Tensor]:
        """The bucket's averages, in its own memory, when they are there; after an error, whatever lies there.

        It fails itself only where not even that can be handed over.
        """
        ready = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        done: Future[Tensor] = Future(devices=[self._device] if ready else None)
        self._jobs.put(_Job(bucket=bucket, ready=ready, done=done))
        return done

    def check(self) -> None:
        """Call it when all futures of a step are through, before anybody reads a gradient.

        A future that failed would be a failure inside of torch's reducer, which cannot tell of it.

        Raises:
            BaseException: what went wrong in the thread first; from then on it averages no more.
        """
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        if self._device.type == "cuda":
            # A new thread begins on the first device and on its default stream.
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
        except BaseException as error:  # noqa: BLE001  # Whatever it is, `check` raises it in the step.
            self._error = error
        try:
            job.done.set_result(job.bucket.flat)
        except Exception as error:  # noqa: BLE001  # Whatever it is, who waits for the future must not do so for ever.
            self._error = self._error or error
            job.done.set_exception(error)  # type: ignore[arg-type]  # It takes any exception.


def hook(
    thread: CompressionThread,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[Tensor]:
    """What DistributedDataParallel calls with each bucket when its last gradient is there, in backward."""
    return thread.hand_in(Bucket(index=bucket.index(), flat=bucket.buffer(), weights=tuple(bucket.parameters())))
