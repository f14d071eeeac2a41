"""Figures to two or three digits, so that nothing but 0 is shown as 0."""

from __future__ import annotations


def digits(value: float) -> str:
    """Two or three significant digits, and whole ones up to nine: `1,234`, `20.5`, `0.123`, `0.0042`, `4.2e-06`."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.1 or size >= 1e9:
        return f"{value:#.2g}"
    return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"


def with_interval(value: float, low: float | None, high: float | None) -> str:
    """The value with its interval behind it, where it has one: `20.5 [19.8, 21.3]`."""
    if low is None or high is None:
        return digits(value)
    return f"{digits(value)} [{digits(low)}, {digits(high)}]"
