"""Initial weights of a model: each element follows from the seed, its weight's name and its position in that weight.

So any rank can make any part of a weight by itself, and all strategies start with the same model, however they divide
it. Integer arithmetic and one rounding make an element; neither depends on how the work is cut into chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

WEIGHT_DEVIATION = 0.02
CHUNK_ELEMENTS = 2**18
"""Elements made at a time; each takes about 24 bytes meanwhile."""

# Sebastiano Vigna's splitmix64 (public domain, https://prng.di.unimi.it/splitmix64.c), in the 64 bits of a signed
# integer: its increment, and shift and multiplier of each of its rounds.
_INCREMENT = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31

_PIECES = 4
_PIECE_DEVIATION = math.sqrt((2**32 - 1) / 12)
"""Deviation of a whole number that is uniform over 16 bits."""
_SUM_MEAN = -_PIECES / 2
"""Mean of the sum of four of them; each counts from -2^15 to 2^15 - 1."""


def deviation(name: str, layers: int) -> float:
    """Return the standard deviation of a weight's initial elements.

    name: in the model of `single`. The two products of a block that write to the residual stream get a smaller one, so
    that its variance does not grow with depth. Source: Radford et al. 2019, GPT-2, section 2.3.
    """
    is_residual = name.endswith(("attention.o.weight", "mlp.down.weight"))
    return WEIGHT_DEVIATION / math.sqrt(2 * layers) if is_residual else WEIGHT_DEVIATION


@torch.no_grad()
def fill_weights(weights: Iterable[tuple[str, Tensor]], *, seed: int, layers: int) -> None:
    """Set the initial values of weights; of a DTensor, those of this rank's part. Norms get ones.

    weights: of a model or of a part of it, by their names in `single`. layers: of the whole model.
    """
    for name, weight in weights:
        part, offset = weight.data, (0,) * weight.dim()
        if isinstance(weight, DTensor):
            part = weight.to_local()
            _, offset = compute_local_shape_and_global_offset(weight.shape, weight.device_mesh, weight.placements)
        if weight.dim() == 1:
            part.fill_(1.0)
        else:
            columns = weight.shape[1]
            _fill_matrix(part, key_of(name, seed), offset, whole_columns=columns, deviation=deviation(name, layers))


@torch.no_grad()
def fill_flat(part: Tensor, name: str, first: int, *, seed: int, dims: int, layers: int) -> None:
    """Set the initial values of neighbouring elements of a flat weight, as `fill_weights` does.

    part: (elements,). first: index of the first one in the weight. dims: of the weight before it was flattened.
    """
    if dims == 1:
        part.fill_(1.0)
    else:
        _fill_matrix(part[None], key_of(name, seed), (0, first), whole_columns=0, deviation=deviation(name, layers))


def _fill_matrix(part: Tensor, key: int, offset: Sequence[int], *, whole_columns: int, deviation: float) -> None:
    """Fill a part of a matrix, chunk by chunk.

    part: (rows, columns). offset: row and column of its first element in the matrix.
    """
    rows, columns = part.shape
    width = max(1, min(columns, CHUNK_ELEMENTS))
    height = CHUNK_ELEMENTS // width
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            chunk = part[row : row + height, column : column + width]
            first = (offset[0] + row) * whole_columns + offset[1] + column
            below = torch.arange(len(chunk), device=part.device) * whole_columns + first
            indices = below[:, None] + torch.arange(chunk.shape[1], device=part.device)
            chunk.copy_(elements_at(indices.flatten(), key, deviation).view(chunk.shape))


def key_of(name: str, seed: int) -> int:
    """Return the number that distinguishes a weight's elements from those of other weights and seeds."""
    return int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little", signed=True)


def elements_at(indices: Tensor, key: int, deviation: float) -> Tensor:
    """Return a weight's elements, float32, by their indices in the flat weight, int64, which are overwritten.

    An element is the sum of the four 16-bit pieces of a 64-bit hash, scaled: close to normal, and never beyond 3.47
    deviations. The sum is exact, so that only the scaling rounds.
    """
    bits = indices.mul_(_signed(_INCREMENT)).add_(key)
    for shift, multiplier in _ROUNDS:
        bits = bits.bitwise_xor_(_shifted(bits, shift)).mul_(_signed(multiplier))
    bits.bitwise_xor_(_shifted(bits, _LAST_SHIFT))
    pieces = bits.view(torch.int16).view(-1, _PIECES)
    total = pieces[:, 0].float()
    for place in range(1, _PIECES):
        total += pieces[:, place]
    return total.sub_(_SUM_MEAN).mul_(deviation / (_PIECE_DEVIATION * math.sqrt(_PIECES)))


def _shifted(bits: Tensor, shift: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift of signed integers fills with the sign."""
    return (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def _signed(number: int) -> int:
    """Return the signed integer that has the same 64 bits."""
    return number - 2**64 if number >= 2**63 else number
