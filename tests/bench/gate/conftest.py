"""An empty history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.store.history import History


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """In SQLite, open."""
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as history:
        yield history
