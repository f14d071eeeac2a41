"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from bench.store.files import RUNS_VARIABLE, STORE_VARIABLE
from tests.project.ci.second_run import keep_exit_code
from tests.support.markers import GPUS, usable_gpus, why_skipped
from tests.support.nvml.library import build

if TYPE_CHECKING:
    from tests.support.ranks import OnRanks, Result

pytest_plugins = ["tests.project.ci.cpu_seconds"]

# Prometheus, Alertmanager and promtool use a fifth less CPU if they seldom collect garbage.
os.environ.setdefault("GOGC", "400")

settings.register_profile("any machine", deadline=None)  # A slow example on a busy machine is not a failure.
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for a real Grafana, which cannot be installed from a package index."""
    parser.addoption(
        "--grafana-url",
        metavar="URL",
        help="a Grafana to try things out, with an Admin's token in GRAFANA_TOKEN: tests overwrite dashboards there",
    )


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put all temporary files into one folder, so that those of killed processes are also removed."""
    tmp_path_factory.getbasetemp()  # pytest's own folders stay where people look for them.
    before = tempfile.tempdir
    folder = tempfile.mkdtemp(prefix="observatory-")
    Path(folder).chmod(0o711)  # Servers that run as other users have folders in it.
    # After multiprocessing's own exit handler (priority -100), which removes its own files there.
    Finalize(None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=-200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        tempfile.tempdir = folder
        yield
    # mutmut runs several sessions in one process: folder within folder, the paths of sockets would become too long.
    tempfile.tempdir = before


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """Handle Ctrl-C: a shell makes its background jobs ignore it, and all processes of the tests would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _umask_of_the_tests() -> Iterator[None]:
    """Restore the umask, which `observatory` changes in its process to keep its files private."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """An empty folder with a name short enough for a socket's path, which may have at most 107 letters."""
    with tempfile.TemporaryDirectory(prefix="") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRanks]:
    """See `OnRanks`: all calls of a module use the same ranks."""
    from tests.support.ranks import KeptRanks  # Only tests of ranks load torch.

    with closing(KeptRanks(tmp_path_factory.mktemp("ranks"))) as ranks:
        yield ranks.run


@pytest.fixture(scope="session", autouse=True)
def _no_history_of_the_users() -> None:
    """Remove the variables with which the user may have named their own runs."""
    for name in (RUNS_VARIABLE, STORE_VARIABLE):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the newest driver's fake NVML; `tests.support.nvml` has scenes for it."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def on_fresh_ranks(tmp_path_factory: pytest.TempPathFactory) -> OnRanks:
    """See `OnRanks`: each call uses new ranks, for state that a process has only once."""
    from tests.support.ranks import run_on_ranks  # Only tests of ranks load torch.

    folder = tmp_path_factory.mktemp("fresh-ranks")
    numbers = count()

    def run(ranks: int, function: Callable[..., Result], *arguments: object) -> list[Result]:
        return run_on_ranks(ranks, function, *arguments, store=folder / f"store{next(numbers)}")

    return run


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Store the exit code, for a second run of failed tests."""
    keep_exit_code(session.config, exitstatus)


def pytest_collection_finish() -> None:
    """Exempt the collected tests and their modules, which stay, from garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that need more GPUs than this machine has, with the reason; a rehearsal of GPU checks needs none."""
    for item in items:
        markers = [marker.name for marker in item.iter_markers()]
        if not GPUS.keys().isdisjoint(markers):
            gpus = max(GPUS.values()) if config.getoption("--rehearse", False) else usable_gpus()
            reason = why_skipped(markers, gpus)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
