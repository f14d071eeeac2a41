"""What becomes of a test whose server is not installed."""

from __future__ import annotations

import pytest

from tests.support.servers import absent_server


def test_an_absent_server_skips_on_a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Prometheus"):
        absent_server("no Prometheus")


def test_an_absent_server_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Prometheus; CI installs it"):
        absent_server("no Prometheus")
