"""The JSON of nccl-tests as it is written, as far as it is read: its keys, and what their values may be.

Source: nccl-tests, src/util.cu and src/common.cu, with JSON_FILE_VERSION 1 to 3.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Some = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Figure = Annotated[float, Meta(ge=0)]


class WrittenVersion(msgspec.Struct, frozen=True):
    """What every version of the form says of itself."""

    version: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class WrittenDevice(msgspec.Struct, frozen=True):
    """A GPU that ranks of a process run on."""

    group: int = 0
    hostname: str | None = None
    device_info: str | None = None


class WrittenConfig(msgspec.Struct, frozen=True):
    """How the run was set."""

    nthreads: _Some
    ngpus: _Some
    devices: Annotated[list[WrittenDevice], Meta(min_length=1)]


class WrittenPlacement(msgspec.Struct, frozen=True):
    """What was measured with the result in one place."""

    alg_bw: _Figure
    bus_bw: _Figure
    time: _Figure | None = None
    cpu_time: _Figure | None = None
    nwrong: _Figure | None = None


class WrittenRow(msgspec.Struct, frozen=True):
    """One size. Its placements are read late: a row of no bytes, which is left out, may hold "nan" there."""

    size: _Count
    type: str
    redop: str
    out_of_place: msgspec.Raw = msgspec.Raw(b"null")
    in_place: msgspec.Raw = msgspec.Raw(b"null")


class WrittenCheck(msgspec.Struct, frozen=True):
    """How many checks found wrong elements."""

    count: _Count = 0


class WrittenFile(msgspec.Struct, frozen=True):
    """A whole file."""

    args: Annotated[list[str], Meta(min_length=1)]
    nccl_version: _Count | None
    config: WrittenConfig
    results: list[WrittenRow]
    out_of_bounds: WrittenCheck | None = None
    errors: tuple[str, ...] = ()
    end_time: str | None = None
