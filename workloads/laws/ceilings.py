"""What the probes of a device count: operations of a matrix product, and bytes that a copy moves.

Copies within a memory are counted as STREAM does: each byte that the program reads, and each byte that it writes. A
cache that fetches a line before it overwrites it (write-allocate) moves more; that is not counted. Copies over a bus
count each byte once, since every byte crosses the bus once.
Source: McCalpin 1995, Memory bandwidth and machine balance in current high performance computers; STREAM's reference,
"Counting Bytes and FLOPS".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

CopyKind = Literal[
    "memory_copy", "memory_triad", "device_copy", "host_to_device", "device_to_host", "host_to_device_pageable"
]
"""memory_copy, memory_triad: a = b and a = b + s c in the memory of the host, as in STREAM.
device_copy: a = b in the memory of one GPU.
host_to_device, device_to_host: over the bus, from and to pages that cannot be swapped out (pinned).
host_to_device_pageable: from ordinary pages, which the driver copies to pinned ones first.
"""

BUFFERS_TOUCHED: Mapping[str, int] = {
    "memory_copy": 2,
    "memory_triad": 3,
    "device_copy": 2,
    "host_to_device": 1,
    "device_to_host": 1,
    "host_to_device_pageable": 1,
}
"""Buffers read and written in the memory, or over the bus, that the kind is named after."""


def matmul_flops(m: int, n: int, k: int) -> int:
    """Floating-point operations of an m by k times a k by n matrix: k multiplications and additions an element."""
    return 2 * m * n * k


def moved_bytes(kind: str, size_bytes: int) -> int:
    """Bytes that one copy of a kind moves. size_bytes: of one buffer.

    Raises:
        ValueError: no kind of copy is called so.
    """
    if kind not in BUFFERS_TOUCHED:
        raise ValueError(f'copy "{kind}" is unknown; it may be {", ".join(BUFFERS_TOUCHED)}')
    return BUFFERS_TOUCHED[kind] * size_bytes
