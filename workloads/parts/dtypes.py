"""torch's type for each precision."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from workloads.cards.card import Precision

DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
