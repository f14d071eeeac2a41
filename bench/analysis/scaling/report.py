"""Reports scaling curves as tables, JSON and CSV: efficiency, speed-up, fits of laws, and the parts of the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from rich.console import Console

from bench.analysis.scaling.curves import CurvePoint, ScalingCurve
from bench.analysis.scaling.laws import Bounded, NoScalingFit, ScalingFit
from bench.report.format import digits, figure, grouped, has_wide_interval, percent, wide_interval_notes
from bench.report.table import Block, Table, write
from bench.results.efficiency import Loss, LostPart
from bench.results.estimate import Estimate, EstimatedRatio
from bench.results.step_parts import PARTS, PartName

COLUMNS = ("suite_run", "curve", "scaling", "case", "run", "ranks", "figure", "part", "value", "low", "high", "reason")
"""Columns of CSV, with a row for each figure of a point or a fit."""

_LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
_PARAMETERS = {"serial_fraction": "serial fraction", "contention": "contention sigma", "coherency": "coherency kappa"}
_PARTS: dict[PartName, str] = {name: name.replace("_", " ") for name in PARTS} | {"compute": "slower compute"}
_NOTHING = 1e-12
"""Seconds; a part that is smaller in all points has no row in the table."""
_MISSED = 0.01
"""Share by which points may deviate from a law without a remark."""


def print_scaling(
    suite_run: str, curves: Sequence[ScalingCurve], format_name: str, console: Console | None = None
) -> None:
    """Print each curve: its points, a line for each law, and the parts of the loss."""
    write(
        format_name,
        _page(suite_run, curves),
        lambda: {"suite_run": suite_run, "curves": [_document(curve) for curve in curves]},
        (row for curve in curves for row in _rows(suite_run, curve)),
        COLUMNS,
        console,
    )


# A curve as tables


def _page(suite_run: str, curves: Sequence[ScalingCurve]) -> Iterator[Block]:
    ratios: list[EstimatedRatio] = []
    for curve in curves:
        yield from _curve(curve)
        yield ""
        for point in curve.points:
            ratios += [ratio for ratio in (point.efficiency, point.speed_up) if ratio is not None]
        ratios += [_share(part, point, curve) for point, loss in _losses(curve) for part in loss.parts]
    yield from wide_interval_notes(ratios, is_suite=True)
    yield f"suite run {suite_run}; docs/guides/scaling.md defines each figure"


def _curve(curve: ScalingCurve) -> Iterator[Block]:
    yield _title(curve)
    yield ""
    rows = []
    for point in curve.points:
        speed_up = "1"
        if (ratio := point.speed_up) is not None:
            speed_up = _with_ends(replace(ratio, low=None) if has_wide_interval(ratio) else ratio)
        efficiency = percent(point.efficiency)
        rows.append((str(point.ranks), figure(point.step), efficiency, speed_up, f"{point.ideal_speed_up:g}"))
    yield Table(("ranks", "mean step", "efficiency", "speed-up", "ideal"), rows, words=(), keys=1)
    yield ""
    yield from (_fit_line(fit, curve) for fit in curve.fits)
    if losses := _losses(curve):
        yield ""
        yield _lost(curve, losses)
        yield ""
    yield from _notes(curve)


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


def _fit_line(fit: ScalingFit | NoScalingFit, curve: ScalingCurve) -> str:
    name = _LAWS[fit.law]
    if isinstance(fit, NoScalingFit):
        return f"{name}: absent: {fit.reason}"
    parameters = ", ".join(
        f"{_PARAMETERS[parameter]} {_with_ends(bounded, is_percent=parameter == 'serial_fraction')}"
        for parameter, bounded in fit.parameters.items()
    )
    missed = f"; points are up to {100 * fit.miss_ratio:.1f} % off" if fit.miss_ratio > _MISSED else ""
    return f"{name}: {parameters}; {_ceiling(fit, curve)}{missed}"


def _ceiling(fit: ScalingFit, curve: ScalingCurve) -> str:
    """Return the ceiling of the throughput, or why there is none."""
    base = f"that of {curve.base.ranks} rank{'s' if curve.base.ranks > 1 else ''}"
    most = fit.most_speed_up
    if fit.peak_ranks is not None and fit.peak_ranks.value is not None:
        height = "" if most.value is None else f", {_with_ends(most)} times {base}"
        return f"throughput peaks at {_with_ends(fit.peak_ranks)} ranks{height}"
    if fit.peak_ranks is not None:
        low = fit.peak_ranks.low
        beyond = f", and none below {digits(low)}" if low is not None and low > curve.points[-1].ranks else ""
        return f"{fit.peak_ranks.reason}{beyond}"
    if most.value is None:
        beyond = "" if most.low is None else f"; it is no lower than {digits(most.low)} times {base}"
        return f"{most.reason}{beyond}"
    return f"the ceiling is {_with_ends(most)} times {base}"


def _with_ends(bounded: Bounded | EstimatedRatio, *, is_percent: bool = False) -> str:
    """Return the value with its interval: `4.20 % [3.90, 4.51]`; `unsure, at most 4.51 %` if the interval is wider."""
    if bounded.value is None:
        return "-"
    size, sign = (0.01, " %") if is_percent else (1.0, "")
    text = f"{digits(bounded.value / size)}{sign}"
    if bounded.low is None or bounded.high is None:
        return text
    is_unsure = isinstance(bounded, Bounded) and bounded.is_unsure
    if is_unsure and bounded.low == 0:
        return f"unsure, at most {digits(bounded.high / size)}{sign}"
    interval = f"{text} [{digits(bounded.low / size)}, {digits(bounded.high / size)}]"
    return f"{interval} (unsure)" if is_unsure else interval


def _losses(curve: ScalingCurve) -> list[tuple[CurvePoint, Loss]]:
    return [(point, point.loss) for point in curve.points if isinstance(point.loss, Loss)]


def _lost(curve: ScalingCurve, losses: Sequence[tuple[CurvePoint, Loss]]) -> Table:
    """Return each part of the loss on each number of ranks, and 1 - efficiency."""
    rows = []
    for name in PARTS:
        parts = [next((part for part in loss.parts if part.name == name), None) for _, loss in losses]
        if any(part is not None and abs(part.lost_s) > _NOTHING for part in parts):
            shares = (
                "-" if part is None else percent(_share(part, point, curve))
                for part, (point, _) in zip(parts, losses, strict=True)
            )
            rows.append((_PARTS[name], *shares))
    whole = []
    for point, _ in losses:
        if (ratio := point.efficiency) is not None:
            low, high = (None if end is None else 1 - end for end in (ratio.high, ratio.low))
            whole.append(percent(replace(ratio, value=1 - ratio.value, low=low, high=high)))
    rows.append(("1 - efficiency", *whole))
    return Table(["lost of each step", *(f"on {point.ranks} ranks" for point, _ in losses)], rows, keys=1)


def _share(part: LostPart, point: CurvePoint, curve: ScalingCurve) -> EstimatedRatio:
    return EstimatedRatio(
        value=part.lost_ratio,
        low=part.low_ratio,
        high=part.high_ratio,
        numerator_trials=len(point.step.trials),
        denominator_trials=len(curve.base.step.trials),
    )


def _notes(curve: ScalingCurve) -> list[str]:
    """Return what is absent and why, without repetition, and further notes for the reader."""
    lines = [f"left out: {line}" for line in curve.left_out]
    lines += curve.notes
    lines += [
        f"intervals are absent: {point.efficiency.why_no_interval}"
        for point in curve.points
        if point.efficiency is not None and point.efficiency.why_no_interval
    ]
    for fit in curve.fits:
        if isinstance(fit, ScalingFit):
            name = _LAWS[fit.law]
            reasons = [bounded.reason for bounded in fit.parameters.values() if bounded.reason]
            lines += [f"{name}: intervals are absent: {reason}" for reason in reasons]
            lines += [f"{name}: {note}" for note in fit.notes]
            bounds = [*fit.parameters.values(), fit.most_speed_up, fit.peak_ranks]
            if any(bounded is not None and bounded.is_unsure for bounded in bounds):
                lines.append("unsure: the interval is wider than the value; cases on more numbers of ranks narrow it")
    lines += [
        f"what {point.name} lost is absent: {point.loss}" for point in curve.points if isinstance(point.loss, str)
    ]
    absent = grouped((why, _PARTS[part]) for _, loss in _losses(curve) for part, why in loss.absent.items())
    lines += [f"not available: {', '.join(parts)}: {why}" for why, parts in absent.items()]
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
                "step_s": _interval(point.step),
                "tokens_per_second": _interval(point.throughput),
                "efficiency_ratio": _of_base(point.efficiency),
                "speed_up_ratio": _of_base(point.speed_up),
                "ideal_speed_up_ratio": point.ideal_speed_up,
                "loss": _loss(point.loss),
            }
            for point in curve.points
        ],
        "fits": [
            {"law": fit.law, "reason": fit.reason}
            if isinstance(fit, NoScalingFit)
            else {
                "law": fit.law,
                "reason": None,
                "parameters": fit.parameters,
                "peak_ranks": fit.peak_ranks,
                "most_speed_up_ratio": fit.most_speed_up,
                "miss_ratio": fit.miss_ratio,
                "notes": fit.notes,
            }
            for fit in curve.fits
        ],
        "left_out": curve.left_out,
        "notes": _notes(curve),
    }


def _interval(estimate: Estimate) -> dict[str, object]:
    return {"value": estimate.median, "low": estimate.low, "high": estimate.high}


def _of_base(ratio: EstimatedRatio | None) -> Bounded | None:
    """Return a figure relative to the curve's base, with the reason if it has no interval."""
    if ratio is None:
        return None
    return Bounded(value=ratio.value, low=ratio.low, high=ratio.high, reason=ratio.why_no_interval)


def _loss(loss: Loss | str | None) -> dict[str, Any] | None:
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
        "absent": loss.absent,
        "notes": loss.notes,
    }


def _rows(suite_run: str, curve: ScalingCurve) -> Iterator[dict[str, object]]:
    """Yield a CSV row for each figure of each point, then of each fit."""
    of_curve: dict[str, object] = {"suite_run": suite_run, "curve": curve.name, "scaling": curve.scaling}
    for point in curve.points:
        of_point = of_curve | {"case": point.name, "run": point.summary.run, "ranks": point.ranks}
        for name, estimate in (("step_s", point.step), ("tokens_per_second", point.throughput)):
            yield of_point | {"figure": name} | _interval(estimate)
        for name, ratio in (("efficiency_ratio", point.efficiency), ("speed_up_ratio", point.speed_up)):
            if (bounded := _of_base(ratio)) is not None:
                yield of_point | {"figure": name} | msgspec.to_builtins(bounded)
        yield of_point | {"figure": "ideal_speed_up_ratio", "value": point.ideal_speed_up}
        if isinstance(point.loss, str):
            yield of_point | {"figure": "lost_s", "reason": point.loss}
        elif point.loss is not None:
            for part in point.loss.parts:
                ends = {"value": part.lost_s, "low": part.low_s, "high": part.high_s}
                yield of_point | {"figure": "lost_s", "part": part.name} | ends
            for absent, reason in point.loss.absent.items():
                yield of_point | {"figure": "lost_s", "part": absent, "reason": reason}
    for fit in curve.fits:
        if isinstance(fit, NoScalingFit):
            yield of_curve | {"figure": fit.law, "reason": fit.reason}
            continue
        figures = {**fit.parameters, "most_speed_up_ratio": fit.most_speed_up}
        if fit.peak_ranks is not None:
            figures["peak_ranks"] = fit.peak_ranks
        for parameter, bounded in figures.items():
            yield of_curve | {"figure": fit.law, "part": parameter} | msgspec.to_builtins(bounded)
