"""An error feedback without its point, to show what it is for, or to look at one step of compression alone."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.data_parallel.compression import Bucket, ErrorFeedback


class FakeForgetfulFeedback(ErrorFeedback):
    """Remembers nothing."""

    def of(self, bucket: Bucket) -> Tensor:
        """Zeros, and what is written into them is lost."""
        return torch.zeros_like(bucket.flat)
