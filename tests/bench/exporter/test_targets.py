"""Several nodes keep one list of targets, which is whole at every moment and forgets those who are gone."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench.errors import InfrastructureFailed, Misuse
from bench.exporter.service_discovery import Targets


class Notices(list[str]):
    """Hears and keeps."""

    def __call__(self, text: str) -> None:
        self.append(text)


def _targets(path: Path, notices: Notices | None = None, *, look_s: float = 0.0) -> Targets:
    """As one node has it; it looks at the pages of the others whenever it gives a sign of life."""
    return Targets(path, stale_s=100.0, look_s=look_s, on_notice=Notices() if notices is None else notices)


def _groups(path: Path) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = json.loads(path.read_text())
    return groups


def _listed(path: Path) -> dict[str, dict[str, str]]:
    """Labels by target."""
    return {target: group.get("labels", {}) for group in _groups(path) for target in group["targets"]}


def _age(path: Path, address: str, age_s: float) -> None:
    """Let the node's last sign of life be that old."""
    at = time.time() - age_s
    os.utime(path.with_name(f"{path.name}.nodes") / f"{address.replace(':', '%3A')}.json", (at, at))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "targets.json"


def test_a_target_stands_there_with_its_labels_from_when_it_is_added_until_it_is_removed(path: Path) -> None:
    targets = _targets(path)
    targets.add("a:9464", {"__scheme__": "https"})
    assert _listed(path)["a:9464"]["__scheme__"] == "https"
    targets.remove("a:9464")
    assert _groups(path) == []


def test_changed_labels_replace_the_old_ones(path: Path) -> None:
    targets = _targets(path)
    for rack in ("1", "2"):
        targets.add("a:9464", {"rack": rack})
    assert [group["labels"]["rack"] for group in _groups(path)] == ["2"]


def test_nodes_at_the_same_time_lose_nobody(path: Path) -> None:
    addresses = [f"node{number}:9464" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda address: _targets(path).add(address, {}), addresses))
        assert sorted(_listed(path)) == sorted(addresses)
        list(pool.map(lambda address: _targets(path).remove(address), addresses[::2]))
    assert sorted(_listed(path)) == sorted(addresses[1::2])


def test_the_list_is_whole_whenever_it_is_read(path: Path) -> None:
    first = _targets(path)
    first.add("first:1", {})
    over = threading.Event()

    def come_and_go(number: int) -> None:
        other = _targets(path)
        while not over.is_set():
            other.add(f"other{number}:1", {"filling": "x" * 20_000})
            other.remove(f"other{number}:1")

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            assert "first:1" in _listed(path)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_node_that_is_silent_for_long_is_taken_out_by_another(path: Path) -> None:
    targets = _targets(path)
    for address in ("dead:1", "quiet:1", "alive:1"):
        targets.add(address, {})
    _age(path, "dead:1", 101)
    _age(path, "quiet:1", 50)
    targets.add("alive:1", {})
    assert sorted(_listed(path)) == ["alive:1", "quiet:1"]


def test_a_node_that_was_taken_for_dead_comes_back_with_its_next_sign_of_life(path: Path) -> None:
    one, other = _targets(path), _targets(path)
    one.add("one:1", {})
    other.add("other:1", {})
    _age(path, "one:1", 101)
    other.add("other:1", {})
    assert sorted(_listed(path)) == ["other:1"]
    one.add("one:1", {})
    assert sorted(_listed(path)) == ["one:1", "other:1"]


def test_a_list_that_somebody_deleted_comes_back_with_the_next_sign_of_life(path: Path) -> None:
    targets = _targets(path, look_s=1000.0)
    for address in ("a:1", "b:1"):
        targets.add(address, {})
    path.unlink()
    targets.add("a:1", {})
    assert sorted(_listed(path)) == ["a:1", "b:1"]


def test_a_sign_of_life_touches_neither_the_list_nor_the_pages_of_others(path: Path) -> None:
    targets = _targets(path, look_s=1000.0)
    for address in ("a:1", "b:1"):
        targets.add(address, {})
    _age(path, "b:1", 500)
    before = path.stat()
    targets.add("a:1", {})
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(_listed(path)) == ["a:1", "b:1"]


def test_targets_of_somebody_else_stay(path: Path) -> None:
    others = [{"targets": ["x:1", "y:1"], "labels": {"env": "lab"}}, {"targets": ["z:1"]}]
    path.write_text(json.dumps(others))
    targets = _targets(path)
    targets.add("a:1", {})
    assert sorted(_listed(path)) == ["a:1", "x:1", "y:1", "z:1"]
    targets.remove("a:1")
    assert _groups(path) == others


@pytest.mark.parametrize("text", ["global: {}\n", '{"targets": []}', '["a:1"]', ""])
def test_a_file_that_is_no_list_of_targets_is_left_as_it_is(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(Misuse, match=r"targets\.json: holds no list of targets, and is left as it is; name another"):
        _targets(path).add("a:1", {})
    assert path.read_text() == text


def test_a_page_that_cannot_be_read_is_said_and_left_out(path: Path) -> None:
    notices = Notices()
    targets = _targets(path, notices)
    targets.add("a:1", {})
    (path.with_name("targets.json.nodes") / "broken.json").write_text("{")
    targets.add("b:1", {})
    assert sorted(_listed(path)) == ["a:1", "b:1"]
    assert [notice.split(": ")[1] for notice in notices] == [f"cannot be read, and is left out of {path}; delete it"]


def test_prometheus_which_is_another_user_may_read_the_list(path: Path) -> None:
    mask = os.umask(0o077)
    try:
        _targets(path).add("a:1", {})
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o644


def test_nothing_that_looks_like_a_list_lies_beside_it(path: Path) -> None:
    targets = _targets(path)
    targets.add("a:1", {})
    assert sorted(one.name for one in path.parent.iterdir()) == ["targets.json", "targets.json.nodes"]
    assert sorted(one.name for one in path.with_name("targets.json.nodes").iterdir()) == [
        "a%3A1.json",
        "lock",
        "looked",
    ]


def test_a_lock_that_another_never_lets_go_is_said_and_done_without(path: Path) -> None:
    notices = Notices()
    targets = Targets(path, lock_wait_s=0.1, on_notice=notices)
    targets.add("a:1", {})
    with (path.with_name("targets.json.nodes") / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        targets.add("b:1", {})
    assert sorted(_listed(path)) == ["a:1", "b:1"]
    (notice,) = notices
    assert re.search(r"targets\.json: .*process.* has held its lock for 0\.1 s; going on without it", notice)


def test_removing_where_nothing_was_added_makes_nothing(path: Path) -> None:
    _targets(path).remove("a:1")
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("address", ["node", "http://node:1/metrics", "node:1/metrics"])
def test_what_is_no_address_is_refused(path: Path, address: str) -> None:
    with pytest.raises(Misuse, match="is no target; it may be HOST:PORT"):
        _targets(path).add(address, {})


def test_a_name_that_prometheus_would_not_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"targets\.txt: the list of targets is JSON; name a file that ends in \.json"):
        _targets(tmp_path / "targets.txt")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailed, match=r"absent.*No such file or directory; name a file whose folder"):
        _targets(tmp_path / "absent" / "targets.json").add("a:1", {})
