"""Reads the JSON of nccl-tests: `all_reduce_perf -J FILE` and its siblings.

Source: nccl-tests, src/util.cu and src/common.cu, with JSON_FILE_VERSION 1 to 3.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated

import msgspec
from msgspec import Meta

from bench.errors import Misuse
from bench.store.files import read_small
from workloads.cost_models.terms import Collective
from workloads.spec import Precision

# Names in nccl-tests, and our names for the same things

COLLECTIVES: Mapping[str, Collective] = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "gather": "gather",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "scatter": "scatter",
    "sendrecv": "send",
}
"""Our collective, by nccl-tests' program without its `_perf`."""

DTYPES: Mapping[str, Precision] = {"float": "fp32", "half": "fp16", "bfloat16": "bf16"}
"""Our precision, by nccl-tests' type. Other types keep their name."""

ALGORITHM = "--algorithm="
"""Prefix of the argument that names the algorithm in our files; nccl-tests has no such argument."""


# The JSON of nccl-tests: the keys that are read, and their allowed values

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Some = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Figure = Annotated[float, Meta(ge=0)]


class WrittenVersion(msgspec.Struct, frozen=True):
    """The version of the format, which every version contains."""

    version: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class WrittenDevice(msgspec.Struct, frozen=True):
    """A GPU that runs ranks of a process."""

    group: int = 0
    hostname: str | None = None
    device_info: str | None = None


class WrittenConfig(msgspec.Struct, frozen=True):
    """The configuration of the run."""

    nthreads: _Some
    ngpus: _Some
    devices: Annotated[list[WrittenDevice], Meta(min_length=1)]


class WrittenPlacement(msgspec.Struct, frozen=True):
    """Measurements in place or out of place; bandwidths in GB/s, times in microseconds."""

    alg_bw: _Figure
    bus_bw: _Figure
    time: _Figure | None = None
    cpu_time: _Figure | None = None
    nwrong: _Figure | None = None


class WrittenRow(msgspec.Struct, frozen=True):
    """One size. Its placements are decoded later: a row of 0 bytes, which is left out, may have "nan" there."""

    size: _Count
    type: str
    redop: str
    out_of_place: msgspec.Raw = msgspec.Raw(b"null")
    in_place: msgspec.Raw = msgspec.Raw(b"null")


class WrittenCheck(msgspec.Struct, frozen=True):
    """The number of checks that found wrong elements."""

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


KNOWN_FORMS = (1, 2, 3)
"""Supported versions of the format; each only adds keys to the previous one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Measurements in place, where the result overwrites the input, or out of place.

    elapsed_s: of one call; the mean over ranks, unless an option of nccl-tests changed that.
    wrong_count: wrong elements; None if nccl-tests did not check.
    """

    elapsed_s: float
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float
    wrong_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size. dtype: our name if we have one, else nccl-tests'. reduction: None if nothing is reduced."""

    size_bytes: int
    dtype: str
    reduction: str | None
    out_of_place: Placement | None
    in_place: Placement | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One run of nccl-tests.

    form: version of the JSON's format; the file does not contain that of nccl-tests itself.
    collective: our name if we have one, else nccl-tests'.
    ranks: of one communicator. hosts, devices: without repetition; nccl-tests names only the first GPU of each process.
    notes: what is left out and why, and doubts about the figures.
    """

    source: str
    form: int
    nccl_version: str | None
    collective: str
    ranks: int
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The types of the rows, without repetition."""
        return tuple(dict.fromkeys(row.dtype for row in self.rows))

    @property
    def reductions(self) -> tuple[str, ...]:
        """The reductions of the rows, without repetition; empty if nothing is reduced."""
        return _once([row.reduction for row in self.rows])


def read(path: Path) -> Imported:
    """Read the run in this file.

    Raises:
        Misuse: the file cannot be read or is not from nccl-tests.
    """
    try:
        data = read_small(path)
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}; give a file that `all_reduce_perf -J FILE` wrote") from None
    return decode(data, str(path))


def decode(data: bytes, source: str) -> Imported:
    """Decode the run in this JSON. source: its place, for messages.

    Raises:
        Misuse: the text is truncated, not JSON, of an unknown version or from another program, or has no figure of a
            correct result.
    """
    try:
        form = msgspec.json.decode(data, type=WrittenVersion).version
        if form not in KNOWN_FORMS:
            known = f"{KNOWN_FORMS[0]} to {KNOWN_FORMS[-1]}"
            raise Misuse(f'{source}: "version" is {form}; this program reads nccl-tests\' JSON of versions {known}')
        file = msgspec.json.decode(data, type=WrittenFile)
        return _imported(file, form, source)
    except msgspec.ValidationError as error:
        raise Misuse(
            f"{source}: is not a file of nccl-tests: {_line(error)}; `all_reduce_perf -J FILE` writes one"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(_why_no_json(data, source, error)) from None


def _why_no_json(data: bytes, source: str, error: Exception) -> str:
    if not data.strip():
        return f"{source}: is empty; nccl-tests writes the file's end when it ends, so let it run through"
    place = re.search(r"invalid number \(byte (\d+)\)", str(error))  # A number cut after its point or sign.
    if "truncated" in str(error) or (place is not None and int(place[1]) >= len(data)):
        return (
            f"{source}: is truncated: it ends at byte {len(data)}, within the document; was nccl-tests ended, or the"
            " file copied in part? Run it again, or copy it whole"
        )
    return f"{source}: is not JSON: {_line(error)}; give a file that `all_reduce_perf -J FILE` wrote"


def _imported(file: WrittenFile, form: int, source: str) -> Imported:
    notes: Counter[str] = Counter()
    rows = [row for each in file.results if (row := _row(each, source, notes)) is not None]
    if not rows:
        reasons = "; ".join(_row_counts(notes)) or "its list is empty"
        raise Misuse(f'{source}: "results" holds no figure: {reasons}; run nccl-tests on larger sizes')
    # An unchecked result counts as correct if no other check found an error.
    wrong_checks = file.out_of_bounds.count if file.out_of_bounds is not None else 0
    placements = [each for row in rows for each in (row.out_of_place, row.in_place) if each is not None]
    if all(wrong_checks if each.wrong_count is None else each.wrong_count for each in placements):
        raise Misuse(
            f"{source}: holds no correct result, so its times are meaningless; set NCCL_DEBUG=WARN and run"
            " nccl-tests again"
        )
    devices = [device for device in file.config.devices if device.group == file.config.devices[0].group]
    return Imported(
        source=source,
        form=form,
        nccl_version=_version_text(file.nccl_version),
        collective=_collective(file.args[0], source),
        ranks=len(devices) * file.config.nthreads * file.config.ngpus,
        hosts=_once([device.hostname for device in devices]),
        devices=_once([device.device_info for device in devices]),
        rows=tuple(rows),
        notes=(*_row_counts(notes), *_doubts(file, wrong_checks)),
    )


def _doubts(file: WrittenFile, wrong_checks: int) -> Iterator[str]:
    """Yield reasons to doubt the file's figures, or that they are the library's."""
    if wrong_checks:
        yield f"OUT OF BOUNDS: {wrong_checks} of its checks found wrong elements"
    yield from (f"NCCL's last error was {_short(error)}" for error in file.errors if error.strip())
    if file.end_time is None:
        yield "nccl-tests failed, so larger sizes may be missing"
    for argument in file.args[1:]:
        if argument.startswith(ALGORITHM):
            yield f"it used the algorithm {argument.removeprefix(ALGORITHM)}, not the library's own"


def _row(row: WrittenRow, source: str, notes: Counter[str]) -> Row | None:
    """Return the row; if it has no figure, count the reason in `notes` and return None."""
    if row.size == 0:
        notes["of 0 bytes: fewer elements than ranks"] += 1
        return None
    out_of_place = _placement(row.out_of_place, f"{source}: {row.size} bytes, out_of_place")
    in_place = _placement(row.in_place, f"{source}: {row.size} bytes, in_place")
    if out_of_place is None and in_place is None:
        notes["without a figure: nccl-tests stopped there"] += 1
        return None
    return Row(
        size_bytes=row.size,
        dtype=DTYPES.get(row.type, row.type),
        reduction=None if row.redop == "none" else row.redop,
        out_of_place=out_of_place,
        in_place=in_place,
    )


def _placement(raw: msgspec.Raw, place: str) -> Placement | None:
    try:
        body = msgspec.json.decode(raw, type=WrittenPlacement | None)
    except msgspec.ValidationError as error:
        raise Misuse(f"{place}: {_line(error)}; run nccl-tests again") from None
    if body is None:
        return None
    if body.cpu_time is not None:
        raise Misuse(f'{place}: holds "cpu_time", which is not the time of the collective; run nccl-tests without -C')
    if not body.time:
        raise Misuse(f'{place}: "time" is {body.time}; it must be above 0')
    if body.nwrong is not None and not body.nwrong.is_integer():
        raise Misuse(f'{place}: "nwrong" is {body.nwrong}; it must be a whole number')
    figures = (body.time * 1e-6, body.alg_bw * 1e9, body.bus_bw * 1e9)
    if not all(math.isfinite(figure) for figure in figures):
        raise Misuse(f"{place}: a figure is larger than any measurement; was the file changed?")
    return Placement(
        elapsed_s=figures[0],
        algorithm_bytes_per_second=figures[1],
        bus_bytes_per_second=figures[2],
        wrong_count=None if body.nwrong is None else int(body.nwrong),
    )


def _collective(program: str, source: str) -> str:
    """Return the collective by its program's name, for example `build/all_reduce_perf` or `all_reduce_perf_mpi`."""
    match = re.match(r"(\w+?)_perf", PurePath(program).name)
    if match is None:
        raise Misuse(
            f'{source}: "args" begins with {_short(program)}, which is not a program of nccl-tests; names look like'
            " all_reduce_perf"
        )
    return COLLECTIVES.get(match[1], match[1])


def _version_text(code: int | None) -> str | None:
    """Return NCCL's version from its code, with two digits for the minor version since 2.9: 21803 is 2.18.3.

    Source: NCCL, nccl.h, NCCL_VERSION.
    """
    if code is None:
        return None
    major, minor = divmod(code // 100, 100) if code >= 10_000 else divmod(code // 100, 10)
    return f"{major}.{minor}.{code % 100}"


def _row_counts(notes: Counter[str]) -> list[str]:
    return [f"{count} row{'s' if count > 1 else ''} {reason}" for reason, count in notes.items()]


def _once(names: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return f'"{line[:60]}..."' if len(line) > 60 else f'"{line}"'


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
