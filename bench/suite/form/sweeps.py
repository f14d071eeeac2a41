"""Sweeps of a suite's tables: lists in place of values become a grid of points; zipped lists move together.

Tables are flat here: the strategy's option `bucket_mb` has the key `options.bucket_mb`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.errors import Misuse
from collectors.settings_file import nearest, shown

MOST_POINTS = 1000
"""Most points of one table; more are a slip, for example one list too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A swept key and its values, in order."""

    key: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The last word of the key; no two keys share it."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of a table's sweeps. values: of all keys. swept: of the axes, by name, in order."""

    values: Mapping[str, Any]
    swept: Mapping[str, Any]

    @property
    def suffix(self) -> str:
        """Suffix that distinguishes the point within its table: `[ranks=2,bucket_mb=25]`; empty without sweeps."""
        words = (f"{name}={text_of(value)}" for name, value in self.swept.items())
        return f"[{','.join(words)}]" if self.swept else ""


def text_of(value: Any) -> str:
    """Return the value as text for a command line: `true`, `25`, `0.5` or the text itself."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_same(value: object, other: object) -> bool:
    """Whether both are the same TOML value: 1 equals 1.0, but not true, although Python's 1 equals True."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def points(
    table: Mapping[str, Any],
    swept: Sequence[str],
    *,
    zipped: Sequence[Sequence[str]] = (),
    excluded: Sequence[Mapping[str, Any]] = (),
    place: str = "",
) -> list[Point]:
    """Return the points of a flat table; the last axis varies fastest.

    swept: keys whose values are lists to sweep over. zipped: groups of axes that move together, by name or key.
    excluded: combinations of axis values to leave out. place: file and table, for messages.

    Example: ranks [1, 2] and batch [8, 16] give four points; zipped, they give two.

    Raises:
        Misuse: zipped or excluded values fit no axis, nothing is excluded or nothing remains, or there are too many
            points.
    """
    axes = [Axis(key=key, values=tuple(table[key])) for key in table if key in swept]
    groups = _groups(axes, zipped, place)
    count = math.prod(len(group[0].values) for group in groups)
    if count > MOST_POINTS:
        raise Misuse(
            f"{place} has {count:,} combinations of its lists; it may have {MOST_POINTS:,}: zip or shorten them"
        )

    for group in groups:
        together = list(zip(*(axis.values for axis in group), strict=True))
        for number, values in enumerate(together):
            if any(all(map(is_same, values, earlier)) for earlier in together[:number]):
                names, twice = ", ".join(axis.name for axis in group), ", ".join(map(shown, values))
                raise Misuse(f"{place} {names} has {twice} twice; a sweep has each value once")

    combinations = []
    for places in itertools.product(*(range(len(group[0].values)) for group in groups)):
        # Present value of each axis; all axes of a group are at the same place.
        at = {axis.key: axis.values[number] for group, number in zip(groups, places, strict=True) for axis in group}
        combinations.append(
            Point(values={**table, **at}, swept={axis.name: at[axis.key] for axis in axes}),
        )
    return _without(combinations, axes, excluded, place)


def _groups(axes: Sequence[Axis], zipped: Sequence[Sequence[str]], place: str) -> list[list[Axis]]:
    """Return the axes in groups that move together; each group takes the place of its first axis."""
    group_of = {axis.key: [axis] for axis in axes}
    for names in zipped:
        members = [_find_axis(name, axes, f"{place} zip") for name in names]
        if len(members) < 2:
            raise Misuse(f"{place} zip has a list of one key, {shown(names[0])}; name two or more that move together")
        for axis in members:
            if len(group_of[axis.key]) > 1 or sum(other.key == axis.key for other in members) > 1:
                raise Misuse(f"{place} zip names {axis.name} twice; a list moves with one group")
        lengths = {len(axis.values) for axis in members}
        if len(lengths) > 1:
            each = " and ".join(f"{axis.name} has {len(axis.values)}" for axis in members)
            raise Misuse(f"{place} zip joins lists of different lengths: {each} values; give them equal lengths")
        group = [axis for axis in axes if axis in members]
        group_of |= {axis.key: group for axis in members}
    groups: list[list[Axis]] = []
    for axis in axes:
        if group_of[axis.key] not in groups:
            groups.append(group_of[axis.key])
    return groups


def _without(
    combinations: list[Point], axes: Sequence[Axis], excluded: Sequence[Mapping[str, Any]], place: str
) -> list[Point]:
    """Return the points that are not excluded."""
    rest = combinations
    for number, values in enumerate(excluded):
        where = f"{place} exclude[{number}]"
        if not values:
            raise Misuse(f"{where} is an empty table; name values of sweeps, or leave it out")
        wanted = {_find_axis(name, axes, where).name: value for name, value in values.items()}
        matching = [
            point for point in combinations if all(is_same(point.swept[name], value) for name, value in wanted.items())
        ]
        if not matching:
            raise Misuse(f"{where} is {shown(dict(values))}, which no combination of the lists has; leave it out")
        rest = [point for point in rest if not any(point is other for other in matching)]
    if not rest:
        raise Misuse(f"{place} exclude removes every case; keep at least one")
    return rest


def _find_axis(name: str, axes: Sequence[Axis], place: str) -> Axis:
    for axis in axes:
        if name in (axis.name, axis.key):
            return axis
    names = [axis.name for axis in axes]
    raise Misuse(
        f"{place} names {shown(name)}, which is not a list of this table{nearest(name, names)};"
        f" its lists are: {', '.join(names) or 'none'}"
    )
