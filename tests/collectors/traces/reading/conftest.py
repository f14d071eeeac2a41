"""Fixtures for the readers of traces."""

from __future__ import annotations

import pytest

from collectors.traces.reading.decoders import IS_BUILT
from tests.support.servers import absent_server


@pytest.fixture(scope="session")
def scanner() -> None:
    """The scanner in C, without which a test skips; in CI it fails."""
    if not IS_BUILT:
        absent_server("the scanner of traces was not built, for want of a C compiler or of Python's headers")
