"""What the trials of a run note, each thing once."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def said_once(by_trial: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """The notes of all trials, with their trials where not all say the same.

    Of notes that differ in their numbers alone, those of the trial with the largest stand for all.
    """
    alike: dict[str, dict[int, tuple[str, ...]]] = defaultdict(dict)
    for trial, notes in by_trial.items():
        for note in dict.fromkeys(notes):
            of_trial = alike[_NUMBER.sub("0", note)]
            of_trial[trial] = (*of_trial.get(trial, ()), note)
    for of_trial in alike.values():
        worst = max(of_trial, key=lambda trial: [_numbers(note) for note in of_trial[trial]])
        if len(set(of_trial.values())) > 1:
            where = f"trial {worst}, the worst of {len(of_trial)}: "
        elif len(of_trial) < len(by_trial):
            where = f"trial {' and '.join(map(str, of_trial))}: "
        else:
            where = ""
        yield from (f"{where}{note}" for note in of_trial[worst])


def _numbers(note: str) -> list[float]:
    return [float(number) for number in _NUMBER.findall(note)]
