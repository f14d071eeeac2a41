"""Traces whose answers are known are read exactly, by the scanner in C and by Python alone into the same Timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from collectors.traces.reading import decoders as python_decoder
from collectors.traces.reading.raw_events import Decoder
from collectors.traces.reading.reader import read_trace
from tests.benchmarks.trace_parts.trace_files import STEPS, write

TRACES = Path(__file__).parents[5] / "../shared/data/traces"
SCANNER, PYTHON = python_decoder.decode_by_scanner, python_decoder.decode_in_python

built = pytest.mark.usefixtures("scanner")


@pytest.mark.parametrize("decoders", [(SCANNER,), (PYTHON,)], ids=["scanner", "python"])
def test_a_written_trace_holds_what_it_was_made_of(
    decoders: Sequence[Decoder], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if SCANNER in decoders:
        request.getfixturevalue("scanner")
    truth = write(tmp_path / "rank3.json", events=3000, rank=3, ranks=8)
    timeline = read_trace(tmp_path / "rank3.json", decoders=decoders, chunk_bytes=100_000)
    assert (timeline.rank, timeline.about.world_size, timeline.about.left_out) == (3, 8, ())
    assert timeline.busy_ns("compute") == truth.compute_ns
    assert timeline.busy_ns("communication") == truth.communication_ns
    assert timeline.overlap_ns("compute", "communication") == truth.overlap_ns
    assert len(timeline.steps()) == STEPS


@built
@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json.gz")) or [TRACES], ids=lambda path: path.name)
def test_both_decoders_make_the_same_timeline_of_a_real_trace(path: Path) -> None:
    if not path.is_file():
        pytest.skip(f"{TRACES} has no traces")
    # One as it is used; the other in chunks that end elsewhere.
    _assert_same(read_trace(path), read_trace(path, decoders=(PYTHON,), chunk_bytes=1 << 20))


@built
def test_chunks_that_the_scanner_gives_up_leave_no_trace_of_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write(path, events=3000)
    lines = path.read_text().splitlines(keepends=True)
    for number in range(200, len(lines), 3000):
        lines[number] = lines[number].replace("aten::view", "aten::v\\u0069ew")
    path.write_text("".join(lines))
    odd = read_trace(path, chunk_bytes=50_000)
    assert "aten::view" in odd.names
    _assert_same(odd, read_trace(path, decoders=(PYTHON,)))


def _assert_same(one: object, other: object) -> None:
    assert type(one) is type(other)
    for field in fields(one):  # type: ignore[arg-type]
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == its.dtype, field.name
            np.testing.assert_array_equal(mine, its, err_msg=field.name)
        elif field.name in ("allocations", "about"):
            _assert_same(mine, its)
        else:
            assert mine == its, field.name
