"""How large the elements of a dtype are, and so the buffers of a collective.

torch knows too, and is not asked: traces are read where there is no torch.
"""

from __future__ import annotations

from collectors.traces.calls import Call

_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


def buffer_bytes(call: Call) -> int | None:
    """Bytes of the larger of the rank's two buffers, as nccl-tests counts a size; None where the trace does not say."""
    known = [elements for elements in (call.given_elements, call.filled_elements) if elements is not None]
    if not known or call.dtype not in _BYTES:
        return None
    return max(known) * _BYTES[call.dtype]
