"""Apache Otava on many series, replayed night by night; runs in Otava's own environment and imports nothing of ours.

    python otava_worker.py IN OUT [IN OUT ...]

IN has a line of JSON for each series: `name`, `values` (one median a night) and `reruns` (that of the night's fresh
trials; null where there are none). OUT begins with a line that says what it was made from: Otava's version, the
settings, and the SHA-256 of IN. Then it has a line for each series: `name`, and for each variant its alerts and how
many nights it had run again.

- alone: a change point counts from the first night on which it is found.
- rerun: one on the newest two nights must also be seen in that night's fresh trials, by half of its size at least;
  where it is not, the fresh trials stand in for the night.
- rerun_hold: as rerun, and it must still be found two nights after its onset; called hold where there are no reruns.

The rule of the reruns, and that a change is new when no alert of its direction lies within five nights, are those of
the judge's `otava_rerun` and `replay`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from otava.analysis import compute_change_points

WARM_UP, RECENT, DEDUP, HOLD = 30, 21, 5, 2
WINDOW, SMALLEST_CHANGE, KEPT_SHARE = 50, 0.01, 0.5
ALONE_P, RERUN_P, HOLD_P = 1e-7, 1e-5, 1e-7
"""The best of each variant in the judge's README, which looked at seeds 1 to 3."""

Find = Callable[[list[float], float], Sequence[Any]]


def found_by_otava(values: list[float], p_value: float) -> Sequence[Any]:
    return list(compute_change_points(values, window_len=WINDOW, max_pvalue=p_value, min_magnitude=SMALLEST_CHANGE)[0])


def replay(
    values: Sequence[float], reruns: Sequence[float] | None, p_value: float, hold: int, find: Find
) -> tuple[list[dict[str, int]], int]:
    """Return the alerts and the number of nights that were run again; reruns: None where Otava is alone."""
    seen: list[float] = []
    alerts: list[dict[str, int]] = []
    asked: set[int] = set()
    for night, value in enumerate(values):
        seen.append(value)
        if night < WARM_UP:
            continue
        for point in find(list(seen), p_value):
            index = int(point.index)
            before, after = float(point.stats.mean_1), float(point.stats.mean_2)
            direction = 1 if after > before else -1
            if index < night - RECENT or any(
                alert["direction"] == direction and abs(alert["index"] - index) <= DEDUP for alert in alerts
            ):
                continue
            if reruns is not None and index >= night - 1:
                asked.add(night)
                again = reruns[night]
                if (again - before) * direction < KEPT_SHARE * abs(after - before):
                    is_nearer = abs(again - before) <= abs(seen[night] - before)
                    seen[night] = again if is_nearer else (seen[night] + again) / 2
                    continue
            if index <= night - hold:
                alerts.append({"index": index, "direction": direction, "raised_at": night})
    return alerts, len(asked)


def variants(values: Sequence[float], reruns: Sequence[float] | None) -> dict[str, dict[str, Any]]:
    """Return the alerts of each variant; the same nights are not searched twice with the same limit."""
    found: dict[tuple[tuple[float, ...], float], Sequence[Any]] = {}

    def find(seen: list[float], p_value: float) -> Sequence[Any]:
        key = (tuple(seen), p_value)
        if key not in found:
            found[key] = found_by_otava(seen, p_value)
        return found[key]

    runs = {"alone": replay(values, None, ALONE_P, 0, find)}
    if reruns is None:
        runs["hold"] = replay(values, None, HOLD_P, HOLD, find)
    else:
        runs["rerun"] = replay(values, reruns, RERUN_P, 0, find)
        runs["rerun_hold"] = replay(values, reruns, HOLD_P, HOLD, find)
    return {name: {"alerts": alerts, "nights_rerun": asked} for name, (alerts, asked) in runs.items()}


def made_from(source: Path) -> dict[str, Any]:
    return {
        "otava": version("apache-otava"),
        "settings": [WINDOW, SMALLEST_CHANGE, KEPT_SHARE, ALONE_P, RERUN_P, HOLD_P, HOLD],
        "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
    }


def main(paths: Sequence[str]) -> None:
    for source, target in zip(paths[::2], paths[1::2], strict=True):
        origin = json.dumps(made_from(Path(source))) + "\n"
        if Path(target).exists():
            # An answer is written in one piece, so what is there is whole.
            with Path(target).open() as answered:
                if answered.readline() == origin:
                    continue
        unfinished = Path(target).with_suffix(".unfinished")
        with Path(source).open() as lines, unfinished.open("w") as out:
            out.write(origin)
            for line in lines:
                series = json.loads(line)
                answer = variants(series["values"], series["reruns"])
                out.write(json.dumps({"name": series["name"], "variants": answer}) + "\n")
        unfinished.replace(target)


if __name__ == "__main__":
    main(sys.argv[1:])
