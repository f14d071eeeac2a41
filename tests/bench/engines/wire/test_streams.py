"""Streams of pipes and sockets write what fits without waiting, and end without an error if the other side is gone."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from bench.engines.wire.frames import PipeStream, SocketStream, Stream

Connected = Callable[[], AbstractContextManager[tuple[Stream, Stream]]]


@contextmanager
def _pipes() -> Iterator[tuple[Stream, Stream]]:
    (first_reads, second_writes), (second_reads, first_writes) = os.pipe(), os.pipe()
    ends = [
        (os.fdopen(reads, "rb", 0), os.fdopen(writes, "wb", 0))
        for reads, writes in ((first_reads, first_writes), (second_reads, second_writes))
    ]
    first, second = (PipeStream(reads, writes) for reads, writes in ends)
    yield first, second
    first.close()
    second.close()
    assert all(file.closed for pair in ends for file in pair)


@contextmanager
def _sockets() -> Iterator[tuple[Stream, Stream]]:
    sockets = socket.socketpair()
    first, second = map(SocketStream, sockets)
    yield first, second
    first.close()
    second.close()
    assert [each.fileno() for each in sockets] == [-1, -1]


@pytest.mark.parametrize("connected", [_pipes, _sockets])
def test_what_one_side_writes_the_other_reads_as_it_comes(connected: Connected) -> None:
    with connected() as (ours, theirs):
        assert not theirs.has_unread()
        ours.write(b"abc")
        assert theirs.has_unread()
        assert (theirs.read(2), theirs.read(9)) == (b"ab", b"c")
        theirs.write(b"answer")
        assert ours.read(9) == b"answer"
        ours.hang_up()
        assert theirs.has_unread()  # Its end.
        assert theirs.read(9) == b""


@pytest.mark.parametrize("connected", [_pipes, _sockets])
def test_what_fits_is_written_without_waiting_and_nothing_when_the_other_side_does_not_read(
    connected: Connected,
) -> None:
    with connected() as (ours, theirs):
        data, written = memoryview(bytes(1 << 16)), 0
        while number := ours.write_some(data):
            written += number
        assert written > select.PIPE_BUF
        assert ours.write_some(data) == 0
        taken = 0
        while theirs.has_unread():
            taken += len(theirs.read(1 << 16))
        assert taken == written
        assert ours.write_some(data) > 0


@pytest.mark.parametrize("connected", [_pipes, _sockets])
def test_a_side_whose_other_is_gone_ends_without_an_error(connected: Connected) -> None:
    with connected() as (ours, theirs):
        theirs.close()
        ours.hang_up()
        ours.abort()
        ours.close()
        ours.hang_up()
        ours.abort()
