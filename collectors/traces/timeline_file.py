"""A Timeline as a file of compressed columns, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.traces.allocations import Allocations
from collectors.traces.calls import Call
from collectors.traces.spans import ABSENT, About, Timeline

T = TypeVar("T")

SCHEMA_VERSION = 2
COLUMNS = ("name", "kind", "start_ns", "end_ns", "stream", "correlation", "call", "sequence", "shape")
OF_VERSION_1 = ("name", "kind", "start_ns", "end_ns", "stream")
ALLOCATIONS = tuple(field.name for field in fields(Allocations))


def save(timeline: Timeline, path: Path) -> None:
    """Write the Timeline into one file."""
    columns = {name: getattr(timeline, name) for name in COLUMNS}
    columns |= {f"allocations_{name}": getattr(timeline.allocations, name) for name in ALLOCATIONS}
    with path.open("wb") as file:
        np.savez_compressed(
            file,
            schema_version=np.int64(SCHEMA_VERSION),
            rank=np.int64(timeline.rank),
            is_device=np.bool_(timeline.is_device),
            names=_bytes(list(timeline.names)),
            calls=_bytes(timeline.calls),
            shapes=_bytes(timeline.shapes),
            about=_bytes(asdict(timeline.about)),
            **columns,
        )


def load(path: Path) -> Timeline:
    """The Timeline of a file that `save` wrote.

    Raises:
        ValueError: a newer version wrote it.
    """
    # numpy leaves a file open that is no archive.
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        version = int(file["schema_version"])
        if version > SCHEMA_VERSION:
            raise ValueError(
                f"{path}: schema version {version} is newer than {SCHEMA_VERSION}, which this program reads"
            )
        rank, is_device = int(file["rank"]), bool(file["is_device"])
        if version == 1:
            names = tuple(str(name) for name in file["names"])
            columns = {name: file[name] for name in OF_VERSION_1}
            absent = np.full(columns["name"].size, ABSENT, dtype=np.int64)
            return Timeline(
                rank=rank,
                is_device=is_device,
                names=names,
                **columns,
                correlation=absent,
                calls=(),
                call=absent.astype(np.int32),
                sequence=absent,
                shapes=(),
                shape=absent.astype(np.int32),
            )
        return Timeline(
            rank=rank,
            is_device=is_device,
            names=_decoded(file["names"], tuple[str, ...]),
            calls=_decoded(file["calls"], tuple[Call, ...]),
            shapes=_decoded(file["shapes"], tuple[str, ...]),
            about=_decoded(file["about"], About),
            **{name: file[name] for name in COLUMNS},
            allocations=_allocations(file),
        )


def _allocations(file: Mapping[str, NDArray[Any]]) -> Allocations:
    columns = {name: file[key] for name in ALLOCATIONS if (key := f"allocations_{name}") in file}
    # Older files do not tell threads.
    return Allocations(**{"thread": np.full(columns["time_ns"].size, ABSENT, dtype=np.int64), **columns})


def _bytes(value: object) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(msgspec.json.encode(value), dtype=np.uint8)


def _decoded(column: np.ndarray[tuple[int], np.dtype[np.uint8]], type_: type[T]) -> T:
    return msgspec.json.decode(column.tobytes(), type=type_)
