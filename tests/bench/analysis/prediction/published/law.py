"""A law of compute time by kinds of kernel, fitted on published rows and tried on rows that the fit has not seen.

A constant share of the peak says that all FLOPs take equally long. They do not: attention's are slower than those of
large products, norms and activations are bound by memory, and a collective that overlaps takes memory bandwidth and
multiprocessors from the kernels that it hides behind. The time of a token is therefore

    a x products / peak + b x attention / peak + c x passes / bandwidth + d x communication

products: FLOPs of matrix products, 6 for each multiplied weight and 2 more for each that backward repeats.
attention: FLOPs of the causal half, 6 L H Q T, and a third more where whole blocks are repeated.
passes: bytes of one pass over the residual stream in bf16, of each block, times the share that is left when compiled.
The last also has what products of a small width lose: both grow with layers x width.
communication: time of all collectives by the product's own model of links, hidden or not.

a is 1 / (share of the peak that products reach), b likewise, c a number of passes, d a share. None may be negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from tests.bench.analysis.prediction.published.rows import Row
from workloads.cost_models.step_time import FORWARD_SHARE, StepTime

COMPILED_SHARE = 1 / 3
"""Passes that are left when a block is compiled, counted by hand for Llama 8B in reads or writes of its width.

RMSNorm is 14 as separate kernels and 2 as one, rotary 12 and 2.5, SwiGLU 17 and 10; all of forward 66 and 21, backward
93 and 33.
"""
BF16_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Coefficients. products_share, attention_share: of the peak. passes: over the stream, by block and token."""

    products: float
    attention: float
    passes: float
    communication: float

    @property
    def products_share(self) -> float:
        return 1 / self.products

    @property
    def attention_share(self) -> float:
        return 1 / self.attention if self.attention else float("inf")

    def tokens_per_second_per_gpu(self, row: Row) -> float:
        """Return the predicted rate of a row."""
        coefficients = np.array([self.products, self.attention, self.passes, self.communication])
        return 1 / float(terms(row) @ coefficients)


def terms(row: Row) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the four terms of a token's time with coefficients of 1, in seconds."""
    shape, published = row.shape, row.published
    is_full = published.checkpoint == "full"
    again = published.recomputed_products
    again = float(is_full) if again is None else again
    blocks = shape.layers * shape.block_parameters()
    products = 6 * (blocks * (1 + FORWARD_SHARE * again) + shape.width * shape.vocabulary)
    attention = 6 * shape.layers * shape.query_width * shape.sequence * (1 + FORWARD_SHARE * is_full)
    # What `selective` repeats of a block is all that is not a product: every pass of its forward.
    passes = shape.layers * shape.width * BF16_BYTES * (1 + FORWARD_SHARE * (published.checkpoint != "none"))
    if published.compile != "none":
        passes *= COMPILED_SHARE
    step = row.fit.step
    assert isinstance(step, StepTime), step
    return np.array(
        [
            products / row.peak.flops_per_second,
            attention / row.peak.flops_per_second,
            passes / row.report.memory_bytes_per_second,
            step.communication_s / row.tokens_per_gpu,
        ]
    )


def fitted(rows: Sequence[Row]) -> Law:
    """Return the law whose relative errors of time over these rows have the least squares."""
    relative = np.array([terms(row) * row.measured for row in rows])
    coefficients, _ = nnls(relative, np.ones(len(rows)))
    products, attention, passes, communication = (float(each) for each in coefficients)
    return Law(products=products, attention=attention, passes=passes, communication=communication)


def held_out(row: Row, rows: Sequence[Row]) -> Law:
    """Return the law of the rows of all other models, so that the fit has seen this one in no size, length or batch."""
    return fitted([each for each in rows if each.published.model != row.published.model])
