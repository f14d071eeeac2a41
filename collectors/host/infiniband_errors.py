"""What goes wrong on InfiniBand and RoCE ports."""

from __future__ import annotations

from collections.abc import Iterator

from collectors.catalogue import host
from collectors.host.infiniband_ports import counters, ports
from collectors.host.kernel_files import KernelFiles
from collectors.host.part import Absent, Found

_BY_FOLDER = {
    "counters": (
        "symbol_error",
        "link_error_recovery",
        "link_downed",
        "port_rcv_errors",
        "port_rcv_remote_physical_errors",
        "port_xmit_discards",
        "port_rcv_constraint_errors",
        "port_xmit_constraint_errors",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
        "VL15_dropped",
    ),
    "hw_counters": (
        "out_of_sequence",
        "packet_seq_err",
        "local_ack_timeout_err",
        "implied_nak_seq_err",
        "rnr_nak_retry_err",
        "out_of_buffer",
        "rx_icrc_encapsulated",
    ),
}
"""Of any port, and of RDMA on Mellanox's. Healthy adapters count port_rcv_switch_relay_errors, too; it is left out."""


def read(files: KernelFiles) -> Iterator[Found]:
    """Errors of each port by kind; that there is no port is said where its bytes are read."""
    for port in ports(files):
        try:
            for folder, wanted in _BY_FOLDER.items():
                for kind, count in counters(files, port, folder, wanted).items():
                    yield host.HOST_INFINIBAND_ERRORS.at(count, **port.labels, kind=kind)
        except OSError as error:
            yield Absent(f"{port}: {error.filename}: {error.strerror}; its errors are left out at times")
        except ValueError as error:
            yield Absent(f"{port}: {error}; its errors are left out")
