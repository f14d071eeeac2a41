"""Lists of CPUs in the kernel's form, for example "0-31,64-95", as /sys and /proc write them."""

from __future__ import annotations

from collections.abc import Iterable


def written(cpus: Iterable[int]) -> str:
    """Return the CPUs as ranges: 0, 1, 2 and 8 are "0-2,8"."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def parse(text: str) -> frozenset[int]:
    """Return the CPUs of a list, the inverse of `written`; an empty text has none."""
    ends = [part.partition("-") for part in text.split(",") if part.strip()]
    return frozenset(cpu for first, _, last in ends for cpu in range(int(first), int(last or first) + 1))
