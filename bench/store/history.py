"""The history: every run ever measured, in a database (SQLite or PostgreSQL)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, delete, func, insert, or_, select, update

from bench.errors import InfrastructureFailed, Misuse
from bench.machine.fingerprint import fingerprint
from bench.machine.machine import Machine
from bench.store import suite_record
from bench.store.active_runs import has_case
from bench.store.database import NoStoreYet, StoreGone, check_writable, connect, default_url, parse_url, saying, shown
from bench.store.schema import ESTIMATES, RUNS, SUITE_RUNS, TRIAL_VALUES, OlderStore, check_version, upgrade
from bench.store.suite_record import SuiteRecord
from bench.store.summary import Summary, decode, encode, series_of, steps_of_a_trial
from collectors.metrics.results import RUN_STEP_SECONDS
from workloads.spec import WATCHED

__all__ = ["History", "NoStoreYet", "check_store", "default_url", "find_run", "is_job", "means_folder"]

_CANDIDATES_SHOWN = 6


class History:
    """A store of runs. Use it in a `with`.

    url: in SQLAlchemy's form; by default SQLite in the user's data folder.
    writable: create and migrate the store on entering, which proves that it can be written. Without it a read-only
        store is enough, unless its version is older, so that it must be migrated.
    is_glance: the store is read only for a moment: it is not migrated, and SQLite leaves no files of its own behind.

    Raises:
        Misuse: the URL is not that of a store.
        InfrastructureFailed: on entering and from each call, if the store cannot be reached, read or written.
    """

    def __init__(self, url: str | None = None, *, writable: bool = True, is_glance: bool = False) -> None:
        self._url = parse_url(url or default_url())
        self._writable, self._is_glance = writable, is_glance
        self._engine = connect(self._url, writable=writable, is_glance=is_glance)

    def __enter__(self) -> History:
        try:
            self.prepare()
        except BaseException:
            self.close()
            raise
        return self

    def prepare(self) -> None:
        """Do what entering does: create and migrate the store if it is writable, else check that it can be read."""
        with saying(self._url):
            if self._writable:
                upgrade(self._engine)
            else:
                self._check_or_upgrade()

    def _check_or_upgrade(self) -> None:
        """Refuse a store that cannot be read; migrate an older one, except for a glance."""
        try:
            with self._engine.begin() as connection:
                check_version(connection)
        except OlderStore as error:
            if self._is_glance:
                raise
            try:
                with History(self._url.render_as_string(hide_password=False)):
                    pass
            except InfrastructureFailed:
                raise error from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection for one transaction, whose errors are raised as errors of the history."""
        with saying(self._url), self._engine.begin() as connection:
            yield connection

    def add(self, summary: Summary, machine: Machine) -> None:
        """Store the run, in place of an earlier one with the same id.

        Raises:
            Misuse: a value is not finite.
        """
        for figure in summary.estimates:
            if not _is_finite(figure.median, figure.low, figure.high, *figure.trials):
                raise Misuse(f"run {summary.run}: {figure.metric} is not finite in every trial and is not stored")
        ratios = [
            value
            for scaling in summary.scaling
            for value in (scaling.ratio.value, scaling.ratio.low, scaling.ratio.high)
        ]
        if not _is_finite(*ratios, *summary.step_spreads):
            raise Misuse(f"run {summary.run}: an efficiency or a spread of steps is not finite and is not stored")
        member = summary.purpose.member
        run = {
            "id": summary.run,
            "key": summary.case.key(),
            "strategy": summary.case.strategy,
            "ranks": summary.case.ranks,
            "device": summary.case.device,
            "precision": summary.case.precision,
            "hardware": summary.hardware,
            "started_ns": summary.started_ns,
            "ended_ns": summary.ended_ns,
            "outcome": summary.outcome,
            "folder": summary.folder,
            "case_json": msgspec.json.encode(summary.case).decode(),
            "machine_json": msgspec.json.encode(machine).decode(),
            "summary_json": encode(summary).decode(),
            "suite": None if member is None else member.suite,
            "suite_run": None if member is None else member.id,
            "suite_case": None if member is None else member.case,
            "is_rerun": None if member is None else int(member.is_rerun),
            "series": series_of(summary.case, summary.hardware),
            "definition_version": summary.case.version,
            "commit_id": summary.commit,
            "environment": fingerprint(machine),
            "hosts": " ".join(summary.hosts) or None,
        }
        estimates: list[dict[str, Any]] = []
        values: list[dict[str, Any]] = []
        for figure in summary.estimates:
            labels = msgspec.json.encode(figure.labels, order="sorted").decode()
            place = {"run": summary.run, "metric": figure.metric, "labels": labels}
            estimates.append(place | {"median": figure.median, "low": figure.low, "high": figure.high})
            # A step's spread exists for the trials that have step times.
            spreads = summary.step_spreads if figure.metric == RUN_STEP_SECONDS.name else ()
            values += [
                place | {"trial": trial, "value": value, "spread_ratio": spread, "steps": steps_of_a_trial(summary)}
                for trial, (value, spread) in enumerate(zip_longest(figure.trials, spreads[: len(figure.trials)]))
            ]
        with saying(self._url), self._engine.begin() as connection:
            connection.execute(delete(RUNS).where(RUNS.c.id == summary.run))
            connection.execute(insert(RUNS), run)
            for table, rows in ((ESTIMATES, estimates), (TRIAL_VALUES, values)):
                if rows:
                    connection.execute(insert(table), rows)

    def runs(
        self,
        limit: int,
        *,
        strategy: str | None = None,
        suite: str | None = None,
        suite_run: str | None = None,
        skipped: int = 0,
    ) -> tuple[Summary, ...]:
        """Return the newest runs, newest first, optionally of one strategy, suite or suite run.

        skipped: number of newest runs to leave out.
        """
        filters = {RUNS.c.strategy: strategy, RUNS.c.suite: suite, RUNS.c.suite_run: suite_run}
        query = _NEWEST.where(*(column == value for column, value in filters.items() if value is not None))
        return self._summaries(query.limit(limit).offset(skipped))

    def save_suite(self, record: SuiteRecord) -> None:
        """Store the record of a suite run, in place of an earlier one with the same id."""
        row = {
            "id": record.id,
            "suite": record.suite,
            "started_ns": record.started_ns,
            "record_json": suite_record.encode(record).decode(),
        }
        with saying(self._url), self._engine.begin() as connection:
            connection.execute(delete(SUITE_RUNS).where(SUITE_RUNS.c.id == record.id))
            connection.execute(insert(SUITE_RUNS), row)

    def suite_runs(self, limit: int, suite: str | None = None) -> tuple[SuiteRecord, ...]:
        """Return the records of the newest suite runs, newest first, of all suites or of one."""
        query = select(SUITE_RUNS).order_by(SUITE_RUNS.c.started_ns.desc(), SUITE_RUNS.c.id.desc()).limit(limit)
        if suite is not None:
            query = query.where(SUITE_RUNS.c.suite == suite)
        with saying(self._url), self._engine.begin() as connection:
            rows = connection.execute(query).all()
        return tuple(
            suite_record.decode(row.record_json, f"suite run {row.id} in store {shown(self._url)}") for row in rows
        )

    def names(self, limit: int) -> tuple[str, ...]:
        """Return the ids of the newest runs, newest first."""
        with saying(self._url), self._engine.begin() as connection:
            newest = select(RUNS.c.id).order_by(RUNS.c.started_ns.desc(), RUNS.c.id.desc()).limit(limit)
            return tuple(connection.scalars(newest))

    def find(self, prefix: str) -> Summary:
        """Return the run with this id, else the only one whose id begins so, else the newest watched run of this name.

        Raises:
            Misuse: no id begins with it, or several do; the message lists candidates.
        """
        matches = self._summaries(_NEWEST.where(RUNS.c.id == prefix))
        if matches:
            return matches[0]
        begins = func.substr(RUNS.c.id, 1, len(prefix)) == prefix  # Not LIKE, which ignores case in SQLite.
        candidates = self._summaries(_NEWEST.where(begins).limit(_CANDIDATES_SHOWN + 1)) if prefix else ()
        if len(candidates) == 1:
            return candidates[0]
        if not candidates and (watched := self.watched(prefix)) is not None:
            return watched
        if not candidates:
            newest = ", ".join(summary.run for summary in self.runs(_CANDIDATES_SHOWN)) or "none"
            raise Misuse(f'run "{prefix}" is unknown; the newest in the history are: {newest}')
        names = [summary.run for summary in candidates[:_CANDIDATES_SHOWN]]
        more = ", ..." if len(candidates) > _CANDIDATES_SHOWN else ""
        raise Misuse(f'run "{prefix}" may be any of {", ".join(names)}{more}; give more of its name')

    def means_folder(self, text: str) -> bool:
        """Whether a word is the path of a folder, not the name of a watched job that a folder happens to share.

        A script train.py next to a folder `train` makes a job `train`: the folder comes first if it holds a run.
        """
        path = Path(text)
        is_shared = path.is_dir() and path.name == text and not has_case(path)
        return path.is_dir() and not (is_shared and self.watched(text) is not None)

    def watched(self, text: str) -> Summary | None:
        """Return the newest watched run with this name; for NAME@2026-11-20, the newest that began by that day's end.

        The day is in UTC. None if no watched run has the name.

        Raises:
            Misuse: the part after the @ is not a day, or all runs with the name are later.
        """
        name, at, day = text.rpartition("@")
        name = name if at else text
        is_watched = RUNS.c.strategy == WATCHED
        quoted = msgspec.json.encode(name).decode()
        for letter in "\\%_":  # They have a meaning in a LIKE pattern.
            quoted = quoted.replace(letter, f"\\{letter}")
        is_named = RUNS.c.summary_json.like(f'%"name":{quoted}%', escape="\\")
        of_name = [
            each for each in self._summaries(_NEWEST.where(is_watched, is_named)) if each.case.watched_name == name
        ]
        if not of_name:
            return None
        if not at:
            return of_name[0]
        end_ns = _end_of_day(day, text)
        by_then = next((each for each in of_name if each.started_ns < end_ns), None)
        if by_then is None:
            began = datetime.fromtimestamp(of_name[-1].started_ns / 1e9, tz=UTC)
            raise Misuse(
                f"{text}: the first watched run of {name} began on {began:%Y-%m-%d}; name that day or a later one"
            )
        return by_then

    def beginning_with(self, prefix: str, limit: int) -> tuple[str, ...]:
        """Return the ids of the newest runs whose ids begin with this prefix, newest first."""
        begins = func.substr(RUNS.c.id, 1, len(prefix)) == prefix
        newest = select(RUNS.c.id).where(begins).order_by(RUNS.c.started_ns.desc(), RUNS.c.id.desc()).limit(limit)
        with saying(self._url), self._engine.begin() as connection:
            return tuple(connection.scalars(newest))

    def at_commit(self, prefix: str, limit: int) -> tuple[Summary, ...]:
        """Return the newest runs of commits that begin with these hex digits, newest first."""
        begins = func.substr(RUNS.c.commit_id, 1, len(prefix)) == prefix
        # Runs stored by an older version have no column; few of the others have the digits, in quotes, in their
        # summary.
        is_quoted = and_(RUNS.c.commit_id.is_(None), RUNS.c.summary_json.like(f'%"commit":"{prefix}%'))
        candidates = self._summaries(_NEWEST.where(or_(begins, is_quoted)).limit(limit))
        return tuple(
            summary for summary in candidates if summary.commit is not None and summary.commit.startswith(prefix)
        )

    def machine(self, run: str) -> Machine | None:
        """Return the machine that the run with this id ran on; None if the run is unknown."""
        with saying(self._url), self._engine.begin() as connection:
            document = connection.scalar(select(RUNS.c.machine_json).where(RUNS.c.id == run))
        return None if document is None else msgspec.json.decode(document, type=Machine)

    def known(self, ids: Iterable[str] | None = None) -> frozenset[str]:
        """Return those of these ids that are in the history; without ids, all ids of the history."""
        with saying(self._url), self._engine.begin() as connection:
            known = frozenset(connection.scalars(select(RUNS.c.id)))
        return known if ids is None else known.intersection(ids)

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Return the number of runs with each strategy and outcome."""
        query = select(RUNS.c.strategy, RUNS.c.outcome, func.count()).group_by(RUNS.c.strategy, RUNS.c.outcome)
        with saying(self._url), self._engine.begin() as connection:
            return {(strategy, outcome): number for strategy, outcome, number in connection.execute(query)}

    def extent(self) -> tuple[int, int | None]:
        """Return the number of runs and when the newest began; this takes a tenth of the time of `outcomes`."""
        with saying(self._url), self._engine.begin() as connection:
            number, newest_ns = connection.execute(select(func.count(), func.max(RUNS.c.started_ns))).one()
            return number, newest_ns

    def folders(self) -> dict[str, str]:
        """Return the folder of each run, by id."""
        with saying(self._url), self._engine.begin() as connection:
            return {row.id: row.folder for row in connection.execute(select(RUNS.c.id, RUNS.c.folder))}

    def forget(self, run: str) -> None:
        """Delete the run and everything stored about it; do nothing if it is unknown."""
        with saying(self._url), self._engine.begin() as connection:
            connection.execute(delete(RUNS).where(RUNS.c.id == run))

    def move(self, run: str, folder: str) -> None:
        """Record that the run's folder has moved; nothing else of the run changes."""
        with saying(self._url), self._engine.begin() as connection:
            of_run = RUNS.c.id == run
            summary = connection.scalar(select(RUNS.c.summary_json).where(of_run))
            assert summary is not None, "who moves a run has it from this history"
            fields = msgspec.json.decode(summary, type=dict[str, msgspec.Raw])
            fields["folder"] = msgspec.Raw(msgspec.json.encode(folder))
            connection.execute(
                update(RUNS).where(of_run).values(folder=folder, summary_json=msgspec.json.encode(fields).decode())
            )

    def baselines(self, key: str, hardware: str, limit: int) -> tuple[Summary, ...]:
        """Return the runs that ended well with this case key on this hardware, newest first, without reruns."""
        is_own = or_(RUNS.c.is_rerun.is_(None), RUNS.c.is_rerun == 0)
        is_like = (RUNS.c.key == key, RUNS.c.hardware == hardware, RUNS.c.outcome == "done", is_own)
        return self._summaries(_NEWEST.where(*is_like).limit(limit))

    def _summaries(self, query: Select[Any]) -> tuple[Summary, ...]:
        with saying(self._url), self._engine.begin() as connection:
            rows = connection.execute(query).all()
        return tuple(decode(row.summary_json.encode(), f"run {row.id} in store {shown(self._url)}") for row in rows)


def find_run(prefix: str, url: str | None, *, is_glance: bool = False) -> Summary:
    """Return the run that `History.find` finds in this store. url, is_glance: see `History`.

    Raises:
        Misuse: as `History.find`, or there is no history yet.
        InfrastructureFailed: the store cannot be read.
    """
    try:
        with History(url, writable=False, is_glance=is_glance) as history:
            return history.find(prefix)
    except NoStoreYet:
        raise Misuse(f'run "{prefix}" is unknown; the history has no run yet, `observatory run` makes one') from None


def means_folder(text: str, url: str | None) -> bool:
    """Return what `History.means_folder` does; without a history, every folder is meant. url: see `History`."""
    if not Path(text).is_dir():
        return False
    with suppress(Misuse, InfrastructureFailed), History(url, writable=False) as history:
        return history.means_folder(text)
    return True


def is_job(text: str, url: str | None) -> bool:
    """Whether a watched job has this name; without a history, none has. url: see `History`."""
    with suppress(Misuse, InfrastructureFailed), History(url, writable=False) as history:
        return history.watched(text) is not None
    return False


def check_store(url: str | None) -> None:
    """Refuse a store that could not store a run's results; create and change nothing. url: see `History`.

    A run can begin while the store is down, so that is not refused.

    Raises:
        Misuse, InfrastructureFailed: as from a writable `History`.
    """
    with suppress(NoStoreYet, OlderStore, StoreGone), History(url, writable=False, is_glance=True):
        pass  # The run creates a missing store and migrates an older one.
    check_writable(parse_url(url or default_url()))


def _end_of_day(day: str, text: str) -> int:
    """Return the end of a day in UTC, as Unix time in nanoseconds."""
    try:
        begin = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC)
        return (int(begin.timestamp()) + 86_400) * 10**9
    except (ValueError, OverflowError):
        raise Misuse(f'{text}: "{day}" is not a day; write NAME@YEAR-MONTH-DAY, for example llama@2026-11-20') from None


def _is_finite(*values: float | None) -> bool:
    return all(value is None or math.isfinite(value) for value in values)


_NEWEST = select(RUNS.c.id, RUNS.c.summary_json).order_by(RUNS.c.started_ns.desc(), RUNS.c.id.desc())
