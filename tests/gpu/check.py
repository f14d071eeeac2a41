"""What a check of the GPU machine is: a name, its needs, its time limit, the function that runs it, and its findings.

A verdict of `ok` or `off` needs a bound whose source stands beside it; what has no honest bound is `seen`, a figure to
keep. Knows neither torch nor how processes are started.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tests.gpu.session import Session

FindingVerdict = Literal["ok", "off", "seen"]
Verdict = Literal["ok", "off", "seen", "failed", "skipped", "timed out"]

LIMIT_S = 40.0
"""Of a check that names no other."""


class NotHere(Exception):
    """A check cannot be made on this machine; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check looked at.

    expected: in words, with the bound. source: of the bound or of the figure that stands beside it.
    key: under which later checks find `value`.
    """

    what: str
    seen: str
    expected: str
    source: str
    verdict: FindingVerdict
    key: str | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the registry.

    tells: what is known afterwards. expected: with its source or formula, for people. gpus: that it needs.
    library: a module that it needs, None where torch and this project are enough.
    is_rehearsed: whether it can run on a CPU, where its figures mean nothing but its commands and files are the same.
    """

    name: str
    run: Callable[[Session], Iterator[Finding]]
    tells: str
    expected: str
    gpus: int = 1
    library: str | None = None
    limit_s: float = LIMIT_S
    is_rehearsed: bool = True


def within(
    what: str,
    value: float,
    *,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    source: str,
    key: str | None = None,
) -> Finding:
    """Whether a value lies from low to high, both included; one of them may be left out.

    Raises:
        ValueError: there is no bound at all, or none that a value could keep.
    """
    if low is None and high is None:
        raise ValueError(f"{what}: neither low nor high is given; a figure without a bound is `figure`")
    if low is not None and high is not None and low > high:
        raise ValueError(f"{what}: low {low:g} is above high {high:g}")
    is_kept = (low is None or value >= low) and (high is None or value <= high)
    if low is not None and high is not None:
        bounds = f"{_short(low)} to {_short(high)}"
    else:
        bounds = f"at least {_short(low)}" if low is not None else f"at most {_short(high)}"
    return Finding(
        what=what,
        seen=_with_unit(value, unit),
        expected=f"{bounds} {unit}".strip(),
        source=source,
        verdict="ok" if is_kept else "off",
        key=key,
        value=value,
    )


def holds(what: str, is_so: bool, *, seen: str, expected: str, source: str) -> Finding:
    """Whether something that is no number is as it must be."""
    return Finding(what=what, seen=seen, expected=expected, source=source, verdict="ok" if is_so else "off")


def figure(
    what: str, value: float | str, *, unit: str = "", beside: str = "", source: str = "", key: str | None = None
) -> Finding:
    """Something to keep that has no bound. beside: what it can be read against."""
    return Finding(
        what=what,
        seen=value if isinstance(value, str) else _with_unit(value, unit),
        expected=beside,
        source=source,
        verdict="seen",
        key=key,
        value=None if isinstance(value, str) else value,
    )


def _with_unit(value: float, unit: str) -> str:
    return f"{_short(value)} {unit}".strip()


def _short(value: float | None) -> str:
    assert value is not None
    if math.isfinite(value) and (abs(value) >= 1e5 or value == int(value)):
        return f"{value:,.0f}"
    return f"{value:.4g}"
