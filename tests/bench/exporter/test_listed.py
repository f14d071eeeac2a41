"""A node stands in the list of targets as long as it serves."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.errors import InfrastructureFailed
from bench.exporter.service_discovery import listed, published_address


class Notices(list[str]):
    """Hears and keeps."""

    def __call__(self, text: str) -> None:
        self.append(text)


def _addresses(path: Path) -> list[str]:
    return [target for group in json.loads(path.read_text()) for target in group["targets"]]


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, "it never became so"
        time.sleep(0.02)


def test_the_node_is_listed_as_long_as_one_is_inside(tmp_path: Path) -> None:
    notices = Notices()
    path = tmp_path / "targets.json"
    with listed(path, "a:1", {}, on_notice=notices):
        assert _addresses(path) == ["a:1"]
    assert _addresses(path) == []
    assert notices == []


def test_the_node_is_taken_out_where_the_work_inside_fails(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    with pytest.raises(ZeroDivisionError), listed(path, "a:1", {}, on_notice=Notices()):
        raise ZeroDivisionError
    assert _addresses(path) == []


def test_the_node_gives_signs_of_life(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    with listed(path, "a:1", {}, beat_s=0.01, on_notice=Notices()):
        path.write_text("[]")
        _wait_until(lambda: _addresses(path) == ["a:1"])


def test_trouble_on_the_way_is_said_and_passes(tmp_path: Path) -> None:
    notices = Notices()
    path = tmp_path / "targets.json"
    with listed(path, "a:1", {}, beat_s=0.01, on_notice=notices):
        draft = tmp_path / "draft"
        draft.write_text("no list")
        draft.replace(path)
        _wait_until(lambda: bool(notices))
        path.unlink()
        _wait_until(path.exists)
        assert _addresses(path) == ["a:1"]
    assert set(notices) == {f"{path}: holds no list of targets, and is left as it is; name another file"}


def test_a_list_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises(InfrastructureFailed, match="No such file or directory"),
        listed(tmp_path / "absent" / "targets.json", "a:1", {}, on_notice=Notices()),
    ):
        pass


def test_a_server_of_all_addresses_is_published_by_the_nodes_name() -> None:
    name = socket.gethostname()
    assert [published_address(host, 9464) for host in ("0.0.0.0", "::", "10.0.0.7", "node7", "fe80::1")] == [
        f"{name}:9464",
        f"{name}:9464",
        "10.0.0.7:9464",
        "node7:9464",
        "[fe80::1]:9464",
    ]
