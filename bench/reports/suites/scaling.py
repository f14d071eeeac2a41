"""Scaling curves as tables, JSON and CSV: efficiency and speed-up, the laws' fits, and what was lost to what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from bench.analysis.estimate import EstimatedRatio
from bench.analysis.scaling.laws import Bounded, NoScalingFit, ScalingFit
from bench.analysis.scaling.loss import Loss, LostPart
from bench.analysis.step_parts import PARTS, PartName
from bench.reports.format import (
    digits,
    figure,
    has_wide_interval,
    open_console,
    percent,
    print_csv,
    print_figures,
    print_json,
    print_words,
    table_of,
    wide_interval_notes,
)
from bench.runs.scaling_curves import CurvePoint, ScalingCurve

COLUMNS = ("suite_run", "curve", "scaling", "case", "run", "ranks", "figure", "part", "value", "low", "high", "reason")
"""Of CSV, which has a row for each figure: of a point, or of a fit."""

_LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
_PARAMETERS = {"serial_fraction": "serial fraction", "contention": "contention sigma", "coherency": "coherency kappa"}
_PARTS: dict[PartName, str] = {name: name.replace("_", " ") for name in PARTS} | {"compute": "slower compute"}
_NOTHING = 1e-12
"""Seconds; what is smaller in all points is no row of the table."""
_MISSED = 0.01
"""Share by which points may lie off a law without a word."""


def print_scaling(
    suite_run: str, curves: Sequence[ScalingCurve], format_name: str, console: Console | None = None
) -> None:
    """Print each curve: its points, a line for each law, and what was lost."""
    if format_name == "json":
        print_json({"suite_run": suite_run, "curves": [_document(curve) for curve in curves]})
        return
    if format_name == "csv":
        print_csv([row for curve in curves for row in _rows(suite_run, curve)], COLUMNS)
        return
    console = console or open_console()
    for curve in curves:
        _print_curve(curve, console)
        console.print()
    print_words(console, *wide_interval_notes((one for curve in curves for one in _ratios(curve)), is_suite=True))
    print_words(console, f"suite run {suite_run}; docs/scaling.md says what each figure is")


# A curve as tables


def _print_curve(curve: ScalingCurve, console: Console) -> None:
    print_words(console, _title(curve))
    console.print()
    table = table_of(
        ("ranks", "mean step", "efficiency", "speed-up", "ideal"),
        (
            (
                str(point.ranks),
                figure(point.step),
                "-" if point.efficiency is None else percent(point.efficiency),
                "1" if point.speed_up is None else _times(point.speed_up),
                f"{point.ideal_speed_up:g}",
            )
            for point in curve.points
        ),
        words=(),
    )
    print_figures(console, table, keys=1)
    console.print()
    print_words(console, *(_fit_line(one, curve) for one in curve.fits))
    _print_losses(curve, console)
    print_words(console, *_notes(curve))


def _title(curve: ScalingCurve) -> str:
    case = curve.points[-1].summary.case
    batch = case.shape.batch
    if curve.scaling == "weak":
        trained = case.spec().training_ranks(case)
        batch_words = f"batch {batch / trained:g} a rank"
    else:
        batch_words = f"batch {batch}"
    words = (f"{curve.scaling} scaling of {case.strategy}", batch_words, case.device, case.precision)
    return f"{curve.name}: {', '.join(words)}"


def _fit_line(found: ScalingFit | NoScalingFit, curve: ScalingCurve) -> str:
    name = _LAWS[found.law]
    if isinstance(found, NoScalingFit):
        return f"{name}: absent: {found.reason}"
    parameters = ", ".join(
        f"{_PARAMETERS[parameter]} {_bounded(one, is_percent=parameter == 'serial_fraction')}"
        for parameter, one in found.parameters.items()
    )
    missed = f"; points are up to {found.miss_ratio:.1%} off" if found.miss_ratio > _MISSED else ""
    return f"{name}: {parameters}; {_ceiling(found, curve)}{missed}"


def _ceiling(found: ScalingFit, curve: ScalingCurve) -> str:
    """Return where throughput has its ceiling, or why none is seen."""
    base = f"that of {curve.base.ranks} rank{'s' if curve.base.ranks > 1 else ''}"
    most = found.most_speed_up
    if found.peak_ranks is not None and found.peak_ranks.value is not None:
        height = "" if most.value is None else f", {_bounded(most)} times {base}"
        return f"throughput peaks at {_bounded(found.peak_ranks)} ranks{height}"
    if found.peak_ranks is not None:
        low = found.peak_ranks.low
        beyond = f", and none below {digits(low)}" if low is not None and low > curve.points[-1].ranks else ""
        return f"{found.peak_ranks.reason}{beyond}"
    if most.value is None:
        beyond = "" if most.low is None else f"; it is no lower than {digits(most.low)} times {base}"
        return f"{most.reason}{beyond}"
    return f"the ceiling is {_bounded(most)} times {base}"


def _bounded(one: Bounded, *, is_percent: bool = False) -> str:
    """Return the value with its interval: `4.20 % [3.90, 4.51]`."""
    size = 0.01 if is_percent else 1.0
    if one.value is None:
        return "-"
    text = digits(one.value / size) + (" %" if is_percent else "")
    if one.low is None or one.high is None:
        return text
    return f"{text} [{digits(one.low / size)}, {digits(one.high / size)}]"


def _times(found: EstimatedRatio) -> str:
    return _bounded(Bounded(value=found.value, low=None if has_wide_interval(found) else found.low, high=found.high))


def _losses(curve: ScalingCurve) -> list[tuple[CurvePoint, Loss]]:
    return [(point, point.loss) for point in curve.points if isinstance(point.loss, Loss)]


def _print_losses(curve: ScalingCurve, console: Console) -> None:
    losses = _losses(curve)
    if not losses:
        return
    columns = ["lost of each step", *(f"on {point.ranks} ranks" for point, _ in losses)]
    table = table_of(columns)
    for name in PARTS:
        of_part = [next((part for part in loss.parts if part.name == name), None) for _, loss in losses]
        if any(part is not None and abs(part.lost_s) > _NOTHING for part in of_part):
            cells = [
                "-" if part is None else percent(_share(part, point, curve))
                for part, (point, _) in zip(of_part, losses, strict=True)
            ]
            table.add_row(_PARTS[name], *cells)
    table.add_row("1 - efficiency", *(percent(one) for point, _ in losses if (one := _lost(point)) is not None))
    console.print()
    print_figures(console, table, keys=1)
    console.print()


def _share(part: LostPart, point: CurvePoint, curve: ScalingCurve) -> EstimatedRatio:
    return EstimatedRatio(
        value=part.lost_ratio,
        low=part.low_ratio,
        high=part.high_ratio,
        numerator_trials=len(point.step.trials),
        denominator_trials=len(curve.base.step.trials),
    )


def _lost(point: CurvePoint) -> EstimatedRatio | None:
    """Return 1 - efficiency."""
    found = point.efficiency
    if found is None:
        return None
    return EstimatedRatio(
        value=1 - found.value,
        low=None if found.high is None else 1 - found.high,
        high=None if found.low is None else 1 - found.low,
        numerator_trials=found.numerator_trials,
        denominator_trials=found.denominator_trials,
    )


def _ratios(curve: ScalingCurve) -> Iterable[EstimatedRatio]:
    for point in curve.points:
        yield from (one for one in (point.efficiency, point.speed_up) if one is not None)
    for point, loss in _losses(curve):
        yield from (_share(part, point, curve) for part in loss.parts)


def _notes(curve: ScalingCurve) -> list[str]:
    """Return what is absent and why, each once, and what else the reader of the curve must know."""
    lines = [f"left out: {line}" for line in curve.left_out]
    lines += curve.notes
    lines += [
        f"intervals are absent: {point.efficiency.why_no_interval}"
        for point in curve.points
        if point.efficiency is not None and point.efficiency.why_no_interval
    ]
    for found in curve.fits:
        if isinstance(found, ScalingFit):
            name = _LAWS[found.law]
            reasons = [one.reason for one in found.parameters.values() if one.reason]
            lines += [f"{name}: intervals are absent: {reason}" for reason in reasons]
            lines += [f"{name}: {note}" for note in found.notes]
    lines += [
        f"what {point.name} lost is absent: {point.loss}" for point in curve.points if isinstance(point.loss, str)
    ]
    parts_of: dict[str, list[str]] = {}
    for _, loss in _losses(curve):
        for part, reason in loss.absent.items():
            names = parts_of.setdefault(reason, [])
            if _PARTS[part] not in names:
                names.append(_PARTS[part])
    lines += [f"absent: {', '.join(parts)}: {reason}" for reason, parts in parts_of.items()]
    lines += [note for _, loss in _losses(curve) for note in loss.notes]
    return list(dict.fromkeys(lines))


# A curve for programs


def _document(curve: ScalingCurve) -> dict[str, Any]:
    return {
        "curve": curve.name,
        "scaling": curve.scaling,
        "base_case": curve.base.name,
        "base_ranks": curve.base.ranks,
        "points": [
            {
                "case": point.name,
                "run": point.summary.run,
                "ranks": point.ranks,
                "step_s": {"value": point.step.median, "low": point.step.low, "high": point.step.high},
                "tokens_per_second": {
                    "value": point.throughput.median,
                    "low": point.throughput.low,
                    "high": point.throughput.high,
                },
                "efficiency_ratio": _interval(point.efficiency),
                "speed_up_ratio": _interval(point.speed_up),
                "ideal_speed_up_ratio": point.ideal_speed_up,
                "loss": _loss_document(point.loss),
            }
            for point in curve.points
        ],
        "fits": [
            {"law": one.law, "reason": one.reason}
            if isinstance(one, NoScalingFit)
            else {
                "law": one.law,
                "reason": None,
                "parameters": {name: _of_bounded(value) for name, value in one.parameters.items()},
                "peak_ranks": None if one.peak_ranks is None else _of_bounded(one.peak_ranks),
                "most_speed_up_ratio": _of_bounded(one.most_speed_up),
                "miss_ratio": one.miss_ratio,
                "notes": list(one.notes),
            }
            for one in curve.fits
        ],
        "left_out": list(curve.left_out),
        "notes": _notes(curve),
    }


def _loss_document(loss: Loss | str | None) -> dict[str, Any] | None:
    if loss is None:
        return None
    if isinstance(loss, str):
        return {"reason": loss}
    return {
        "reason": None,
        "step_s": loss.step_s,
        "ideal_s": loss.ideal_s,
        "lost_ratio": loss.lost_ratio,
        "parts": {
            part.name: {
                "lost_s": part.lost_s,
                "low_s": part.low_s,
                "high_s": part.high_s,
                "lost_ratio": part.lost_ratio,
            }
            for part in loss.parts
        },
        "absent": dict(loss.absent),
        "notes": list(loss.notes),
    }


def _interval(found: EstimatedRatio | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {"value": found.value, "low": found.low, "high": found.high, "reason": found.why_no_interval}


def _of_bounded(one: Bounded) -> dict[str, object]:
    return {"value": one.value, "low": one.low, "high": one.high, "reason": one.reason}


def _rows(suite_run: str, curve: ScalingCurve) -> Iterable[dict[str, object]]:
    """Yield a row of CSV for each figure of each point, and then of each fit."""
    of_curve: dict[str, object] = {"suite_run": suite_run, "curve": curve.name, "scaling": curve.scaling}
    for point in curve.points:
        of_point = of_curve | {"case": point.name, "run": point.summary.run, "ranks": point.ranks}
        for name, found in (("step_s", point.step), ("tokens_per_second", point.throughput)):
            yield of_point | {"figure": name, "value": found.median, "low": found.low, "high": found.high}
        for name, of_base in (("efficiency_ratio", point.efficiency), ("speed_up_ratio", point.speed_up)):
            if (interval := _interval(of_base)) is not None:
                yield of_point | {"figure": name} | interval
        yield of_point | {"figure": "ideal_speed_up_ratio", "value": point.ideal_speed_up}
        if isinstance(point.loss, str):
            yield of_point | {"figure": "lost_s", "reason": point.loss}
        elif point.loss is not None:
            for part in point.loss.parts:
                seconds = {"value": part.lost_s, "low": part.low_s, "high": part.high_s}
                yield of_point | {"figure": "lost_s", "part": part.name} | seconds
            for absent, reason in point.loss.absent.items():
                yield of_point | {"figure": "lost_s", "part": absent, "reason": reason}
    for one in curve.fits:
        if isinstance(one, NoScalingFit):
            yield of_curve | {"figure": one.law, "reason": one.reason}
            continue
        figures = {**one.parameters, "most_speed_up_ratio": one.most_speed_up}
        if one.peak_ranks is not None:
            figures["peak_ranks"] = one.peak_ranks
        for parameter, value in figures.items():
            yield of_curve | {"figure": one.law, "part": parameter} | _of_bounded(value)
