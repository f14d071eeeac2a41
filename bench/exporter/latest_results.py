"""The results shown at /metrics: of each series, the newest run in the history that ended well and is not ad hoc."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.case import why_ad_hoc
from bench.errors import InfrastructureFailed, Misuse
from bench.runs.history import History
from bench.runs.summary import Summary, series_of
from collectors.errors import in_words
from collectors.metrics.agent import RESULT_INFO, RUN_LAST_COMPLETION, RUN_LAST_FAILURE
from collectors.metrics.metric import Sample
from collectors.metrics.results import RUN_SCALING_EFFICIENCY
from collectors.prometheus.exposition import Owned


class NewestResults:
    """The newest results, read by `ask` in a thread that scrapes do not wait for: a store may be slow, or absent.

    What was read stays when the store goes away. on_notice: is told what cannot be read.
    """

    def __init__(self, store_url: str | None, *, on_notice: Callable[[str], None]) -> None:
        self._store_url = store_url
        self._on_notice = on_notice
        self._seen: frozenset[str] = frozenset()
        self._newest: dict[str, Summary] = {}
        self._ended: dict[str, Summary] = {}
        self._samples: tuple[Owned, ...] = ()

    def samples(self) -> tuple[Owned, ...]:
        """Return the results as last read from the history."""
        return self._samples

    def ask(self) -> None:
        """Read what is new in the history."""
        try:
            with History(self._store_url, writable=False) as history:
                known = history.known()
                for summary in self._fresh(history, known):
                    self._take(summary)
                self._seen = known
        except (InfrastructureFailed, Misuse) as error:
            what = "results are no longer updated" if self._seen else "no results are shown yet"
            self._on_notice(f"{what}: {error}")
        except Exception as error:  # noqa: BLE001  # Whatever it is, it must not end the thread: results would freeze.
            self._on_notice(f"results are no longer updated: {in_words(error)}")
        self._samples = (
            *(owned for summary in self._newest.values() for owned in _samples(summary)),
            *(owned for summary in self._ended.values() for owned in _failure(summary)),
        )

    def _fresh(self, history: History, known: frozenset[str]) -> Iterator[Summary]:
        fresh = known - self._seen
        if fresh and not self._seen:
            try:
                yield from history.runs(limit=len(known))
            except Misuse:  # One run cannot be read: find it by reading one by one.
                fresh = known
            else:
                return
        for run in sorted(fresh):
            try:
                yield history.find(run)
            except Misuse as error:
                self._on_notice(f"a result is not shown: {error}")

    def _take(self, summary: Summary) -> None:
        if why_ad_hoc(summary.case, summary.purpose):
            return
        series = series_of(summary.case, summary.hardware)
        for kept in (self._ended, self._newest) if summary.outcome == "done" else (self._ended,):
            before = kept.get(series)
            if before is None or (before.started_ns, before.run) < (summary.started_ns, summary.run):
                kept[series] = summary


def _owner(summary: Summary) -> dict[str, str]:
    case = summary.case
    return {
        "strategy": case.strategy,
        "ranks": str(case.ranks),
        "device": case.device,
        "precision": case.precision,
        "series": series_of(case, summary.hardware),
    }


def _failure(summary: Summary) -> Iterator[Owned]:
    """Yield that the newest run of a series failed; nothing of a suite's case, which is told of with its suite."""
    if summary.outcome != "done" and summary.purpose.member is None:
        ended_s = summary.ended_ns / 1e9
        yield RUN_LAST_FAILURE.at(ended_s, **_owner(summary), run=summary.run, outcome=summary.outcome), {}


def _samples(summary: Summary) -> Iterator[Owned]:
    """Yield what is shown of a result.

    In the metric a baseline measured beside the run means one rank, and so it does for accepted efficiencies: the
    efficiency of a curve is left out unless the curve begins with 1 rank.
    """
    case = summary.case
    owner = _owner(summary)
    yield RESULT_INFO.at(1, series=owner["series"], run=summary.run, strategy=case.strategy), {}
    yield RUN_LAST_COMPLETION.at(summary.ended_ns / 1e9, **owner), {}
    for found in summary.estimates:
        for bound, value in (("median", found.median), ("low", found.low), ("high", found.high)):
            if value is not None:
                yield Sample(found.metric, value, found.labels), {**owner, "bound": bound}
    for scaling in summary.scaling:
        if scaling.is_beside and scaling.baseline_ranks != 1:
            continue
        efficiency = scaling.ratio
        for bound, value in (("median", efficiency.value), ("low", efficiency.low), ("high", efficiency.high)):
            if value is not None:
                labels = {"scaling": scaling.scaling, "baseline": scaling.baseline}
                yield RUN_SCALING_EFFICIENCY.at(value, **labels), {**owner, "bound": bound}
