"""A history that may be locked or unreachable for a while: measuring continues, and the history catches up later."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bench.analysis.prediction.scoring.before_run import not_predicted, predict_run
from bench.case import Case
from bench.errors import InfrastructureFailed, plural
from bench.machine.machine import Machine
from bench.session.recover import recover_runs
from bench.store.database import StoreGone
from bench.store.hardware_baselines import Ceiling, find_ceiling
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from bench.store.summary import StoredPrediction
from workloads.cost_models.absent import Absent

PATIENCE_S = 25.0
"""How long measuring waits for a store that does not answer before it continues without it."""
AGAIN_S = 60.0
"""How long a store that did not answer is left alone: a locked store delays each query by 30 s."""
PAUSE_S = 1.0


class PatientStore:
    """A history whose failures are reported once each and do not end the work. Use it in a `with`, which opens it.

    Results that the history misses stay in the run folders, from which they are recovered later.

    runs: the folder of runs. url: the store's, as runs record it. tell: called when the store fails or is back. work:
    the name of the work that continues, for messages. clock_s: monotonic. sleep: waits that many seconds.

    Raises:
        InfrastructureFailed: on entering, if the store refuses, so that waiting would not help.
    """

    def __init__(
        self,
        history: History,
        *,
        runs: Path,
        url: str | None,
        tell: Callable[[str], None],
        work: str = "suite",
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.failure: InfrastructureFailed | None = None
        self._history, self._runs, self._url = history, runs, url
        self._tell, self._work, self._clock_s, self._sleep = tell, work, clock_s, sleep
        self._failed_s = 0.0

    def __enter__(self) -> PatientStore:
        try:
            self._wait(self._open, survived=StoreGone)
        except BaseException:
            self._history.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._history.close()

    @property
    def history(self) -> History | None:
        """The history; None while it does not answer."""
        return self._history if self.failure is None else None

    def failed(self, error: InfrastructureFailed) -> None:
        """Do not query the store for a while."""
        if self.failure is None:
            self._tell(f"{error}; the {self._work} continues, and its results stay in the run folders")
        self.failure, self._failed_s = error, self._clock_s()

    def save(self, record: SuiteRecord) -> None:
        """Store the record, unless the store does not answer."""
        if self.failure is None:
            try:
                self._history.save_suite(record)
            except InfrastructureFailed as error:
                self.failed(error)

    def ceiling_of(self, case: Case, machine: Machine) -> float | None:
        """Return the FLOP/s that matmul reached on this hardware; None if unknown."""
        if self.failure is not None or case.model is None:
            return None
        try:
            ceiling = find_ceiling(self._history, case, machine.hardware(case.device))
        except InfrastructureFailed as error:
            self.failed(error)
            return None
        return ceiling.flops_per_second.median if isinstance(ceiling, Ceiling) else None

    def prediction_of(self, case: Case, machine: Machine) -> StoredPrediction | None:
        """Return the cost models' prediction of a run that is about to begin; None for a probe.

        If anything goes wrong, the prediction contains the reason: no run fails because it could not be predicted.
        """
        hardware, no_answer = machine.hardware(case.device), Absent(reason="the store does not answer")
        try:
            try:
                return predict_run(case, hardware, no_answer if self.failure is not None else self._history)
            except InfrastructureFailed as error:
                self.failed(error)
                return predict_run(case, hardware, no_answer)
        except Exception as error:  # noqa: BLE001  # A cost model that fails must not end the measurement.
            return not_predicted(error)

    def ready(self, *, is_last: bool = False) -> History | None:
        """Wait until the history answers; return it, or None if it does not answer in time.

        is_last: query the store even if it failed a moment ago.
        """
        if self.failure is not None and not is_last and self._clock_s() - self._failed_s < AGAIN_S:
            return None
        self._wait(self._ask)
        return self.history

    def _open(self) -> None:
        """Prepare the history, and add runs whose runner died."""
        self._history.prepare()
        for notice in recover_runs(self._runs, self._history, self._url).notices():
            self._tell(notice)

    def _ask(self) -> None:
        """Query the history; after a failure, also prepare it and add what it missed."""
        if self.failure is not None:
            self._history.prepare()
        self._history.names(1)
        if self.failure is not None:
            recovered = recover_runs(self._runs, self._history, self._url)
            self.failure = None
            self._tell(f"the store answers again; added {plural(len(recovered.runs), 'run')}")

    def _wait(
        self, attempt: Callable[[], None], *, survived: type[InfrastructureFailed] = InfrastructureFailed
    ) -> None:
        """Repeat the attempt until it succeeds or time is up; then mark the store as failed. Raise other failures."""
        give_up_s = self._clock_s() + PATIENCE_S
        while True:
            try:
                attempt()
            except survived as error:
                if self._clock_s() >= give_up_s:
                    self.failed(error)
                    return
                self._sleep(PAUSE_S)
            else:
                return
