"""The scanner in C gives what the decoder in Python gives, to the last bit, or gives the chunk up."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import struct
import subprocess
from dataclasses import fields
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings

from collectors.traces.reading import decoders
from collectors.traces.reading.raw_events import KNOWN_PHASES, RawEvents
from collectors.traces.timeline import ABSENT, Allocations
from tests.benchmarks.trace_parts.trace_files import write
from tests.collectors.traces.made.chunks import (
    ARROW,
    BEGIN,
    COLLECTIVE,
    EVENTS,
    FRAME,
    LAUNCH,
    MARK,
    MEMORY,
    MESSAGE,
    OLD_MEMORY,
    OPERATOR,
    TOKENS,
    UNKNOWN,
    chunk_of,
    damaged,
)
from tests.support.servers import absent_server

ROOT = Path(__file__).parents[5]
SOURCES = ROOT / "collectors" / "traces" / "reading" / "scanner"
HARNESS = Path(__file__).with_name("scanner_harness.c")
TRACES = ROOT / "../shared/data/traces"

built = pytest.mark.usefixtures("scanner")


MANY = chunk_of(
    *(event.replace("all", f"all{number}") for number in range(600) for event in (COLLECTIVE, MEMORY)),
    *(OPERATOR.replace("linear", str(number)).replace("16", str(number)) for number in range(600)),
)


class _Trace(msgspec.Struct):
    events: msgspec.Raw = msgspec.field(name="traceEvents")


@built
def test_structures_of_c_are_laid_out_as_they_are_read() -> None:
    from collectors.traces.reading import _scanner

    sizes = (_scanner.ROW_BYTES, _scanner.SAID_BYTES, _scanner.ALLOCATION_BYTES)
    assert sizes == tuple(layout.itemsize for layout in (decoders.ROW, decoders.SAID, decoders.ALLOCATION))


@built
@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json.gz")) or [TRACES], ids=lambda path: path.name)
def test_a_real_trace_is_read_alike(path: Path) -> None:
    if not path.is_file():
        pytest.skip(f"{TRACES} has no traces")
    chunk = bytes(msgspec.json.decode(gzip.decompress(path.read_bytes()), type=_Trace).events)
    assert _given(chunk).name.size > 1000


@built
@pytest.mark.parametrize(
    ("tid", "thread"), [("43", 43), ('"thread 43"', ABSENT), ("null", ABSENT), (str(2**63 - 1), 2**63 - 1)]
)
def test_the_thread_of_a_change_of_memory_may_be_no_number(tid: str, thread: int) -> None:
    chunk = chunk_of(MEMORY.replace('"tid": 43', f'"tid": {tid}'))
    raw = decoders.decode_by_scanner(chunk) or decoders.decode_in_python(chunk)
    assert raw is not None
    _assert_same(raw, decoders.decode_in_python(chunk))
    assert raw.allocations.thread.tolist() == [thread]


@built
def test_a_written_trace_is_read_alike(tmp_path: Path) -> None:
    truth = write(tmp_path / "trace.json", events=5000)
    chunk = bytes(msgspec.json.decode((tmp_path / "trace.json").read_bytes(), type=_Trace).events)
    raw = _given(chunk)
    assert raw.name.size < truth.events
    assert len(raw.collective_args) == truth.events // 180


@built
@pytest.mark.parametrize(
    "chunk",
    [
        b"[]",
        b" [ ] \n",
        *(chunk_of(event) for event in EVENTS),
        chunk_of(*EVENTS, *EVENTS),
        MANY,
        chunk_of(*EVENTS).replace(b"\n", b"\r\n\t").replace(b": ", b":").replace(b", ", b" ,"),
        chunk_of(
            '{"args": {"correlation": 5}, "dur": 1, "ts": 2.5, "tid": 3, "pid": 4, "name": "", "cat": "kernel",'
            ' "ph": "X"}'
        ),
        chunk_of(LAUNCH.replace('"dur": 15', '"dur": 15, "dur": 16.25')),
        chunk_of(LAUNCH.replace("57541", '1, "correlation": 2')),
        chunk_of(MEMORY.replace("140737488355328", "-1")),
        chunk_of(MEMORY.replace('"Total Allocated": 4096, ', "")),
        chunk_of(MEMORY.replace('"Device Type": 1', '"Device Type": 0')),
        chunk_of(MARK.replace("thread_name", "[memory]")),
        chunk_of(OLD_MEMORY, MEMORY, OLD_MEMORY),
        chunk_of(OLD_MEMORY.replace('"ts": 13,', "").replace('"Bytes": 4', '"Bytes": 4, "Bytes": 5')),
        chunk_of(*(ARROW.replace('"f"', json.dumps(phase)) for phase in ("B", "", "ff", "x", *KNOWN_PHASES))),
        chunk_of(UNKNOWN.replace('"name": "x"', '"name": "a\\"b"')),
    ],
)
def test_what_is_plain_is_not_given_up(chunk: bytes) -> None:
    _given(chunk)


@built
def test_what_it_passes_over_it_counts_and_names() -> None:
    raw = _given(chunk_of(OLD_MEMORY, MEMORY, OLD_MEMORY, ARROW, MARK, BEGIN, BEGIN.replace('"B"', '"E"')))
    assert (raw.without_address, raw.allocations.time_ns.tolist()) == (2, [12500])
    assert raw.unread_phases == {"B", "E"}


@built
@pytest.mark.parametrize(
    "chunk",
    [
        b"",
        b"]",
        b"[",
        b"{}",
        b"[] []",
        b"[1]",
        b"[{}]",
        chunk_of(LAUNCH) + b"x",
        chunk_of(LAUNCH)[:-1],
        chunk_of(LAUNCH + ","),
        chunk_of(LAUNCH.replace("cudaLaunchKernel", "cuda\\u004caunchKernel")),
        chunk_of(LAUNCH.replace("cudaLaunchKernel", "cuda\u00e9")),
        chunk_of(LAUNCH.replace("cudaLaunchKernel", "cuda\n")),
        chunk_of(LAUNCH.replace('"name"', '"n\\u0061me"')),
        chunk_of(LAUNCH.replace('"pid": 42', '"pid": "stream 42"')),
        chunk_of(LAUNCH.replace('"pid": 42', '"pid": 42.0')),
        chunk_of(LAUNCH.replace('"pid": 42, ', "")),
        chunk_of(LAUNCH.replace('"dur": 15', '"dur": 15e0')),
        chunk_of(LAUNCH.replace('"dur": 15', '"dur": 15.0001')),
        chunk_of(LAUNCH.replace('"dur": 15', '"dur": 015')),
        chunk_of(LAUNCH.replace('"dur": 15', '"dur": 9223372036854775')),
        chunk_of(LAUNCH.replace('"ph": "X"', '"ph": "X", "ph": "X"')),
        chunk_of(LAUNCH.replace('"args"', '"args": {}, "args"')),
        chunk_of(LAUNCH.replace('"cat": "cuda_runtime"', '"cat": "Runtime"')),
        chunk_of(LAUNCH.replace("57541", '"57541"')),
        chunk_of(LAUNCH.replace("57541", "9223372036854775808")),
        chunk_of(OPERATOR.replace("Input Dims", "Input dims")),
        chunk_of(OPERATOR.replace("[[8, 16], []]", '["\\n"]')),
        chunk_of(OPERATOR.replace("[[8, 16], []]", "[" * 100 + "]" * 100)),
        chunk_of(COLLECTIVE.replace('"allreduce"', "null")),
        chunk_of(COLLECTIVE.replace('"Seq": 3', '"Seq": "3"')),
        chunk_of(MESSAGE.replace('"Dst Rank": 1', '"Dst Rank": "1"')),
        chunk_of(MESSAGE.replace('"Src Rank": 3', '"Src Rank": 3.0')),
        chunk_of(LAUNCH.replace('"cbid": 211', '"Src Rank": null, "Dst Rank": []')),
        chunk_of(FRAME.replace('"Python id": 1', '"correlation": "1"')),
        chunk_of(FRAME.replace("\\u0041", "\\ud800")),
        chunk_of(FRAME.replace("null", "nil")),
        chunk_of(ARROW.replace("4458676522800.000", '"now"')),
        chunk_of(MEMORY.replace('"Bytes": -1024, ', "")),
        chunk_of(MEMORY.replace("140737488355328", "null")),
        chunk_of(BEGIN.replace('"B"', '"\\u0042"')),
        chunk_of(MEMORY.replace("[memory]", "[m\\u0065mory]")),
        chunk_of(MEMORY.replace('"Device Id": 3', '"Device Id": 40000')),
    ],
)
def test_what_is_odd_is_given_up(chunk: bytes) -> None:
    assert decoders.decode_by_scanner(chunk) is None


@pytest.mark.slow
@built
@settings(max_examples=500)
@given(damaged())
@example(chunk_of(*EVENTS))
def test_of_a_damaged_chunk_it_gives_what_python_gives_or_nothing(chunk: bytes) -> None:
    raw = decoders.decode_by_scanner(chunk)
    if raw is not None:
        _assert_same(raw, decoders.decode_in_python(chunk))


@built
def test_each_end_of_a_chunk_but_the_whole_is_given_up() -> None:
    chunk = chunk_of(*EVENTS)
    assert [end for end in range(len(chunk) + 1) if decoders.decode_by_scanner(chunk[:end]) is not None] == [len(chunk)]


@built
def test_it_reads_a_view_of_a_part() -> None:
    chunk = chunk_of(LAUNCH, COLLECTIVE)
    part = memoryview(bytearray(b"x[1" + chunk + b"]]"))[3:-2]
    raw = decoders.decode_by_scanner(part)
    assert raw is not None
    _assert_same(raw, decoders.decode_in_python(chunk))


@pytest.mark.slow
def test_sanitizers_find_no_byte_read_beyond_a_chunk_and_none_lost(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        absent_server("neither gcc nor clang is installed")
    harness = tmp_path / "harness"
    options = ["-std=c11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    compiled = subprocess.run(
        [compiler, *options, f"-I{SOURCES}", str(HARNESS), "-o", str(harness)], capture_output=True, text=True
    )
    if compiled.returncode:
        pytest.skip(f"no sanitizers: {compiled.stderr.strip()[-200:]}")
    chunks = [*_ends_of(chunk_of(*EVENTS)), *_mutated(20_000), MANY]
    fed = b"".join(struct.pack("=Q", len(chunk)) + chunk for chunk in chunks)
    ended = subprocess.run([str(harness)], input=fed, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()
    assert len(ended.stdout.split()) == len(chunks)
    assert ended.stdout.endswith(b"1\n")


def _ends_of(chunk: bytes) -> list[bytes]:
    """Each beginning of the chunk, and each with the bracket that a chunk ends with."""
    return [chunk[:end] + closing for end in range(len(chunk) + 1) for closing in (b"", b"]")]


def _mutated(count: int) -> list[bytes]:
    """Many small chunks, each with some bytes changed."""
    choice = random.Random(0)
    chunks = []
    for _ in range(count):
        text = bytearray(chunk_of(choice.choice(EVENTS)))
        for _ in range(choice.choice((1, 1, 2, 5))):
            at = choice.randrange(len(text) + 1)
            text[at : at + choice.choice((0, 1, 4, 40))] = choice.choice(TOKENS).encode()
        chunks.append(bytes(text))
    return chunks


def _given(chunk: bytes) -> RawEvents:
    """What the scanner gives, which is what Python gives."""
    raw = decoders.decode_by_scanner(chunk)
    assert raw is not None
    _assert_same(raw, decoders.decode_in_python(chunk))
    return raw


def _assert_same(one: object, other: object) -> None:
    assert type(one) is type(other)
    assert isinstance(one, RawEvents | Allocations)
    for field in fields(one):
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, Allocations):
            _assert_same(mine, its)
        elif isinstance(mine, np.ndarray):
            assert mine.dtype == its.dtype, field.name
            np.testing.assert_array_equal(mine, its, err_msg=field.name)
        else:
            assert mine == its, field.name
