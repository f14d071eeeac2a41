"""Reports forecasts for people, as JSON and as CSV: memory, the step by part, and the fact that decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.analysis.prediction.calibration import Range
from bench.analysis.prediction.forecast import MODELS, Forecast
from bench.analysis.prediction.nearest import nearest_fit
from bench.analysis.prediction.planned import Predicted
from bench.analysis.prediction.report import machine_line, memory_blocks, time_words, verdict_words
from bench.case import options_set, written
from bench.report.format import digits, readable
from bench.report.run.run_rows import shape_words
from bench.report.table import Block, Table, write
from workloads.cost_models.absent import Absent

COLUMNS = (
    "strategy",
    "ranks",
    "machine",
    "fits",
    "decides",
    "part",
    "level",
    "value",
    "low",
    "high",
    "unit",
    "model",
    "absent",
)


def print_forecasts(predicted: Sequence[Predicted], tokens: float | None, format_name: str) -> None:
    """Print forecasts in the requested format. tokens: to train on; None to leave out the days."""
    write(
        format_name,
        forecast_page(predicted, tokens),
        lambda: [forecast_document(each, tokens) for each in predicted],
        (row for each in predicted for row in _rows(each.forecast, tokens)),
        COLUMNS,
    )


def forecast_page(predicted: Sequence[Predicted], tokens: float | None) -> Iterator[Block]:
    """Yield the machine and the forecast of each case."""
    first = predicted[0]
    yield (
        f"{first.forecast.machine}: this machine, by its history"
        if first.machine is None
        else machine_line(first.machine)
    )
    for each in predicted:
        yield ""
        yield from _forecast_blocks(each, tokens)
    yield ""
    yield "nothing was started, and nothing written"


def _forecast_blocks(predicted: Predicted, tokens: float | None) -> Iterator[Block]:
    forecast = predicted.forecast
    case = forecast.case
    yield f"{case.title}: {case.setting}"
    yield f"{case.title}: shape {shape_words(case.shape)}"
    yield f"{case.title}: a step has {case.shape.batch} sequences of {case.shape.sequence} tokens"
    if options := options_set(case):
        yield f"{case.title}: options {' '.join(f'{name}={written(value)}' for name, value in options.items())}"
    yield from predicted.lines
    yield f"what decides: {forecast.decides.words}"
    yield ""
    yield from memory_blocks(forecast.memory)
    yield f"{_verdict(predicted)} (model: {MODELS['memory']})"
    yield ""
    yield from _step(forecast)
    yield from _totals(forecast, tokens)
    yield ""
    yield from (f"rests on {line}" for line in forecast.rests_on)
    yield from (f"not measured: {line}" for line in forecast.missing)


def _verdict(predicted: Predicted) -> str:
    memory = predicted.forecast.memory
    if predicted.machine is not None:
        return verdict_words(predicted.forecast.case, memory, predicted.machine)
    if memory.fits:
        return "the predicted parts fit" if memory.is_least else "it fits"
    return "it does not fit; use a smaller --shape, --batch or --sequence, or a strategy that shards"


def _step(forecast: Forecast) -> Iterator[Block]:
    step_s = forecast.step_s
    if isinstance(step_s, Absent):
        known = step_s.reason in forecast.missing
        yield "step: absent until its rates are measured" if known else f"step: absent: {step_s.reason}"
        return
    rows = [
        (
            part.title,
            *_cells(part.seconds),
            "-" if isinstance(part.seconds, Absent) else readable(part.seconds.value / step_s.value, "ratio"),
            part.model,
        )
        for part in forecast.parts
    ]
    rows.append(("step", *_cells(step_s), "100 %", ""))
    yield Table(("part", "time", "from", "to", "share", "model"), rows, words=(0, 5))
    for part in forecast.parts:
        if isinstance(part.seconds, Absent):
            yield f"{part.title}: absent: {part.seconds.reason}"
    yield f"ranges: {step_s.origin}"


def _cells(seconds: Range | Absent) -> tuple[str, str, str]:
    if isinstance(seconds, Absent):
        return "-", "-", "-"
    return time_words(seconds.value), time_words(seconds.low), time_words(seconds.high)


def _totals(forecast: Forecast, tokens: float | None) -> Iterator[str]:
    rate = forecast.tokens_per_second
    if isinstance(rate, Absent):
        return
    ranks = forecast.case.ranks
    yield f"tokens/s: {rate.value:,.0f} [{rate.low:,.0f}, {rate.high:,.0f}], {digits(rate.value / ranks)} a rank"
    if isinstance(forecast.mfu, Absent):
        yield f"MFU: absent: {forecast.mfu.reason}"
    else:
        low, high = (f"{100 * each:.1f}" for each in (forecast.mfu.low, forecast.mfu.high))
        yield f"MFU: {100 * forecast.mfu.value:.1f} % [{low}, {high}] of {forecast.mfu_of}"
    if tokens is not None and isinstance(days := forecast.days(tokens), Range):
        # As people write it: "15T", "1.5B", "800".
        units = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
        size, sign = next(((size, sign) for size, sign in units if tokens >= size), (1, ""))
        yield (
            f"{tokens / size:,.6g}{sign} tokens: {digits(days.value)} days"
            f" [{digits(days.low)}, {digits(days.high)}], without checkpoints and failures"
        )


def forecast_document(predicted: Predicted, tokens: float | None) -> dict[str, Any]:
    """Return a forecast for JSON, in seconds, bytes and ratios; an absent figure has its reason."""
    forecast = predicted.forecast
    memory, machine = forecast.memory, predicted.machine
    nearest = None if memory.fits or machine is None else nearest_fit(forecast.case, machine)
    return {
        "case": forecast.case,
        "machine": forecast.machine,
        "is_here": machine is None,
        "decides": forecast.decides,
        "memory": {
            "parts": dict(memory.parts),
            "total_bytes": memory.total_bytes,
            "room_bytes": memory.room_bytes,
            "is_least": memory.is_least,
            "fits": memory.fits,
            "basis": memory.basis,
            "model": MODELS["memory"],
        },
        "nearest": None if nearest is None else {"words": nearest.words, "total_bytes": nearest.memory.total_bytes},
        "parts": forecast.parts,
        "step_s": forecast.step_s,
        "tokens_per_second": forecast.tokens_per_second,
        "mfu": forecast.mfu,
        "mfu_of": forecast.mfu_of,
        "tokens": tokens,
        "days": None if tokens is None else forecast.days(tokens),
        "rests_on": forecast.rests_on,
        "missing": forecast.missing,
    }


def _rows(forecast: Forecast, tokens: float | None) -> Iterator[dict[str, object]]:
    """Yield a row for each part of memory and step, and for each total.

    fits: at_least if no cost model predicts the peak and the known parts fit.
    """
    base = {"strategy": forecast.case.strategy, "ranks": forecast.case.ranks, "machine": forecast.machine}
    memory = forecast.memory
    verdict = "at_least" if memory.fits and memory.is_least else "yes" if memory.fits else "no"
    base |= {"fits": verdict, "decides": forecast.decides.about}
    for name, size in memory.parts.items():
        yield base | {"part": f"memory {name}", "value": size, "unit": "bytes", "model": MODELS["memory"]}
    for part in forecast.parts:
        yield base | {"part": part.name, "level": part.level, "unit": "s", "model": part.model} | _ends(part.seconds)
    wholes: list[tuple[str, str, Range | Absent]] = [
        ("step", "s", forecast.step_s),
        ("tokens_per_second", "", forecast.tokens_per_second),
        ("mfu", "ratio", forecast.mfu),
    ]
    if tokens is not None:
        wholes.append(("days", "days", forecast.days(tokens)))
    for name, unit, figure in wholes:
        yield base | {"part": name, "unit": unit} | _ends(figure)


def _ends(figure: Range | Absent) -> dict[str, object]:
    if isinstance(figure, Absent):
        return {"absent": figure.reason}
    return {"value": figure.value, "low": figure.low, "high": figure.high}
