"""Empty stores of each kind: SQLite, and a PostgreSQL that is started once."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from tests.support.servers import PostgresServer, run_postgres

NOBODY = 65534
_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the whole session."""
    with run_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.stack)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that nobody has opened yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'history.sqlite'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    name = f"store{next(_numbers)}"
    url = make_url(server.url("postgres")).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.url(name)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are its user's alone."""
    with tempfile.TemporaryDirectory(prefix="observatory-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextmanager
def _as_nobody() -> Iterator[None]:
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextmanager
def _as_oneself(folder: Path) -> Iterator[None]:
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o755)


@pytest.fixture
def without_right_to_write(open_folder: Path) -> AbstractContextManager[None]:
    """Within it, `open_folder` and its files may be read only. Root, whom permissions do not bind, becomes nobody."""
    return _as_nobody() if os.geteuid() == 0 else _as_oneself(open_folder)
