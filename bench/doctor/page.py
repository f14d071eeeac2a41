"""What the doctor's page says of a machine, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.judgement.estimate import Estimate
from bench.machine_difference import Difference
from bench.peaks import Absent
from collectors.nvml.standing import Standing

Unit = Literal["bytes", "hertz", "bits_per_second"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the page. value: in its unit, or in words; None where it cannot be known, for `reason`."""

    name: str
    value: str | int | None = None
    unit: Unit | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Lines that belong together."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The best figure of the probes that ended well on this hardware, and of which; None in all but `what` of none."""

    what: str
    best: Estimate | None = None
    setting: str | None = None
    run: str | None = None
    started_ns: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs from the machine of the last run that ended well here: what a `Machine` holds, and no more."""

    run: str
    strategy: str
    started_ns: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFields:
    """Questions by GPUs, with answers and costs. left_out: what no GPU, or not every GPU, tells, and why."""

    standings: tuple[Standing, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole page. Where the history cannot be read, that stands in place of what it would tell."""

    hostname: str
    sections: tuple[Section, ...]
    fields: GpuFields
    ceilings: tuple[Ceiling, ...] | Absent
    comparison: Comparison | Absent
