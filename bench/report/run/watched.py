"""Prints a watched run: its figures, its ranks and the late rank; and its diagnosis, which uses no cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console

from bench.errors import plural
from bench.report.format import figure, readable
from bench.report.table import Block, Table, whole, write
from bench.results.estimate import Estimate, of_metric
from bench.results.watched.details import Late, TracedWindow, WatchedDetails, WatchedRank
from bench.results.watched.still import duration_words, phase_words, still_words
from bench.store.summary import Summary, outcome_of
from collectors.metrics import results
from collectors.metrics.metric import Metric

MOST_WINDOWS = 2
"""Newest traced windows in the short table."""
MOST_RANKS = 8
"""Ranks in the short table: those with the longest steps. The details list all."""
_FIGURES: tuple[tuple[str, Metric, dict[str, str]], ...] = (
    ("tokens/s", results.RUN_TOKENS_PER_SECOND, {}),
    ("tokens/s/device", results.RUN_TOKENS_PER_SECOND_PER_DEVICE, {}),
    ("median step", results.RUN_STEP_SECONDS, {}),
    ("p90 of the steps", results.RUN_STEP_QUANTILE_SECONDS, {"quantile": "p90"}),
    ("p99 of the steps", results.RUN_STEP_QUANTILE_SECONDS, {"quantile": "p99"}),
    ("mean step", results.RUN_MEAN_STEP_SECONDS, {}),
    ("worst rank's data", results.RUN_PHASE_SECONDS, {"phase": "data"}),
    ("host waits for data", results.RUN_DATA_WAIT_SECONDS, {}),
    ("worst rank's forward", results.RUN_PHASE_SECONDS, {"phase": "forward"}),
    ("worst rank's backward", results.RUN_PHASE_SECONDS, {"phase": "backward"}),
    ("worst rank's optimizer", results.RUN_PHASE_SECONDS, {"phase": "optimizer"}),
    ("peak memory allocator", results.RUN_PEAK_MEMORY_BYTES, {"account": "allocator"}),
    ("peak memory resident", results.RUN_PEAK_MEMORY_BYTES, {"account": "resident"}),
    ("watching's share", results.RUN_OBSERVER_RATIO, {}),
)
_NOT_PREDICTED = (
    "no cost model covers a user's own program: shares of computing, communication and memory are not predicted"
)
COLUMNS = ("run", "name", "verdict", "rank", "phase", "late_s", "step_ratio", "reason")


def watched_settings(summary: Summary, watched: WatchedDetails, *, has_details: bool) -> list[tuple[str, str]]:
    """Return the watched program, and how its steps were detected, in rows of two cells."""
    outcome = outcome_of(summary).replace("_", " ")
    measured = f"{plural(summary.case.steps, 'measured step')} of {watched.steps}"
    rules = f", found by {' and '.join(watched.rules)}" if watched.rules else ""
    rows = [("run", f"{summary.run}: {outcome}, {measured}{rules}"), ("watched", watched.name)]
    if watched.tags:
        rows.append(("tags", ", ".join(f"{key}={value}" for key, value in sorted(watched.tags.items()))))
    if not has_details:
        return rows
    return [
        *rows,
        ("command", " ".join(watched.command) or "-"),
        ("script", f"{watched.script or '-'} (sha256 {(watched.script_sha256 or 'unknown')[:12]})"),
        ("commit", watched.git_commit or "-"),
        ("hardware", summary.hardware),
        ("setting", summary.case.setting),
        ("groups", str(summary.case.options.get("groups") or "-")),
        ("clock", "the devices' events" if watched.device_clock else "the hosts'"),
        ("work of a step", f"{watched.work}: {watched.work_reason}"),
    ]


def watched_blocks(summary: Summary, *, has_details: bool) -> Iterator[Block]:
    """Yield a watched run's figures, its ranks, and the late rank."""
    watched = summary.watched
    assert watched is not None, "the caller asks for a watched run's blocks"
    rows = [("ranks", str(summary.case.ranks)), ("nodes", str(summary.case.nodes))]
    rows += [
        (title, figure(each)) for title, metric, labels in _FIGURES if (each := _estimate(summary, metric, labels))
    ]
    yield Table(("", watched.name), rows, unbroken=(0,))
    ranks = sorted(watched.ranks, key=lambda rank: -(rank.step_s or 0.0))
    shown = sorted(ranks if has_details else ranks[:MOST_RANKS], key=lambda rank: rank.rank)
    reserved = ("reserved",) if any(rank.peak_reserved_bytes is not None for rank in shown) else ()
    if shown:
        yield ""
        yield Table(
            ("rank", "host", "step", *("data", "forward", "backward", "optimizer"), "memory", *reserved),
            [_rank_cells(rank)[: 8 + len(reserved)] for rank in shown],
            keys=2,
        )
        if len(shown) < len(ranks):
            yield f"{plural(len(ranks) - len(shown), 'more rank')}: `observatory show {summary.run} --details`"
    yield ""
    yield from late_lines(watched.late)
    for window in watched.windows if has_details else watched.windows[-MOST_WINDOWS:]:
        yield ""
        yield from window_lines(window)
    yield from still_lines(summary.run, watched)


def still_lines(run: str, watched: WatchedDetails) -> Iterator[str]:
    """Yield where the ranks were when steps stopped; nothing if they never stopped."""
    ranks = {rank.rank: rank for rank in watched.still}
    if not ranks:
        return
    longest = max(ranks.values(), key=lambda rank: rank.still_s)
    world_size = max(len(ranks), len(watched.ranks) + watched.missing)
    end = "then steps resumed" if longest.has_gone_on else "and none after that"
    yield f"no step for {duration_words(longest.still_s)} after step {longest.steps:,}, {end}"
    yield f"  {still_words(ranks, world_size=world_size)}"
    records = f"`observatory analyse flight-recorder {run}`"
    yield f"  stacks: watch_rank*.stacks.txt in the run's folder; Flight Records: {records}"


def late_lines(late: Late) -> Iterator[str]:
    """Yield the late rank in words, or why none is named."""
    if late.rank is None or late.phase is None or late.step_ratio is None:
        yield f"who is late: unsure: {late.reason}"
        return
    yield f"who is late: rank {late.rank} {phase_words(late.phase)}, by {100 * late.step_ratio:.0f} % of the step"
    yield late.reason


def window_lines(window: TracedWindow) -> Iterator[str]:
    """Yield the figures of a traced window in words."""
    steps = "" if window.first is None else f"steps {window.first:,} to {window.last:,}"
    yield f"window {window.number}: {', '.join(filter(None, (steps, window.why))) or 'no step'}"
    if window.dropped is not None:
        yield f"  dropped: {window.dropped}"
        return
    figures = (
        ("exposed communication {:.0f} % of the steps", window.exposed_ratio),
        ("{:.0f} % of the communication overlaps computation", window.overlap_ratio),
        ("{:.0f} % of the time in collectives is waiting", window.waiting_ratio),
    )
    known = [text.format(100 * ratio) for text, ratio in figures if ratio is not None]
    step = [] if window.step_s is None else [f"traced step {readable(1e9 * window.step_s, 'ns')}"]
    yield f"  {'; '.join([*step, *(known or ['no communication in the traces'])])}"
    if window.late is not None and window.late.rank is not None:
        where = f" {phase_words(window.late.phase)}" if window.late.phase else ""
        yield f"  late by the traces: rank {window.late.rank}{where}: {window.late.reason}"
    elif window.late is not None:
        yield f"  late by the traces: unsure: {window.late.reason}"
    if window.path:
        parts = (f"rank {rank} {kind} {100 * share:.0f} %" for rank, kind, share in window.path)
        yield f"  critical path: {', '.join(parts)}"
    if window.cost_s is not None:
        yield f"  cost: the profiler took {window.cost_s:.2f} s around the window; traced steps are also slower"
    for note in window.notes:
        yield f"  left out: {note}"


def _estimate(summary: Summary, metric: Metric, labels: dict[str, str]) -> Estimate | None:
    return next((each for each in of_metric(summary.estimates, metric) if each.labels == labels), None)


def _rank_cells(rank: WatchedRank) -> tuple[str, ...]:
    times = (rank.step_s, rank.data_s, rank.forward_s, rank.backward_s, rank.optimizer_s)
    size = rank.rss_bytes if rank.peak_bytes is None else rank.peak_bytes
    return (
        str(rank.rank),
        rank.host or "-",
        *("-" if time_s is None else f"{1e3 * time_s:.4g} ms" for time_s in times),
        *("-" if each is None else f"{each / 2**20:.4g} MiB" for each in (size, rank.peak_reserved_bytes)),
    )


# The diagnosis


def print_watched_diagnosis(summary: Summary, format_name: str, console: Console | None = None) -> None:
    """Print the rank that holds up a watched run, what its figures leave out, and the next command."""
    watched = summary.watched
    assert watched is not None, "the caller asks for a watched run's diagnosis"
    late = watched.late
    write(
        format_name,
        map(whole, _diagnosis(summary, watched)),
        lambda: {
            "run": summary.run,
            "name": watched.name,
            "outcome": outcome_of(summary),
            "late": asdict(late),
            "windows": [asdict(window) for window in watched.windows],
            "missing": [_NOT_PREDICTED, *summary.notes],
        },
        [{"run": summary.run, "name": watched.name, **asdict(late)}],
        COLUMNS,
        console,
    )


def _diagnosis(summary: Summary, watched: WatchedDetails) -> Iterator[str]:
    yield f"{summary.run}: {summary.case.title}, {outcome_of(summary).replace('_', ' ')}"
    if summary.cause is not None:
        yield f"failed: {summary.cause.text}"
    yield from late_lines(watched.late)
    traced = next((window for window in reversed(watched.windows) if window.dropped is None), None)
    if traced is not None:
        yield from window_lines(traced)
    named = {watched.late.rank, None if traced is None or traced.late is None else traced.late.rank}
    yield from still_lines(summary.run, watched)
    for rank in watched.ranks:
        if rank.rank in named:
            yield f"rank {rank.rank} runs on {rank.host or 'a host without a name'}, device {rank.device}"
    step = _estimate(summary, results.RUN_STEP_SECONDS, {})
    if step is not None:
        for name, metric, labels in (
            ("data", results.RUN_PHASE_SECONDS, {"phase": "data"}),
            ("data, by the host", results.RUN_DATA_WAIT_SECONDS, {}),
        ):
            if (wait := _estimate(summary, metric, labels)) is not None:
                share = 100 * wait.median / step.median
                yield f"the rank that waits most for {name} waits {share:.1f} % of the median step"
    yield ""
    yield "missing"
    for note in (_NOT_PREDICTED, *summary.notes):
        yield f"  {note}"
    yield ""
    if traced is None:
        attach = f"`observatory watch --attach {watched.name}`"
        when = "" if watched.is_active else "during the next run, "
        yield f"next: {when}{attach} traces the same steps on all ranks"
    else:
        yield f"next: `observatory analyse stragglers {summary.run}` shows the newest window's traces in full"
