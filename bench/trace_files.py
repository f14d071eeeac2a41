"""The trace files that somebody names: by file, by folder, or by run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.errors import InfrastructureFailed, Misuse
from collectors.traces.reading.own_drawings import is_own_drawing

OWN = ".timeline.npz"
ENDINGS = (OWN, ".json", ".json.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFiles:
    """Files of one side.

    unsure: those that nobody named but their folder, of which some may be no traces.
    folder, ranks: of the run that it is, and how many it had; None where the files are not told by a run.
    notices: what of a folder was not taken, a line each.
    """

    paths: tuple[Path, ...]
    unsure: frozenset[Path] = frozenset()
    folder: Path | None = None
    ranks: int | None = None
    notices: tuple[str, ...] = ()


def find_files(names: Sequence[str], runs_folder: Path, store_url: str | None) -> TraceFiles:
    """The files that these names mean. A folder means all traces in it, a run the windows of its ranks.

    Raises:
        Misuse: a name means nothing, what holds no trace, or what may not be looked into.
        InfrastructureFailed: the history could not be asked for a run.
    """
    found = [_found(name, runs_folder, store_url) for name in names]
    if len(found) == 1:
        return found[0]
    return TraceFiles(
        paths=tuple(dict.fromkeys(path for files in found for path in files.paths)),
        unsure=frozenset(path for files in found for path in files.unsure) - {Path(name) for name in names},
        notices=tuple(dict.fromkeys(line for files in found for line in files.notices)),
    )


def _found(name: str, runs_folder: Path, store_url: str | None) -> TraceFiles:
    with _refusing(name):
        files = _on_disk(name, runs_folder)
    if files is None:
        folder = _folder_in_history(name, runs_folder, store_url)
        with _refusing(str(folder)):
            files = _of_run(folder)
    return files


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Refuse what the system does not let us look into."""
    try:
        yield
    except OSError as error:
        raise Misuse(f"{error.filename or name} cannot be read: {error.strerror or error}") from None


def _on_disk(name: str, runs_folder: Path) -> TraceFiles | None:
    """What is there under this name; None where nothing is, and it may be that of a run kept elsewhere."""
    path = Path(name)
    if path.is_dir():
        return _of_run(path) if (path / "case.json").exists() else _of_folder(path)
    if path.exists():
        if _is_drawing(path):
            raise Misuse(f"{path} is a drawing of ours and no trace; name the traces that it was drawn of")
        return TraceFiles(paths=(path,))
    if name.endswith(ENDINGS) or path.name != name:
        raise Misuse(f"{name} does not exist; it may be a trace (.json, .json.gz, {OWN}), a folder of them or a run")
    if (runs_folder / name / "case.json").exists():
        return _of_run(runs_folder / name)
    return None


def _folder_in_history(run: str, runs_folder: Path, store_url: str | None) -> Path:
    from bench.run import found_again
    from bench.store.history import find_run

    try:
        summary = find_run(run, store_url)
    except Misuse as error:
        raise Misuse(f'"{run}" is no file and no folder, and {error}') from None
    except InfrastructureFailed as error:
        raise InfrastructureFailed(f'"{run}" is no file and no folder, and no run can be looked up: {error}') from None
    folder = found_again(summary.run, summary.folder, runs_folder) or Path(summary.folder)
    with _refusing(str(folder)):
        is_gone = not folder.is_dir()
    if is_gone:
        raise Misuse(
            f"{folder} is gone, and the traces of run {run} with it; name the folder that its runs were moved to with"
            " --runs, run it again, or name files that you kept"
        )
    return folder


def _of_run(folder: Path) -> TraceFiles:
    from bench.kept_windows import newest_windows
    from bench.run import case_file
    from bench.run_folders import is_running

    if is_running(folder):
        raise Misuse(f"{folder} is still running; look again when it is done")
    case = case_file(folder).case
    paths = sorted(newest_windows(folder), key=_rank_in_name)
    if not paths:
        wanted = max(1, case.trace_steps)
        raise Misuse(
            f"{folder} holds no rank<k>{OWN}: no rank of it was traced to the end of its window;"
            f" `observatory run {case.strategy} --trace-steps {wanted}` traces some"
        )
    return TraceFiles(paths=tuple(paths), folder=folder, ranks=case.ranks)


def _rank_in_name(path: Path) -> tuple[int, str]:
    found = re.match(r"rank(\d+)\.", path.name)
    return (int(found[1]) if found else 0, path.name)


def _of_folder(folder: Path) -> TraceFiles:
    named = sorted(path for path in folder.iterdir() if path.name.endswith(ENDINGS) and path.is_file())
    drawings = [path for path in named if _is_drawing(path)]
    paths = tuple(path for path in named if path not in drawings)
    if not paths:
        raise Misuse(f"{folder} holds no trace; one ends with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    return TraceFiles(
        paths=paths,
        unsure=frozenset(paths),
        notices=tuple(f"{path}: skipped: it is a drawing of ours and no trace" for path in drawings),
    )


def _is_drawing(path: Path) -> bool:
    """Whether we drew it. What can be read but once, such as a pipe, is not asked."""
    return not path.name.endswith(OWN) and path.is_file() and is_own_drawing(path)
