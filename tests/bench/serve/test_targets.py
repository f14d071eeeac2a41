"""A node has a file of targets of its own as long as it serves, and files of nodes that are gone go."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench.errors import InfrastructureFailed, Misuse
from bench.serve.service_discovery import Target, listed, make_targets_folder, published_address
from tests.collectors.knocking import Notices
from tests.waiting import wait_until

STALE_S = 100.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "targets"
    make_targets_folder(folder)
    return folder


def _target(folder: Path, address: str, **labels: str) -> Target:
    return Target(folder, address, labels, stale_s=STALE_S)


def _listed(folder: Path) -> dict[str, dict[str, str]]:
    """Labels by target, as Prometheus reads them."""
    groups: list[dict[str, Any]] = [group for file in folder.glob("*.json") for group in json.loads(file.read_text())]
    return {target: group.get("labels", {}) for group in groups for target in group["targets"]}


def _age(folder: Path, address: str, age_s: float) -> None:
    """Let the node's last sign of life be that old."""
    at = time.time() - age_s
    os.utime(folder / f"{address.replace(':', '%3A')}.json", (at, at))


def test_a_target_stands_there_with_its_labels_from_when_it_is_shown_until_it_is_removed(folder: Path) -> None:
    target = _target(folder, "a:9464", __scheme__="https")
    target.show()
    assert _listed(folder)["a:9464"]["__scheme__"] == "https"
    target.remove()
    assert list(folder.iterdir()) == []
    target.remove()


def test_changed_labels_replace_the_old_ones(folder: Path) -> None:
    for rack in ("1", "2"):
        _target(folder, "a:9464", rack=rack).show()
    assert _listed(folder)["a:9464"]["rack"] == "2"


def test_nodes_at_the_same_time_lose_nobody(folder: Path) -> None:
    targets = [_target(folder, f"node{number}:9464") for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Target.show, targets))
        assert len(_listed(folder)) == 24
        list(pool.map(Target.remove, targets[::2]))
    assert sorted(_listed(folder)) == sorted(f"node{number}:9464" for number in range(1, 24, 2))


def test_a_file_is_whole_whenever_it_is_read(folder: Path) -> None:
    over = threading.Event()

    def change() -> None:
        number = 0
        while not over.is_set():
            number += 1
            _target(folder, "a:1", number=str(number), filling="x" * 20_000).show()

    _target(folder, "a:1").show()
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            assert list(_listed(folder)) == ["a:1"]
    finally:
        over.set()
        thread.join()


def test_a_sign_of_life_touches_the_file_and_replaces_nothing(folder: Path) -> None:
    target = _target(folder, "a:1")
    target.show()
    (file,) = folder.iterdir()
    inode = file.stat().st_ino
    _age(folder, "a:1", 50)
    target.show()
    assert (file.stat().st_ino, time.time() - file.stat().st_mtime < 40) == (inode, True)


def test_a_node_that_is_silent_for_long_is_taken_out_by_another_that_begins(folder: Path) -> None:
    for address in ("dead:1", "quiet:1"):
        _target(folder, address).show()
    _age(folder, "dead:1", STALE_S + 60)
    _age(folder, "quiet:1", STALE_S / 2)
    _target(folder, "alive:1").show()
    assert sorted(_listed(folder)) == ["alive:1", "quiet:1"]


def test_a_node_that_goes_on_takes_out_one_that_fell_silent_meanwhile(folder: Path) -> None:
    alive = Target(folder, "alive:1", {}, stale_s=0.2)
    alive.show()
    _target(folder, "dead:1").show()
    _age(folder, "dead:1", 60)

    def is_alone() -> bool:
        alive.show()
        return sorted(_listed(folder)) == ["alive:1"]

    wait_until(is_alone)


def test_a_node_that_was_taken_for_dead_comes_back_with_its_next_sign_of_life(folder: Path) -> None:
    target = _target(folder, "a:1")
    target.show()
    _age(folder, "a:1", STALE_S + 60)
    _target(folder, "b:1").show()
    assert sorted(_listed(folder)) == ["b:1"]
    target.show()
    assert sorted(_listed(folder)) == ["a:1", "b:1"]


@pytest.mark.parametrize("text", ['[{"targets": ["x:1"]}]', "[]", "{}", '{"targets": []}', '["a:1"]', "", "[" * 9999])
def test_what_no_node_wrote_stays_however_old_it_is(folder: Path, text: str) -> None:
    theirs = folder / "theirs.json"
    theirs.write_text(text)
    os.utime(theirs, (1, 1))
    (folder / "link.json").symlink_to(theirs)
    _target(folder, "a:1").show()
    assert theirs.read_text() == text
    assert (folder / "link.json").is_symlink()


def test_a_file_of_somebody_else_with_the_nodes_name_is_left_as_it_is(folder: Path) -> None:
    theirs = folder / "a%3A1.json"
    theirs.write_text('[{"targets": ["x:1"]}]')
    with pytest.raises(Misuse, match="holds somebody else's targets and is left unchanged; name another folder"):
        _target(folder, "a:1").show()
    assert theirs.read_text() == '[{"targets": ["x:1"]}]'


def test_a_link_with_the_nodes_name_is_not_followed(folder: Path, tmp_path: Path) -> None:
    aim = tmp_path / "aim"
    (folder / "a%3A1.json").symlink_to(aim)
    with pytest.raises(InfrastructureFailed, match="is a link, but must be a file; name a folder"):
        _target(folder, "a:1").show()
    assert not aim.exists()


def test_no_address_leads_out_of_the_folder_or_shares_a_file_with_another(folder: Path) -> None:
    addresses = ["../a:1", "a/b:1", "a%2Fb:1", "[fe80::1]:1", "[fe80:1]:1", ".:1", "a_b:1", "a%3Ab:1"]
    for address in addresses:
        _target(folder, address).show()
    assert sorted(_listed(folder)) == sorted(addresses)
    assert sorted(folder.parent.iterdir()) == [folder]


def test_prometheus_which_is_another_user_may_read_the_folder_and_its_files(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        make_targets_folder(tmp_path / "targets")
        _target(tmp_path / "targets", "a:1").show()
    finally:
        os.umask(mask)
    (file,) = (tmp_path / "targets").iterdir()
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o755, 0o644)


def test_a_folder_that_is_there_stays_as_open_as_it_is(folder: Path) -> None:
    folder.chmod(0o1777)
    make_targets_folder(folder)
    assert folder.stat().st_mode & 0o7777 == 0o1777


def test_the_name_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"nodes\.json: name a folder; each node writes a file of its own into it"):
        make_targets_folder(tmp_path / "nodes.json")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailed, match=r"absent.*No such file or directory; name a folder that this user"):
        make_targets_folder(tmp_path / "absent" / "targets")


def test_the_node_is_listed_as_long_as_one_is_inside(folder: Path) -> None:
    notices = Notices()
    with listed(_target(folder, "a:1"), on_notice=notices):
        assert list(_listed(folder)) == ["a:1"]
    assert list(folder.iterdir()) == []
    assert notices == []


def test_the_node_is_taken_out_where_the_work_inside_fails(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), listed(_target(folder, "a:1"), on_notice=Notices()):
        raise ZeroDivisionError
    assert list(folder.iterdir()) == []


def test_the_node_gives_signs_of_life(folder: Path) -> None:
    with listed(_target(folder, "a:1"), beat_s=0.01, on_notice=Notices()):
        (folder / "a%3A1.json").unlink()
        wait_until(lambda: list(_listed(folder)) == ["a:1"])


def test_trouble_on_the_way_is_said_and_passes(folder: Path) -> None:
    notices = Notices()
    file = folder / "a%3A1.json"
    with listed(_target(folder, "a:1"), beat_s=0.01, on_notice=notices):
        draft = folder / "draft"
        draft.write_text("[]")
        draft.replace(file)
        wait_until(lambda: bool(notices))
        file.unlink()
        wait_until(lambda: list(_listed(folder)) == ["a:1"])
    assert set(notices) == {f"{file}: holds somebody else's targets and is left unchanged; name another folder"}


def test_a_file_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises(InfrastructureFailed, match="No such file or directory"),
        listed(_target(tmp_path / "absent", "a:1"), on_notice=Notices()),
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
