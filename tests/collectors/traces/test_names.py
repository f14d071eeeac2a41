"""Events of communication are known by the names that libraries give them."""

from __future__ import annotations

import pytest

from collectors.traces.names import collective_of


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("gloo:all_reduce", "all_reduce"),
        ("gloo:all_to_all", "all_to_all"),
        ("gloo:send", "send"),
        ("gloo:recv", "send"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_Reduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send"),
        ("void two_shot_all_reduce_kernel<float, 4>", "all_reduce"),
        ("nvshmem_barrier", "other"),
    ],
)
def test_the_collective_is_told_by_the_name(name: str, collective: str) -> None:
    assert collective_of(name) == collective
