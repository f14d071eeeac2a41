"""Buckets of DistributedDataParallel: the option that sets their size, its default by model, and how many it makes.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from workloads.core.precision_options import gradient_bytes
from workloads.cost_models.terms import Transfer, elements, model_weights
from workloads.spec import Option, OptionValue, Search, Setup

MIB = 2**20
BUCKET_MB = Option(
    name="bucket_mb",
    default=0.0,
    before=25.0,
    minimum=0.0,
    help="MiB of gradients in a bucket, which are averaged together; 0: enough for about eight buckets, at most 25",
    search=Search(values=(25.0, 100.0), is_late=True),
)
LARGEST_MB = 25.0
"""DistributedDataParallel's own default: large enough to reach the link's bandwidth."""
LEAST_COMPILED_MB = 1.0
"""torch.compile splits its graphs at buckets, and needs them at least this large."""
LEAST_MB = 0.001
PARTS = 10
"""By default a bucket has this fraction (1 / PARTS) of all gradients. A bucket may exceed its size, so there are fewer:
8 to 10 with the presets that are small enough."""


def default_bucket_mb(gradients_bytes: int, *, is_compiled: bool = False) -> float:
    """Return the default size of a bucket, in MiB, to two significant digits.

    gradients_bytes: gradients that one rank averages.
    Example: the 3.5 MiB of shape tiny give 0.35, which makes 9 buckets.
    """
    part_mb = float(f"{gradients_bytes / PARTS / MIB:.2g}")
    least_mb = LEAST_COMPILED_MB if is_compiled else LEAST_MB
    return min(LARGEST_MB, max(least_mb, part_mb))


def bucket_mb(setup: Setup, *, parts: int = 1) -> float:
    """Return the size of a bucket in MiB: the user's, or the default by model.

    parts: of the model, each on ranks of its own.
    """
    chosen = float(setup.options[BUCKET_MB.name])
    if chosen:
        return chosen
    gradients_bytes = gradient_bytes(setup) * setup.shape.parameters() // parts
    return default_bucket_mb(gradients_bytes, is_compiled=setup.options["compile"] != "none")


def settled_buckets(setup: Setup, *, parts: int = 1) -> Mapping[str, OptionValue]:
    """Return the size of a bucket as an option; see `StrategySpec.settled`."""
    return {BUCKET_MB.name: bucket_mb(setup, parts=parts)}


def size_refusals(setup: Setup) -> list[str]:
    """Return why no bucket can have this size."""
    chosen = float(setup.options[BUCKET_MB.name])
    if not 0 < chosen < LEAST_MB:
        return []
    return [f"option {BUCKET_MB.name} is {chosen:g}; it must be {LEAST_MB:g} MiB or more, or 0 for the default"]


def bucket_refusals(setup: Setup) -> list[str]:
    """Return why DistributedDataParallel's buckets cannot have this size."""
    if reasons := size_refusals(setup):
        return reasons
    chosen, compile_mode = float(setup.options[BUCKET_MB.name]), setup.options["compile"]
    if compile_mode == "none" or not 0 < chosen < LEAST_COMPILED_MB:
        return []
    return [
        f"option bucket_mb is {chosen} with compile={compile_mode}; torch.compile needs buckets of at least 1 MB:"
        " use bucket_mb=1 or more, or compile=none"
    ]


def unused_bucket_refusals(setup: Setup, option: str, remedy: str) -> list[str]:
    """Return why the size of buckets would have no effect where FSDP2 reduces gradients.

    option: the setting that makes FSDP2 reduce them. remedy: the setting that uses buckets.
    """
    chosen = float(setup.options[BUCKET_MB.name])
    if not chosen:
        return []
    return [
        f"option {BUCKET_MB.name} is {chosen:g} with {option}, where FSDP2 reduces gradients unit by unit, without"
        f" buckets: leave it out, or use {remedy}"
    ]


def bucket_notes(setup: Setup) -> list[str]:
    """Return a note where one bucket holds all gradients, with a size that makes several."""
    if setup.ranks == 1 or buckets(setup) > 1:
        return []
    note = "one bucket holds all gradients, so nothing can be hidden"
    is_compiled = setup.options["compile"] != "none"
    better_mb = default_bucket_mb(gradient_bytes(setup) * setup.shape.parameters(), is_compiled=is_compiled)
    if (count := count_buckets(setup, better_mb)) > 1:
        return [f"{note}; {BUCKET_MB.name}={better_mb:g} makes {count}"]
    return [f"{note}; torch.compile needs buckets of at least 1 MB" if is_compiled else note]


def bucket_bytes(setup: Setup, *, parts: int = 1) -> int:
    """Return the bytes of gradients at which a bucket is full. parts: see `bucket_mb`."""
    return int(bucket_mb(setup, parts=parts) * MIB)


def buckets(setup: Setup) -> int:
    """Return how many buckets hold all gradients."""
    return count_buckets(setup, bucket_mb(setup))


def count_buckets(setup: Setup, size_mb: float) -> int:
    """Return the number of buckets of this size, in MiB, from the second step on.

    Backward completes gradients from the head to the embedding; DistributedDataParallel notes that order in the first
    step, which has only one bucket, and then makes its final buckets.
    """
    sizes = [gradient_bytes(setup) * elements([weight]) for weight in reversed(model_weights(setup.shape))]
    return filled_buckets(sizes, int(size_mb * MIB))


def filled_buckets(sizes: Iterable[int], bucket_bytes: int) -> int:
    """Return how many buckets hold tensors of these sizes, in bytes, in their order; a bucket ends once it is full.

    Example: 3, 3, 3, 1 with buckets of 5 bytes make two: the second 3 fills the first bucket beyond its size.
    Source: torch, reducer.cpp, compute_bucket_assignment_by_size.
    """
    count, filled_bytes = 0, math.inf
    for size_bytes in sizes:
        if filled_bytes >= bucket_bytes:
            count, filled_bytes = count + 1, 0
        filled_bytes += size_bytes
    return count


def bucketed_average(setup: Setup, axis: str) -> Transfer:
    """Return the all_reduce that averages all gradients over an axis, bucket by bucket during backward."""
    return Transfer(
        collective="all_reduce",
        axis=axis,
        payload_bytes=gradient_bytes(setup) * setup.shape.parameters(),
        calls=buckets(setup),
        behind="backward",
    )
