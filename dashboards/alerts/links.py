"""Alerts on links: NVLink and PCIe of a GPU, and ports of InfiniBand and RoCE."""

from __future__ import annotations

from collectors.metrics import gpu, gpu_health, host
from dashboards import promql
from dashboards.model import Alert, Group
from dashboards.promql import GPU, Match
from dashboards.thresholds import Infiniband, LinksOfGpus, Thresholds

NVLINK_RETRIES = ("crc_flit", "crc_data", "replay", "effective")
"""Kinds of errors of NVLink that sending again has mended."""
PCIE_CORRECTED = "correctable"
CONGESTION = ("port_xmit_discards", "VL15_dropped", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err")
STARVATION = ("implied_nak_seq_err", "rnr_nak_retry_err", "out_of_buffer")
"""Kinds of errors of a port that a full network or a slow receiver causes, and no sick link."""

PORT = (*promql.SCRAPE_LABELS, "device", "port")
_OF_GPU = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"
_OF_PORT = "port {{ $labels.port }} of {{ $labels.device }} at {{ $labels.instance }}"
_COUNT = '{{ $value | printf "%.0f" }}'
_PCIE_COUNT = f"{_COUNT} {{{{ with $labels.kind }}}}{{{{ . }}}} errors{{{{ else }}}}packets sent again{{{{ end }}}}"


def _nvlink(limits: LinksOfGpus) -> str:
    """Return the errors of the window by kind, where they are too many for their kind."""
    return promql.either(
        promql.at_least(
            promql.growth(gpu_health.GPU_NVLINK_ERRORS, limits.window_minutes, kind=promql.none_of(*NVLINK_RETRIES)),
            limits.nvlink_errors,
        ),
        promql.at_least(
            promql.growth(gpu_health.GPU_NVLINK_ERRORS, limits.window_minutes, kind=promql.one_of(*NVLINK_RETRIES)),
            limits.nvlink_retries,
        ),
    )


def _pcie(limits: LinksOfGpus) -> str:
    """Return the errors of the window by kind; packets that were sent again have the kind of the errors behind them."""
    errors, minutes = gpu_health.GPU_PCIE_ERRORS, limits.window_minutes
    return promql.either(
        promql.at_least(promql.growth(errors, minutes, kind=promql.none_of(PCIE_CORRECTED)), limits.pcie_errors),
        promql.at_least(promql.growth(errors, minutes, kind=PCIE_CORRECTED), limits.pcie_retries),
        promql.unless(
            promql.at_least(promql.growth(gpu_health.GPU_PCIE_RETRIES, minutes), limits.pcie_retries),
            promql.at_least(promql.growth(errors, minutes, kind=PCIE_CORRECTED), limits.pcie_retries),
            on=GPU,
        ),
    )


def _narrow(limits: LinksOfGpus) -> str:
    """Return what a PCIe link carried at its best, as a share of its most, where a rank has computed all the time.

    An idle GPU lowers its link, and one that works raises it within moments.
    """
    minutes = limits.window_minutes
    best = promql.largest(promql.peak(gpu.GPU_PCIE_LINK.alone(link="now"), minutes), by=GPU)
    most = promql.largest(promql.select(gpu.GPU_PCIE_LINK.alone(link="maximum")), by=GPU)
    busy = promql.above(promql.least(gpu.GPU_UTILIZATION, minutes), 0)
    return promql.at_work(promql.where(promql.beneath(promql.divide(best, most), limits.pcie_link_ratio), busy, on=GPU))


def down(limits: Infiniband, **chosen: str | Match) -> str:
    """Return the ports that are in another state than ACTIVE, or gone, and were ACTIVE within the last hours."""
    info = host.HOST_INFINIBAND_INFO
    seen = promql.seen(info, over_hours=limits.remembered_hours, **chosen, state="ACTIVE")
    return promql.where(
        promql.unless(promql.largest(seen, by=PORT), promql.select(info, **chosen, state="ACTIVE"), on=PORT),
        # The agent reads its host: otherwise the port went with its agent, or is not asked for.
        promql.select(host.HOST_LOAD, **chosen),
        on=promql.SCRAPE_LABELS,
    )


def rules(thresholds: Thresholds) -> Group:
    """Return the alerts on links."""
    of_gpus, ports = thresholds.links_of_gpus, thresholds.infiniband
    return Group(
        name="links",
        interval_minutes=1,
        recordings=(),
        alerts=(
            Alert(
                name="NvlinkErrors",
                expression=_nvlink(of_gpus),
                hold_minutes=0,
                severity="warning",
                component="link",
                summary=f"NVLink of {_OF_GPU}: {_COUNT} errors ({{{{ $labels.kind }}}})",
                description=(
                    f"In the last {of_gpus.window_minutes} minutes {_OF_GPU} counted {_COUNT} errors of the kind"
                    " {{ $labels.kind }} on its NVLinks. Collectives over them are slower, or fail: look whether its"
                    " peers count them, too, and drain the node if they go on."
                ),
                dashboard="one-gpu",
            ),
            Alert(
                name="PcieErrors",
                expression=_pcie(of_gpus),
                hold_minutes=0,
                severity="warning",
                component="link",
                summary=f"PCIe of {_OF_GPU}: {_PCIE_COUNT}",
                description=(
                    f"In the last {of_gpus.window_minutes} minutes the PCIe link of {_OF_GPU} counted {_PCIE_COUNT}. A"
                    " riser, a cable or the seat of the GPU is the usual cause: drain the node and reseat it if they go"
                    " on."
                ),
                dashboard="one-gpu",
            ),
            Alert(
                name="PcieLinkNarrow",
                expression=_narrow(of_gpus),
                hold_minutes=5,
                severity="warning",
                component="link",
                summary=f"PCIe of {_OF_GPU} runs at {{{{ $value | humanizePercentage }}}} of what it can",
                description=(
                    f"A rank computes on {_OF_GPU}, and in the last {of_gpus.window_minutes} minutes its PCIe link"
                    " carried"
                    " at best {{ $value | humanizePercentage }} of its most: lanes or generations are missing. Copies"
                    " to the host, and runs that use it for their traffic, are slower by as much; reseat the GPU."
                ),
                dashboard="one-gpu",
            ),
            Alert(
                name="InfinibandPortDown",
                expression=down(ports),
                hold_minutes=1,
                severity="critical",
                component="link",
                summary=f"InfiniBand {_OF_PORT} is down",
                description=(
                    f"The {_OF_PORT} was active within the last {ports.remembered_hours} hours, and is not any more."
                    " Runs over it fail or take another way, which is slower: look at the cable and the switch's port."
                ),
                since_hours=ports.remembered_hours,
                dashboard="one-host",
            ),
            Alert(
                name="InfinibandErrors",
                expression=promql.at_least(
                    promql.growth(
                        host.HOST_INFINIBAND_ERRORS,
                        ports.window_minutes,
                        kind=promql.none_of(*CONGESTION, *STARVATION),
                    ),
                    ports.errors,
                ),
                hold_minutes=0,
                severity="warning",
                component="link",
                summary=f"InfiniBand {_OF_PORT}: {_COUNT} errors ({{{{ $labels.kind }}}})",
                description=(
                    f"In the last {ports.window_minutes} minutes the {_OF_PORT} counted {_COUNT} errors of the kind"
                    " {{ $labels.kind }}. What is damaged is sent again, so all runs over it are slower: clean or"
                    " replace the cable, and look whether the switch's port counts them, too."
                ),
                dashboard="one-host",
            ),
        ),
    )
