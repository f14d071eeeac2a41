"""Reads from NCCL's log which algorithm and protocol NCCL chose for each collective.

NCCL writes a line for each call on the first rank of a communicator of two or more ranks, for all_reduce, all_gather,
reduce_scatter, broadcast and reduce; collectives made of sends and receives have no algorithm. The log does not show
the origin of a call: a barrier appears as an all_reduce of 4 bytes. Forms of the line, newest first:

    AllGather [Symmetric]: 1048576 Bytes -> Kernel AllGather_STMC nchannels 8 nthreads 512      (from 2.27)
    AllGather: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..7}                    (from 2.24)
    AllGather: 4194304 Bytes -> Algo 1 proto 1 time 31.250000                                   (2.23)
    4194304 Bytes -> Algo 1 proto 1 time 31.250000                                              (up to 2.22)

The first two forms have the caller's size: for all_gather and reduce_scatter, one rank's part. The others have the size
of the larger buffer, as in nccl-tests; this module converts all sizes to it. The last form names no collective and
cannot be used.
Source: NCCL, src/enqueue.cc, src/scheduler/symmetric_sched.cc, src/debug.cc; logs that users published, for 2.23.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from collectors.files import open_regular
from collectors.metrics.metric import Sample
from collectors.metrics.probes import COLLECTIVE_CHOICE

_COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
_DIVIDED = frozenset({"AllGather", "ReduceScatter"})
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_SYMMETRIC = "symmetric"
"""Used instead of a protocol: kernels on symmetric memory have a name, but none of the three protocols."""

_VERSION = re.compile(r"NCCL version (\S+)")
_RANKS = re.compile(r"NCCL INFO .*\bcomm 0x[0-9a-f]+ rank \d+ n[rR]anks (\d+)")
_KERNEL = re.compile(r"NCCL INFO (\w+) \[Symmetric\]: (\d+) Bytes -> Kernel (\w+)")
_CHOICE = re.compile(r"NCCL INFO (?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)")


class ChoicesUnknown(RuntimeError):
    """NCCL's choices cannot be read; the message says why."""


def ask(path: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set NCCL's variables so that it writes its choices into a new file. Call this before NCCL starts.

    NCCL reads them once. If any of them already has another value, none is changed, and `choices` reports it.
    """
    settings = _settings(path)
    if any(environment.get(name, value) != value for name, value in settings.items()):
        return
    path.unlink(missing_ok=True)
    environment.update(settings)


def choices(path: Path, environment: Mapping[str, str] = os.environ) -> list[Sample]:
    """Return NCCL's choices so far: each combination of collective, size, algorithm and protocol once.

    Raises:
        ChoicesUnknown: NCCL was configured to write something else, or elsewhere, or its log cannot be parsed.
    """
    for name, value in _settings(path).items():
        if environment.get(name, value) != value:
            raise ChoicesUnknown(
                f"{name} was set to {environment[name]} before the run, so NCCL writes its log elsewhere or"
                " differently; unset it"
            )
    try:
        with io.TextIOWrapper(open_regular(path), errors="replace") as lines:
            log = _read(lines)
    except OSError as error:
        raise ChoicesUnknown(
            f"{path.name} cannot be read ({error.strerror}): NCCL did not start, or did not write"
        ) from None
    return [
        COLLECTIVE_CHOICE.at(1, collective=collective, size=str(size_bytes), chosen=chosen, protocol=protocol)
        for collective, size_bytes, chosen, protocol in log.chosen()
    ]


def _settings(path: Path) -> dict[str, str]:
    # INIT logs the number of ranks. %% because NCCL replaces %h and %p in the file name.
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
        "NCCL_DEBUG_FILE": str(path).replace("%", "%%"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """A line of the log. line_bytes: the size as written. is_part: it is the size of one rank's part of the buffer."""

    name: str
    line_bytes: int
    chosen: str
    protocol: str
    is_part: bool


@dataclass(slots=True, kw_only=True)
class _Log:
    """The contents of the log. nameless: number of lines that do not name a collective."""

    version: str = "NCCL"
    ranks: set[int] = field(default_factory=set)
    choices: dict[_Choice, None] = field(default_factory=dict)
    nameless: int = 0

    def chosen(self) -> list[tuple[str, int, str, str]]:
        """Return collective, nccl-tests' size, algorithm and protocol of each choice.

        Raises:
            ChoicesUnknown: the log has no choice of a named collective, or a size cannot be converted.
        """
        if not self.choices and self.nameless:
            raise ChoicesUnknown(f"{self.version} does not name the collective of a choice; 2.23 or later does")
        if not self.choices:
            raise ChoicesUnknown(
                f"{self.version} wrote no choice in a known form; it does on rank 0 of 2 ranks or more"
            )
        return [
            (_COLLECTIVES[choice.name], self._size_bytes(choice), choice.chosen, choice.protocol)
            for choice in self.choices
        ]

    def _size_bytes(self, choice: _Choice) -> int:
        if not choice.is_part:
            return choice.line_bytes
        if len(self.ranks) != 1:
            sizes = " and ".join(str(ranks) for ranks in sorted(self.ranks)) or "an unknown number of"
            raise ChoicesUnknown(
                f"{self.version} counts one rank's part of {choice.name}, and the rank is unknown: the log covers"
                f" communicators of {sizes} ranks"
            )
        (ranks,) = self.ranks
        return choice.line_bytes * ranks


def _read(lines: Iterable[str]) -> _Log:
    log = _Log()
    for line in lines:
        if (match := _CHOICE.search(line)) is not None:
            name, size, algorithm, protocol = match.groups()
            if name is None:
                log.nameless += 1
            else:
                _add(log, name, size, _named(algorithm, _ALGORITHMS), _named(protocol, _PROTOCOLS), algorithm.isdigit())
        elif (match := _KERNEL.search(line)) is not None:
            name, size, kernel = match.groups()
            _add(log, name, size, kernel, _SYMMETRIC, counts_whole=False)
        elif (match := _RANKS.search(line)) is not None:
            log.ranks.add(int(match[1]))
        elif (match := _VERSION.search(line)) is not None:
            log.version = f"NCCL {match[1]}"
    return log


def _add(log: _Log, name: str, size: str, chosen: str, protocol: str, counts_whole: bool) -> None:
    """Add the choice if its collective is in `_COLLECTIVES`."""
    if name in _COLLECTIVES:
        is_part = name in _DIVIDED and not counts_whole
        choice = _Choice(name=name, line_bytes=int(size), chosen=chosen, protocol=protocol, is_part=is_part)
        log.choices[choice] = None


def _named(word: str, names: tuple[str, ...]) -> str:
    """Return the name for a number that NCCL 2.23 wrote; return other words and unknown numbers unchanged."""
    return names[int(word)] if word.isdigit() and int(word) < len(names) else word
