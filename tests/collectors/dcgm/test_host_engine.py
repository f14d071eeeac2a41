"""A DCGM is told by its processes, or by where it listens, from a recorded /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.dcgm import signs_of_dcgm

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:{port} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 21021 1 0 100 0 0 10 0
"""
UNIX = """\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 19001 /run/systemd/private
0000000000000000: 00000003 00000000 00000000 0001 03 19002
0000000000000000: 00000002 00000000 00010000 0001 01 19003 {path}
"""
LISTENS, IS_CONNECTED = "0A", "01"


def _with(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_processes_are_named_with_their_numbers(tmp_path: Path) -> None:
    comms = {"1/comm": "systemd\n", "812/comm": "nv-hostengine\n", "90/comm": "dcgm-exporter\n"}
    assert signs_of_dcgm(_with(tmp_path, comms)) == (
        "dcgm-exporter runs (process 90)",
        "nv-hostengine runs (process 812)",
    )


def test_a_port_says_nothing_more_where_a_process_is_seen(tmp_path: Path) -> None:
    files = {"812/comm": "nv-hostengine\n", "net/tcp": TCP.format(port="15B3", state=LISTENS)}
    assert signs_of_dcgm(_with(tmp_path, files)) == ("nv-hostengine runs (process 812)",)


@pytest.mark.parametrize("name", ["tcp", "tcp6"])
def test_its_port_is_a_sign_where_no_process_is_seen(name: str, tmp_path: Path) -> None:
    root = _with(tmp_path, {f"net/{name}": TCP.format(port="15B3", state=LISTENS)})
    assert signs_of_dcgm(root) == ("something listens at TCP port 5555, where nv-hostengine does",)


@pytest.mark.parametrize(("port", "state"), [("15B4", LISTENS), ("15B3", IS_CONNECTED)])
def test_other_ports_and_connections_are_none(port: str, state: str, tmp_path: Path) -> None:
    assert signs_of_dcgm(_with(tmp_path, {"net/tcp": TCP.format(port=port, state=state)})) == ()


def test_its_socket_in_a_folder_is_a_sign(tmp_path: Path) -> None:
    root = _with(tmp_path, {"net/unix": UNIX.format(path="/tmp/nv-hostengine")})
    assert signs_of_dcgm(root) == ("something listens at /tmp/nv-hostengine, as nv-hostengine does",)


def test_other_sockets_are_none(tmp_path: Path) -> None:
    assert signs_of_dcgm(_with(tmp_path, {"net/unix": UNIX.format(path="/tmp/nv-hostengine.log")})) == ()


def test_a_node_without_proc_has_no_sign(tmp_path: Path) -> None:
    assert signs_of_dcgm(tmp_path) == ()
