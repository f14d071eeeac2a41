"""Finds active watched runs by name, id or folder, and summarises one so far."""

from __future__ import annotations

from pathlib import Path

from bench.errors import Misuse
from bench.store import run_dir
from bench.store.active_runs import has_case, is_running, is_written, name_of
from bench.store.files import read_small
from bench.store.summary import Summary
from collectors.files import is_ours, user_name


def active_summary(text: str, runs: Path) -> Summary | None:
    """Return the summary so far of the active watched run that the text names; None if there is none.

    text: the path of the run's folder, its id or the beginning of it, or the job's name, which means its newest run.

    Raises:
        Misuse: several runs' ids begin with the text, or no process of the run has reported yet.
    """
    path = Path(text)
    folder = path.absolute()
    if path.is_dir() and (_is_active(folder) or _is_orphan(folder)):
        return _summarise(folder)
    if path.is_dir() and path.name != text:
        return None
    active = [path for path in _folders(runs) if _is_active(path) or _is_orphan(path)]
    named = [path for path in active if path.name == text or name_of(path) == text]
    if named:
        return _summarise(named[-1])
    begins = [path for path in active if text and path.name.startswith(text)]
    if len(begins) > 1:
        raise Misuse(f'run "{text}" may be any of {", ".join(path.name for path in begins[:5])}; give more of its name')
    return _summarise(begins[0]) if begins else None


def _summarise(folder: Path) -> Summary:
    if not has_case(folder):
        raise Misuse(
            f"run {folder.name} is active, and no process has reported yet; look again when its first steps have ended"
        )
    return run_dir.summarise(folder.absolute(), "interrupted", None)


def running_job(name: str, runs: Path) -> Path:
    """Return the folder of the run of this id, or the newest of this name, that is watched now.

    Raises:
        Misuse: no such run is active, or it belongs to another user.
    """
    folders = _folders(runs)
    named = [path for path in folders if name in (path.name, name_of(path))]
    for run in reversed(named):
        if _is_active(run):
            return run
    foreign = [run for run in named if not is_ours(run)]
    if foreign:
        owner = user_name(foreign[-1].lstat().st_uid)
        raise Misuse(f"watched job {name} belongs to {owner}; only its owner may trace it")
    if any(map(_is_orphan, named)):
        raise Misuse(f"the watch of job {name} has died, so that nothing would join the traces of its ranks")
    if any(map(_is_watched, named)):
        raise Misuse(
            f"watched job {name} has ended; `observatory show {name}` shows it, and a window needs a running job"
        )
    active = dict.fromkeys(each for path in folders if (each := name_of(path)) is not None and _is_active(path))
    those = f"watched now: {', '.join(active)}" if active else "no job is watched now"
    raise Misuse(f"--attach {name}: there is no such job in {runs}; {those}")


def _folders(runs: Path) -> list[Path]:
    """Return the folders of runs, oldest first."""
    try:
        return sorted(path for path in runs.absolute().iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _is_active(run: Path) -> bool:
    return is_ours(run) and _is_watched(run) and is_running(run)


def _is_orphan(run: Path) -> bool:
    """Whether ranks still write to a run whose watch has died."""
    return is_ours(run) and _is_watched(run) and not is_running(run) and is_written(run)


def _is_watched(run: Path) -> bool:
    try:
        return bool(read_small(run / "watch.json", follows_link=False))
    except (OSError, Misuse):
        return False
