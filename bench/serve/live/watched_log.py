"""Follows a rank's file of a watched run while it grows, and reads it like the log of one of our ranks.

Every step of a watched program counts as measured: a summary leaves out the first steps, but a live series does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.results.watched.rank_files import LONGEST_LINE, MOST_NS, PHASES, VERSION, Active, Begin, Line, Steps, Still
from collectors.files import open_to_read
from collectors.metrics import rank as rank_metrics
from collectors.metrics.metric import Sample
from collectors.sample_log import LoggedStep, Newest, Opened, Reading, Record
from collectors.watch.observatory_watch_still import Past

_MOST_AT_ONCE = 4 * LONGEST_LINE
"""Most bytes that a look reads; the next look continues from there."""
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class WatchedLog:
    """A rank's file of a watched run. run: the run's ID. on_notice: called once if the file cannot be shown.

    active_ns: Unix time of its last step or batch, from a line without steps; None if there is no such line.
    """

    def __init__(self, path: Path, run: str, on_notice: Callable[[str], None]) -> None:
        self._path, self._run, self._on_notice = path, run, on_notice
        self._position, self._rest = 0, b""
        self._begin: Begin | None = None
        self._attempt = 0
        self._past = Past()
        self.active_ns: int | None = None
        self._is_given_up = False

    @property
    def stall_limit_s(self) -> float:
        """How long the rank may go without a step, judged by its steps so far."""
        return 1e-9 * self._past.limit_ns()

    def newest(self) -> Newest:
        """Return what was appended since the last look: a begin, the newest step, and the times of all steps."""
        records: list[Record] = []
        steps: list[LoggedStep] = []
        for line in self._lines():
            if isinstance(line, Begin):
                if line.version != VERSION:
                    self._give_up(f"version {line.version} is not {VERSION}, which this program reads")
                    break
                self._begin, self._attempt = line, self._attempt + 1
                records = [self._opened(line)]
            elif isinstance(line, Steps) and self._begin is not None and _is_whole(line):
                steps += self._logged(line, self._begin)
                self._past.take(line.step_ns)
                opened = [record for record in records if isinstance(record, Opened)]
                records = [*opened, self._reading(line, self._begin)]
            elif isinstance(line, Active) and self._begin is not None and 0 <= line.monotonic_ns < MOST_NS:
                self.active_ns = _unix_ns(line.monotonic_ns, self._begin)
            elif isinstance(line, Still) and 0 <= line.still_ns < MOST_NS and 0 <= line.unix_s < MOST_NS / 1e9:
                self.active_ns = round(1e9 * line.unix_s) - line.still_ns
        return Newest(records=records, steps=steps, is_anew=False)

    def _lines(self) -> Iterator[Line]:
        if self._is_given_up:
            return
        try:
            with open_to_read(self._path) as file:
                if file.seek(0, os.SEEK_END) < self._position:
                    self._give_up("it became shorter")
                    return
                file.seek(self._position)
                data = file.read(_MOST_AT_ONCE)
        except FileNotFoundError:
            return
        except OSError as error:
            self._give_up(error.strerror or str(error))
            return
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._give_up(f"a line is longer than {LONGEST_LINE >> 20} MiB")
        for line in lines:
            try:
                yield _DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # The run's summary reports what was left out.

    def _give_up(self, reason: str) -> None:
        self._is_given_up = True
        self._on_notice(f"a log is not shown: {self._path}: {reason}")

    def _opened(self, begin: Begin) -> Opened:
        uuid = None if begin.device_uuid is None else begin.device_uuid.removeprefix("GPU-").removeprefix("MIG-")
        return Opened(
            run=self._run,
            trial=self._attempt - 1,
            rank=begin.rank,
            time_ns=round(1e9 * begin.unix_s),
            pid=begin.pid or 0,
            host=begin.host,
            gpu_uuid=uuid,
        )

    def _reading(self, line: Steps, begin: Begin) -> Reading:
        """Return the newest step of a batch as a reading like those of our ranks."""
        last = len(line.end_ns) - 1
        step_s = _last(line.device_ns, 1e-9) or _last(line.step_ns, 1e-9)
        is_gpu = begin.device.startswith("cuda")
        samples: list[Sample] = []
        if step_s:
            samples.append(rank_metrics.STEP_SECONDS.at(step_s))
            if (tokens := _last(line.tokens, 1.0)) is not None:
                samples.append(rank_metrics.TOKENS_PER_SECOND.at(tokens / step_s))
        # Without a batch from a DataLoader of torch, the wait for data is unknown, not 0.
        data_ns = line.data_ns if any(line.data_ns or ()) else None
        for phase in PHASES:
            time_s = _last(data_ns if phase == "data" else getattr(line, f"{phase}_ns"), 1e-9)
            if time_s is not None and not is_gpu:  # On a GPU the host's times are not the device's.
                samples.append(rank_metrics.PHASE_SECONDS.at(time_s, phase=phase))
        if is_gpu and (wait_s := _last(data_ns, 1e-9)) is not None:
            samples.append(rank_metrics.DATA_WAIT_SECONDS.at(wait_s))
        if (own_s := _last(line.own_ns, 1e-9)) is not None:
            samples.append(rank_metrics.OBSERVER_SECONDS.at(own_s))
        if line.rss_bytes is not None:
            samples.append(rank_metrics.RESIDENT_BYTES.at(line.rss_bytes))
        if line.peak_bytes is not None:
            samples.append(rank_metrics.PEAK_BYTES.at(line.peak_bytes))
        if line.reserved_bytes is not None:
            samples.append(rank_metrics.RESERVED_BYTES.at(line.reserved_bytes))
        return Reading(
            trial=self._attempt - 1,
            time_ns=_unix_ns(line.end_ns[last], begin),
            mark="measured",
            step=line.first + last,
            samples=samples,
        )

    def _logged(self, line: Steps, begin: Begin) -> Iterator[LoggedStep]:
        times = line.step_ns if line.device_ns is None else line.device_ns
        for place, end_ns in enumerate(line.end_ns):
            value = times[place]
            yield LoggedStep(
                mark="measured",
                trial=self._attempt - 1,
                step=line.first + place,
                time_ns=_unix_ns(end_ns, begin),
                step_s=None if value is None or value <= 0 else 1e-9 * value,
            )


def watched_host_of(path: Path) -> str | None:
    """Return the host on which a rank's file was begun; None if its first line is missing or not a begin line."""
    try:
        with open_to_read(path) as file:
            return msgspec.json.decode(file.readline(LONGEST_LINE), type=Begin).host
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_whole(line: Steps) -> bool:
    """Whether each list of a batch has an entry for each step, and no time is negative or impossibly large."""
    columns = (line.step_ns, line.device_ns, *(getattr(line, f"{name}_ns") for name in (*PHASES, "own")), line.tokens)
    known = [column for column in columns if column is not None]
    return bool(line.end_ns) and all(
        len(column) == len(line.end_ns) and all(value is None or 0 <= value < MOST_NS for value in column)
        for column in (*known, line.end_ns)
    )


def _last(column: Sequence[float | None] | None, scale: float) -> float | None:
    return None if column is None or column[-1] is None else scale * column[-1]


def _unix_ns(end_ns: int, begin: Begin) -> int:
    """Return a time of the rank's monotonic clock as Unix time; the begin line has both clocks."""
    return round(1e9 * begin.unix_s) + end_ns - begin.monotonic_ns
