"""Tracks of a recording that is made by hand, from how much load a GPU has when."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from collectors.nvml.recording import Track, field_question

Course = list[tuple[float, float]]
"""How much of its full load a GPU has, from each time on; in between it changes evenly."""


def fields(values: dict[int, int]) -> dict[str, Track]:
    """Fields that keep their values, by number."""
    return {field_question(number, 0): always(value) for number, value in values.items()}


def always(value: Any) -> Track:
    """One value, all the time."""
    return Track(at_s=[0.0], values=[value])


def at(*points: tuple[float, Any], is_line: bool = False, is_counter: bool = False) -> Track:
    """Values from their times on."""
    return Track(
        at_s=[float(at_s) for at_s, _ in points],
        values=[value for _, value in points],
        is_line=is_line,
        is_counter=is_counter,
    )


def times(full: float) -> Callable[[float], float]:
    """A share of the full value, to two digits."""
    return lambda load: round(full * load, 2)


def straight(course: Course, value: Callable[[float], Any]) -> Track:
    """Values that follow the course evenly."""
    return at(*((at_s, value(load)) for at_s, load in course), is_line=True)


def stepped(course: Course, value: Callable[[float], Any]) -> Track:
    """Values that hold until the course's next point; a repeated one is left out."""
    values = [(at_s, value(load)) for at_s, load in course]
    changes = [values[0], *(later for earlier, later in pairwise(values) if later[1] != earlier[1])]
    return at(*changes)


def grown(course: Course, rate: Callable[[float], float], *, begun: int) -> Track:
    """A counter that grows by a rate per second, by the trapezoids under it."""
    points: list[tuple[float, int]] = [(course[0][0], begun)]
    whole = float(begun)
    for (earlier_s, earlier), (later_s, later) in pairwise(course):
        whole += (rate(earlier) + rate(later)) / 2 * (later_s - earlier_s)
        points.append((later_s, round(whole)))
    return at(*points, is_line=True, is_counter=True)
