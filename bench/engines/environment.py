"""The environment of ranks: torch's settings as this program needs them, unless the user has set them."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

LOOPBACK = "127.0.0.1"
DUMPS = "TORCH_NCCL_DUMP_ON_TIMEOUT"
"""Environment variable: whether torch itself writes a rank's flight record when a collective on NCCL fails."""


def environment(user: Mapping[str, str], host: str = LOOPBACK) -> dict[str, str]:
    """Return the environment of the forkserver and so of every rank: torch's settings, unless the user has set them.

    NCCL's process groups read their settings when they are created, in the rank (HeartbeatMonitor's constructor in
    ProcessGroupNCCL.cpp). By default a rank that has lost a peer writes its flight record and stacks to /tmp or
    ~/.cache, while its watchdog sleeps four times 15 s; the supervisor requests the record instead, as JSON (torch 2.11
    to 2.13).

    host: the address at which other nodes' ranks reach this node; gloo uses the interface with this address.
    """
    # The Flight Recorder tells a hung rank from the ranks that wait for it, and records what traced steps sent.
    variables = {"TORCH_FR_BUFFER_SIZE": "10000"}
    if DUMPS not in user:
        variables |= {DUMPS: "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250"}
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == host for address in addresses):
            variables["GLOO_SOCKET_IFNAME"] = name  # Else gloo resolves the host's own name, which fails on laptops.
            break
    return {**variables, **user}
