"""The fixture of a check, and the failure of a check that found something off."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.gpu.programs import Programs, adopt_orphans, descendants, end_descendants
from tests.gpu.results import RUN, name_of
from tests.gpu.session import Session


@pytest.fixture
def gpu(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    """One check at work; at its end nothing that it started is left."""
    run = request.config.stash.get(RUN, None)
    folder = tmp_path if run is None else run.work_folder(name_of(request.node))
    before = descendants()
    adopt_orphans(True)
    yield Session(
        folder=folder,
        device="cuda" if run is None else run.device,
        programs=Programs(folder),
        earlier=lambda name: {} if run is None else run.values(name),
    )
    left = end_descendants(before)
    adopt_orphans(False)
    assert not left, f"processes that cannot be ended: {', '.join(str(process.pid) for process in left)}"


@pytest.fixture
def ranks(request: pytest.FixtureRequest, gpu: Session) -> int:
    """The ranks of a check; a rehearsal takes four at most, as they share the CPU's cores."""
    wanted: int = request.param
    return min(wanted, 4) if gpu.is_rehearsal else wanted


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a check that found something off."""
    result = yield
    session = pyfuncitem.funcargs.get("gpu")
    if isinstance(session, Session):
        off = [f"{row.what}: {row.seen}, expected {row.expected}" for row in session.findings if row.verdict == "off"]
        if off:
            pytest.fail("off: " + "; ".join(off), pytrace=False)
        assert session.findings, "the check found nothing"
    return result
