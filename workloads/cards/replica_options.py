"""The options of strategies on DistributedDataParallel: the size of its buckets, and how many they are."""

from __future__ import annotations

from workloads.cards.card import Option, Setup
from workloads.laws.terms import bucket_count

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
