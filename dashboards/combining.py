"""PromQL that combines expressions: sums, shares, comparisons, series beside others. Knows no metric."""

from __future__ import annotations

from collections.abc import Sequence


def divide(dividend: str, divisor: str, *, on: Sequence[str] | None = None) -> str:
    """One expression by another, series of equal labels by each other.

    on: the labels by which many of the first have one second; the quotients keep the first one's labels.
    """
    return f"{dividend} /{_on(on)}{' group_left ()' if on else ''} {divisor}"


def positive(expression: str) -> str:
    """The expression where it is more than zero, so that nothing is divided by nothing."""
    return f"({expression} > 0)"


def total(expression: str, *, by: Sequence[str]) -> str:
    """The sum of the series that have these labels in common; it has no others."""
    return f"sum by ({_listed(by)}) ({expression})"


def less(expression: str, other: str) -> str:
    """The expression less another."""
    return f"({expression} - {other})"


def plus(expression: str, other: str) -> str:
    """The sum of two expressions, series of equal labels with each other."""
    return f"({expression} + {other})"


def times(factor: float, expression: str) -> str:
    """So many times the expression."""
    return f"{factor:g} * {expression}"


def below(one: str, other: str, *, on: Sequence[str] | None = None) -> str:
    """The first where it is less than the second; on names the labels by which many of the first have one second."""
    return f"{one} <{_on(on)}{' group_left ()' if on else ''} {other}"


def at_least(expression: str, number: float) -> str:
    """The expression where it is so much or more."""
    return f"{expression} >= {number:g}"


def above(expression: str, number: float) -> str:
    """The expression where it is more."""
    return f"({expression}) > {number:g}"


def equal(expression: str, number: float) -> str:
    """The expression where it is so much."""
    return f"{expression} == {number:g}"


def same(one: str, other: str, *, on: Sequence[str]) -> str:
    """The first where it equals the second; on names the labels by which many of the first have one second."""
    return f"{one} =={_on(on)} group_left () {other}"


def where(expression: str, *conditions: str, on: Sequence[str] | None = None) -> str:
    """The expression where each condition has a series too; on names the labels that decide."""
    return "".join((expression, *(f"\nand{_on(on)} ({condition})" for condition in conditions)))


def unless(expression: str, other: str, *, on: Sequence[str]) -> str:
    """The expression where the other has no series; on names the labels that decide."""
    return f"{expression}\nunless{_on(on)} ({other})"


def either(*expressions: str) -> str:
    """The series of all expressions; one that several have counts once, with the first one's value."""
    return "\nor\n".join(f"(\n{expression}\n)" for expression in expressions)


def largest(expression: str, *, by: Sequence[str]) -> str:
    """The largest of the series that have these labels in common; it has no others."""
    return f"max by ({_listed(by)}) ({expression})"


def bearing(expression: str, info: str, labels: Sequence[str], *, on: Sequence[str], called: str, between: str) -> str:
    """The expression, its series bearing labels of the info that belongs to them, as one label.

    A series to which no info belongs, or several of them, stays as it is: which one is meant nobody knows.
    on: the labels by which they belong together. called: the new label. between: what stands between its parts.
    """
    alone = f"count by ({_listed(on)}) ({info}) == 1"
    told = f"({expression}) * on ({_listed(on)}) group_left ({_listed(labels)}) ({info} and on ({_listed(on)}) {alone})"
    parts = ", ".join(f'"{label}"' for label in labels)
    return either(
        f'label_join({told}, "{called}", "{between}", {parts})',
        unless(f"({expression})", alone, on=on),
    )


def _on(labels: Sequence[str] | None) -> str:
    return f" on ({_listed(labels)})" if labels else ""


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels)
