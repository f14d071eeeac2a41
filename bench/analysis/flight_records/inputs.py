"""Finds dumps of the Flight Recorder on disk: files, folders of dumps, and folders of runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.errors import Misuse, plural
from bench.store.active_runs import name_of, run_folders
from bench.store.files import read_small
from collectors.flight_records.dumps import Dump, NotADump, rank_in_name, read_dump

MOST_BYTES = 256 << 20
"""Largest dump that is read. An entry with its stack takes about 5 kB, and torch keeps 2,000 entries by default."""
_OWN = "rank*.flight.json"
_SOMETHING_ELSE = re.compile(r"\.(?!(flight|json|pickle|pkl|bin)$)[a-z_]+$|\.(memory|trace|timeline)\.", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumps:
    """Dumps of one job, by rank. notices: a line for each skipped file of a folder."""

    dumps: tuple[Dump, ...]
    files: tuple[Path, ...]
    notices: tuple[str, ...] = ()


def read_dumps(names: Sequence[str], runs_folder: Path, *, ranks: Sequence[int] = ()) -> Dumps:
    """Read the dumps of these names: files, folders, or runs in the folder of runs: by id, or the newest by name.

    ranks: the rank of each file, in order; empty to take the ranks from the files' names.

    Raises:
        Misuse: a name is unknown, a named file or every file of a folder is not a dump, or a rank is unknown or occurs
            twice.
    """
    read: list[tuple[Path, Dump]] = []
    notices = []
    files = [file for name in names for file in _files(name, runs_folder)]
    if ranks and len(ranks) != len(files):
        order = ", ".join(path.name for path, _ in files)
        raise Misuse(f"--rank is given {len(ranks)} times for {plural(len(files), 'dump')} ({order}); give it for each")
    for place, (path, is_sure) in enumerate(files):
        rank = ranks[place] if ranks else rank_in_name(path.name)
        if rank is None:
            raise Misuse(
                f"{path}: its name has no rank, as nccl_trace_rank_3 has; give the rank of each dump with --rank"
            )
        try:
            read.append((path, read_dump(read_small(path, MOST_BYTES), rank)))
        except (NotADump, OSError) as error:
            reason = f"{path}: {error.strerror or error}" if isinstance(error, OSError) else f"{path}: {error}"
            if is_sure:
                raise Misuse(f"{reason}; name dumps of torch's Flight Recorder") from None
            notices.append(f"skipped: {reason}")
    if not read:
        raise Misuse(f"none of the {len(notices)} files is a dump of torch's Flight Recorder: {notices[0]}")
    read.sort(key=lambda file: file[1].rank)
    for (first, dump), (second, other) in pairwise(read):
        if dump.rank == other.rank:
            raise Misuse(f"{first} and {second} are both of rank {dump.rank}; name the dumps of one job, once each")
    return Dumps(dumps=tuple(dump for _, dump in read), files=tuple(path for path, _ in read), notices=tuple(notices))


def _files(name: str, runs_folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the files of a name, and whether the user named each directly as a dump."""
    path = Path(name)
    try:
        if path.name == name:
            named = [folder for folder in run_folders(runs_folder) if name_of(folder) == name]
            run = next((each for each in (runs_folder / name, *reversed(named)) if each.is_dir()), None)
            # A program or a folder often bears the name of its watched job.
            path = path if run is None or _holds_dumps(path) else run
        if not path.is_dir():
            if not path.exists():
                raise Misuse(f"{name} does not exist; name a dump (nccl_trace_rank_0), a folder of dumps or a run")
            yield path, True
            return
        files = _dumps_in(path)
    except OSError as error:
        raise Misuse(f"{error.filename or name} cannot be read: {error.strerror or error}") from None
    if not files and (path / "watch.json").is_file():
        raise Misuse(
            f"watched run {path.name} has no Flight Record: a rank writes one when its steps stop, if it uses"
            " torch.distributed"
        )
    if not files:
        raise Misuse(
            f"{path} holds no dump of the Flight Recorder; torch writes one for each rank on a timeout if"
            " TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_BUFFER_SIZE=2000 are set, to TORCH_FR_DUMP_TEMP_FILE<rank>"
        )
    yield from ((file, False) for file in files)


def _holds_dumps(path: Path) -> bool:
    """Whether a path is a dump, or a folder with files that may be dumps."""
    if path.is_dir():
        return bool(_dumps_in(path))
    try:
        read_dump(read_small(path, MOST_BYTES), rank_in_name(path.name) or 0)
    except (NotADump, Misuse, OSError):
        return False
    return True


def _dumps_in(folder: Path) -> list[Path]:
    """Return the files of a folder that may be dumps."""
    # A run stores the records of each failed trial in the trial's folder.
    own = sorted(folder.glob(_OWN)) or sorted(folder.glob(f"*/{_OWN}"))
    newest = max((file.parent for file in own), key=lambda each: each.stat().st_mtime_ns, default=folder)
    return [file for file in own if file.parent == newest] or sorted(
        file
        for file in folder.iterdir()
        if file.is_file() and rank_in_name(file.name) is not None and not _SOMETHING_ELSE.search(file.name)
    )
