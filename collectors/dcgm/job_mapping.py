"""Tells an existing dcgm-exporter which runs are on which GPU, so that its own series bear the run's id.

Knows neither NVML nor what a run is. Source: dcgm-exporter, `--hpc-job-mapping-dir`: a file is called by DCGM's number
of a GPU, which is NVML's index, or by "GPU.instance" with NVML's number of the GPU instance where MIG split it, which
older exporters pass over; each line is a job, and becomes the label `hpc_job`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from pathlib import Path

from collectors.dcgm.claims import Claim, Claims, alone_in, inherit
from collectors.dcgm.job_file import add_line, lines_of, remove_line

_FILE = re.compile(r"\d+(\.\d+)?")


class NoMapping(ValueError):
    """The folder cannot hold job files."""


class JobMapping:
    """Keeps our lines in a folder of job files, and leaves all others as they are.

    What a process of ours left that was killed is taken over, and ends with the first `show` that does not name it.
    A scheduler's script that replaces a file loses our line until the next `show`.
    Not covered: an exporter that lists the folder at the very moment at which a file goes may fail one scrape.

    Raises:
        NoMapping: the folder is not there, or may not be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reasons: dict[str, None] = {}
        try:
            with alone_in(folder):
                self._claims = Claims(folder)
                self._ours = inherit(folder, self._claims)
        except OSError as error:
            raise NoMapping(
                f"{folder}: {error.strerror}; it must be the folder of dcgm-exporter's --hpc-job-mapping-dir, which the"
                " user of this process may write"
            ) from None

    @property
    def absent(self) -> tuple[str, ...]:
        """What could not be written and why, each reason once."""
        return tuple(self._reasons)

    def show(self, runs: Mapping[str, Set[str]]) -> None:
        """Let the runs stand at the files of their GPUs, and no others of ours; to be called at each beat.

        runs: by the name of a GPU's file, see `runs_on_gpus`. What fails is tried again at the next call.

        Raises:
            ValueError: a name is no file of a GPU, or a run is not one line.
        """
        wanted = {_claim(file, run) for file, names in runs.items() for run in names}
        if not wanted and not self._ours:
            return
        missing = sorted(claim for claim in wanted if not self._stands(claim))
        ended = sorted(self._ours - wanted)
        if not missing and not ended:
            return
        try:
            with alone_in(self._folder):
                for claim in ended:
                    self._remove(claim)
                for claim in missing:
                    self._add(claim)
        except OSError as error:
            self._say(self._folder, error)

    def close(self) -> None:
        """Take all our lines away. Those that cannot be are left to the next of us."""
        self.show({})
        self._claims.close(are_ended=not self._ours)

    def _stands(self, claim: Claim) -> bool:
        path = self._folder / claim.file
        try:
            return claim.line in lines_of(path)
        except OSError as error:
            self._say(path, error)
            return True  # Who cannot read it cannot mend it.

    def _add(self, claim: Claim) -> None:
        path = self._folder / claim.file
        try:
            if claim not in self._ours:
                self._claims.add(claim)
            if add_line(path, claim.line, self._claims.draft):
                self._ours.add(claim)
        except OSError as error:
            self._say(path, error)

    def _remove(self, claim: Claim) -> None:
        path = self._folder / claim.file
        try:
            remove_line(path, claim.line, self._claims.draft)
        except OSError as error:
            self._say(path, error)
            return
        self._ours.discard(claim)
        if not self._ours:
            self._claims.forget()

    def _say(self, path: Path, error: OSError) -> None:
        self._reasons.setdefault(f"{path}: {error.strerror}; dcgm-exporter is not told of the runs there")


def _claim(file: str, run: str) -> Claim:
    if _FILE.fullmatch(file) is None:
        raise ValueError(f'"{file}" is no file of a GPU; it may be a number, or two of them as in "3.1"')
    if run.splitlines() != [run]:
        raise ValueError(f"run {run!r} is not one line, as job files have them")
    return Claim(file=file, line=run)
