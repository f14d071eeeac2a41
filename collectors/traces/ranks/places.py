"""The place of each collective in the order of its process group, alike on all ranks of the group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collectors.traces.ranks.membership import Group, call_of
from collectors.traces.ranks.numbered_steps import step_numbers
from collectors.traces.ranks.order import Place, Row, are_together, place_in
from collectors.traces.spans import ABSENT, Timeline

Places = NDArray[np.int64]

# The buffer that is as large on all ranks of a group; the other may differ, and in all_to_all both.
_ALIKE = {
    "all_reduce": "given_elements",
    "broadcast": "given_elements",
    "reduce": "given_elements",
    "all_gather": "filled_elements",
    "reduce_scatter": "given_elements",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Ranks of one group whose collectives have a common order.

    places: by rank, of each of its rows; equal places are one collective. kinds: by rank, likewise; equal where the
    rows are alike in what must be alike on all ranks. is_numbered: the places are the traces' own numbers.
    notes: what was assumed.
    """

    group: Group
    places: Mapping[int, Places]
    kinds: Mapping[int, NDArray[np.int64]]
    is_numbered: bool
    notes: tuple[str, ...] = ()


def placed(group: Group, timelines: Mapping[int, Timeline]) -> list[Placed]:
    """The group in one common order, or in several, where ranks without a told group prove to be in several.

    A rank that agrees with no other is alone in its own.
    """
    kinds = _kinds(group, timelines)
    sequences = {rank: timelines[rank].sequence[rows] for rank, rows in group.rows.items()}
    if all((numbers != ABSENT).all() for numbers in sequences.values()):
        return [Placed(group=group, places=_numbered(sequences), kinds=kinds, is_numbered=True)]
    rows = {
        rank: Row(
            kinds=kinds[rank],
            steps=step_numbers(timelines[rank], found),
            start_ns=timelines[rank].start_ns[found],
            end_ns=timelines[rank].end_ns[found],
        )
        for rank, found in group.rows.items()
    }
    return [_ordered(group, found, kinds) for found in _sets(rows, is_told=group.name is not None)]


def _kinds(group: Group, timelines: Mapping[int, Timeline]) -> dict[int, NDArray[np.int64]]:
    numbers: dict[tuple[str, str | None, int | None], int] = {}
    kinds = {}
    for rank, rows in group.rows.items():
        timeline = timelines[rank]
        of_call = {}
        for number, first in zip(*np.unique(timeline.call[rows], return_index=True), strict=True):
            call = call_of(timeline, int(rows[first]))
            elements = getattr(call, _ALIKE[call.collective]) if call.collective in _ALIKE else None
            of_call[int(number)] = numbers.setdefault((call.collective, call.dtype, elements), len(numbers))
        kinds[rank] = np.array([of_call[int(number)] for number in timeline.call[rows]], dtype=np.int64)
    return kinds


def _numbered(sequences: Mapping[int, NDArray[np.int64]]) -> dict[int, Places]:
    """Places by number; of several kernels with one number, in their order."""
    most = max(Counter(numbers.tolist()).most_common(1)[0][1] for numbers in sequences.values())
    places = {}
    for rank, numbers in sequences.items():
        order = np.argsort(numbers, kind="stable")
        _, first, counts = np.unique(numbers[order], return_index=True, return_counts=True)
        places[rank] = numbers * most
        places[rank][order] += np.arange(numbers.size) - np.repeat(first, counts)
    return places


def _sets(rows: Mapping[int, Row], *, is_told: bool) -> list[dict[int, Place]]:
    """Sets of ranks in one order, each with its place in that of the set's first rank.

    Ranks whose group is not told are in one set only where they really were in these collectives together.
    """
    # The longest comes first, so that the others lie within it as far as they can.
    ranks = sorted(rows, key=lambda rank: -rows[rank].kinds.size)
    sets: list[dict[int, Place]] = []
    for rank in ranks:
        for one in sets:
            first = rows[next(iter(one))]
            place = place_in(first, rows[rank])
            if place is not None and (is_told or are_together(first, rows[rank], place.later)):
                one[rank] = place
                break
        else:
            sets.append({rank: Place(later=0)})
    return sets


def _ordered(group: Group, found: Mapping[int, Place], kinds: Mapping[int, NDArray[np.int64]]) -> Placed:
    ranks = sorted(found)
    part = replace(group, rows={rank: group.rows[rank] for rank in ranks})
    return Placed(
        group=part,
        places={rank: np.arange(group.rows[rank].size) + found[rank].later for rank in ranks},
        kinds={rank: kinds[rank] for rank in ranks},
        is_numbered=False,
        notes=tuple(_notes(group, found)),
    )


def _notes(group: Group, found: Mapping[int, Place]) -> Iterator[str]:
    """What was assumed of where traces begin."""
    earliest = min(place.later for place in found.values())
    for rank, place in sorted(found.items()):
        if place.later == earliest and not place.others:
            continue
        begins = f"group {group.name or 'not told'}: rank {rank}'s trace begins {place.later - earliest} collectives"
        if place.is_told:
            yield f"{begins} after the earliest, by the numbers of its steps"
            continue
        shared = "" if place.shared_ratio == 1 else f", with {place.shared_ratio:.0%} of the shorter trace in both"
        others = f"; {place.others} other places fit as well" if place.others else ""
        yield f"{begins} after the earliest, as their order fits best{shared}{others}"
