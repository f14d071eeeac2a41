"""The batches of a rank: synthetic tokens, made by the worker processes of a real DataLoader.

Dimensions: b batch, s sequence + 1 (inputs and, shifted by one, targets).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from workloads.cost_models.shape import Shape
from workloads.options import local_batch, microbatch_count
from workloads.spec import DataShare, Setup

EPOCH_STEPS = 1000
NOISE_RATIO = 0.1
LARGEST_STRIDE = 4

RankSampler = DistributedSampler[NDArray[np.int64]]


class Progressions(Dataset[NDArray[np.int64]]):
    """Sequences that count up by a stride of their own, with some tokens replaced at random.

    Two neighbouring tokens give the stride and so the next token, which a model can learn. Item i depends only on the
    seed and i, whichever process makes it.
    """

    def __init__(self, shape: Shape, *, seed: int, sequences: int) -> None:
        self._shape = shape
        self._seed = seed
        self._sequences = sequences

    def __len__(self) -> int:
        return self._sequences

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """Return the sequence at that index, one token longer than the model reads."""
        if not 0 <= index < self._sequences:
            raise IndexError(f"sequence {index} is not among the {self._sequences} of an epoch")
        random = np.random.default_rng((self._seed, index))
        vocabulary, length = self._shape.vocabulary, self._shape.sequence + 1
        start, stride = random.integers(vocabulary), random.integers(1, LARGEST_STRIDE + 1)
        tokens_s = (start + stride * np.arange(length)) % vocabulary
        noise_s = random.integers(vocabulary, size=length)
        return np.where(random.random(length) < NOISE_RATIO, noise_s, tokens_s)


class Batches:
    """Endless iterator over a rank's batches, one for each optimizer step.

    A batch is (microbatches x local batch, sequence + 1) int64 on the CPU, pinned where the device is a GPU.
    In step s all data ranks together read the same sequences, however many ranks share them.
    The worker processes start with the first batch and end at `close`.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        data_rank: int,
        data_ranks: int,
        epoch_steps: int = EPOCH_STEPS,
        sampler_type: type[RankSampler] = DistributedSampler,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.sequences = microbatch_count(setup) * local_batch(setup, data_ranks)
        """Sequences of this rank in one optimizer step."""
        dataset = Progressions(setup.shape, seed=setup.seed, sequences=epoch_steps * setup.shape.batch)
        sampler = sampler_type(
            dataset, num_replicas=data_ranks, rank=data_rank, shuffle=True, seed=setup.seed, drop_last=True
        )
        workers = int(setup.options["workers"])
        loader: DataLoader[NDArray[np.int64]] = DataLoader(
            dataset,
            batch_size=self.sequences,
            sampler=sampler,
            drop_last=True,
            num_workers=workers,
            # Forked workers start in milliseconds and need no importable main module; they touch no device.
            multiprocessing_context="fork" if workers else None,
            persistent_workers=workers > 0,
            pin_memory=setup.device == "cuda",
            collate_fn=partial(_collate, delay_s=float(setup.options["loader_delay_ms"]) / 1e3, sleep=sleep),
        )
        # Only the generator holds the loader, so that closing it ends the loader's processes.
        self._tokens = _endless(loader, sampler)

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        """Return the batch of the next optimizer step."""
        return next(self._tokens)

    def close(self) -> None:
        """End the worker processes; each finishes at most the batch it is making."""
        self._tokens.close()


class NoBatches:
    """Endless iterator over empty batches, for a rank that trains on none."""

    sequences = 0

    def __init__(self, setup: Setup) -> None:
        self._tokens_bs = torch.empty((0, setup.shape.sequence + 1), dtype=torch.int64)

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        """Return a batch without sequences."""
        return self._tokens_bs

    def close(self) -> None:
        """Do nothing: there are no processes to end."""


def make_batches(
    setup: Setup,
    place: DataShare | None,
    *,
    epoch_steps: int = EPOCH_STEPS,
    sampler_type: type[RankSampler] = DistributedSampler,
) -> Batches | NoBatches:
    """Make the batches of a rank. place: its share of each batch; None if it trains on none."""
    if place is None:
        return NoBatches(setup)
    return Batches(
        setup, data_rank=place.rank, data_ranks=place.ranks, epoch_steps=epoch_steps, sampler_type=sampler_type
    )


def to_device(tokens_bs: Tensor, device: torch.device) -> Tensor:
    """Copy the batch to the device; from pinned memory the copy does not block the host."""
    return tokens_bs.to(device, non_blocking=True)


def _endless(loader: DataLoader[NDArray[np.int64]], sampler: RankSampler) -> Generator[Tensor]:
    for epoch in count():
        sampler.set_epoch(epoch)  # Each epoch has an order of its own.
        yield from loader


def _collate(sequences: Sequence[NDArray[np.int64]], *, delay_s: float, sleep: Callable[[float], None]) -> Tensor:
    """Stack sequences to a batch, and sleep first if the loader is slowed on purpose."""
    if delay_s:
        sleep(delay_s)
    return torch.from_numpy(np.stack(sequences))
