"""Find runs on disk that the history lacks because their runner died, or because the folder or the history is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.errors import InfrastructureFailed, Misuse
from bench.session.keep_watched import add_watched
from bench.store import run_dir
from bench.store.active_runs import ended_folders, run_folders
from bench.store.history import History
from bench.store.summary import Summary
from collectors.files import in_words, is_open_to_others, is_ours


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRuns:
    """What a search through a folder of runs added to the history.

    problems: a line for each folder left out. moved: new folders of runs whose old folder no longer exists.
    others: the number of other users' runs that were left out.
    """

    runs: tuple[Summary, ...]
    problems: tuple[str, ...]
    moved: tuple[Path, ...]
    others: int = 0

    def notices(self) -> tuple[str, ...]:
        """Return messages for the user, one line each."""
        moved = len(self.moved)
        words = "1 run was" if moved == 1 else f"{moved} runs were"
        return (*self.problems, *((f"{words} found in another folder",) if moved else ()))


def new_runs(
    folder: Path,
    stored_folders: Mapping[str, str],
    store: str | None,
    *,
    of_every_store: bool = False,
    of_all_users: bool = False,
) -> RecoveredRuns:
    """Return what `recover_runs` would change, without writing. stored_folders: of the history's runs, by id."""
    summaries: list[Summary] = []
    problems: list[str] = []
    moved: list[Path] = []
    for run_folder in ended_folders(folder, of_all_users=of_all_users):
        stored = stored_folders.get(run_folder.name)
        if stored is not None:
            with _noting(run_folder, problems):
                new_folder = run_dir.found_again(run_folder.name, stored, folder)
                moved += [] if new_folder is None else [new_folder]
            continue
        with _noting(run_folder, problems):
            if not of_all_users and is_open_to_others(run_folder.stat()):
                raise Misuse(f"other users can write to it; run `chmod -R go-w {run_folder}` if its files are yours")
            file = run_dir.case_file(run_folder)
            if not of_every_store and file.store != run_dir.store_name(store):
                continue
            if file.run != run_folder.name:
                raise Misuse(f"it is a copy of run {file.run}; `observatory show {run_folder}` shows it")
            summaries.append(run_dir.load(run_folder))
    other_users_runs = 0 if of_all_users else sum(not is_ours(path) for path in run_folders(folder, of_all_users=True))
    return RecoveredRuns(runs=tuple(summaries), problems=tuple(problems), moved=tuple(moved), others=other_users_runs)


def recover_runs(
    folder: Path,
    history: History,
    store: str | None,
    *,
    of_every_store: bool = False,
    of_all_users: bool = False,
) -> RecoveredRuns:
    """Add runs that are missing from the history because their runner died, or the folder or the history is new.

    A run that is already in the history is never replaced; only the new path of a moved folder is recorded. Files are
    written only in the run's own folder, and never in another user's.

    store: the history's URL as runs recorded it; runs of another store are skipped.
    of_every_store: include runs of other stores. of_all_users: include runs of other users, on explicit request only:
        whoever can write to the folder can put a made-up run there.
    """
    new = new_runs(folder, history.folders(), store, of_every_store=of_every_store, of_all_users=of_all_users)
    added: list[Summary] = []
    problems = list(new.problems)
    for moved in new.moved:
        history.move(moved.name, str(moved))
    for summary in new.runs:
        run_folder = Path(summary.folder)
        with _noting(run_folder, problems):
            if is_ours(run_folder) and not (run_folder / "summary.json").exists():
                run_dir.save(summary)
            if summary.watched is not None:
                add_watched(summary, history)
            else:
                history.add(summary, run_dir.machine_of(run_folder))
            added.append(summary)
    return RecoveredRuns(runs=tuple(added), problems=tuple(problems), moved=new.moved, others=new.others)


@contextmanager
def _noting(run_folder: Path, problems: list[str]) -> Iterator[None]:
    """On an error, leave the run's folder out and add a line with the reason."""
    left_out = f"{run_folder} is left out of the history"
    try:
        yield
    except (Misuse, InfrastructureFailed) as error:
        problems.append(f"{left_out}: {error}")
    except Exception as error:  # noqa: BLE001  # A broken folder must not make the others unreachable.
        problems.append(f"{left_out}: its files do not fit together ({in_words(error)})")
