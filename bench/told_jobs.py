"""Tells dcgm-exporter which runs are on which GPU, in a thread of its own: the folder may be on a disk that hangs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from collectors.dcgm.job_mapping import JobMapping
from collectors.dcgm.runs_on_gpus import runs_by_file
from collectors.error_words import in_words
from collectors.exporter import Owned
from collectors.nvml.answering import Answerer

_CLOSE_S = 5.0


class ToldJobs:
    """What goes wrong is said, and tried again when there is something to tell again.

    on_notice: from any thread.
    """

    def __init__(self, mapping: JobMapping, *, on_notice: Callable[[str], None]) -> None:
        self._mapping = mapping
        self._on_notice = on_notice
        self._runs: Mapping[str, frozenset[str]] = {}
        self._answerer = Answerer("job-mapping", self._show)

    def tell(self, samples: Sequence[Owned]) -> None:
        """Begin to tell what is shown of the runs, unless still at what was told before; waits for nothing."""
        self._runs = runs_by_file(sample for sample, _ in samples)
        try:
            if not self._answerer.wait(0.0):
                self._on_notice("job mapping: its folder keeps us waiting at times; dcgm-exporter is told late then")
        except Exception as error:  # noqa: BLE001  # Whatever ails it, the runs are shown.
            self._on_notice(f"job mapping: {in_words(error)}; dcgm-exporter is not told of the runs")
        self._answerer.ask()

    def close(self) -> None:
        """Tell no more; what hangs is left behind."""
        self._answerer.close(_CLOSE_S)

    def _show(self) -> None:
        self._mapping.show(self._runs)
        for reason in self._mapping.absent:
            self._on_notice(reason)
