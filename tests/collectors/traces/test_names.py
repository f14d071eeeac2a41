"""Events of communication are known by the names that libraries give them."""

from __future__ import annotations

import re

import pytest

from collectors.traces.event_names import RULES, STEPS, collective_of, is_communication

KERNELS = [
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
    ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "reduce_scatter"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
    ("ncclDevKernel_Reduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
    ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "broadcast"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send"),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "other"),
    ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "all_reduce"),
    ("ncclSymkDevKernel_ReduceScatter_LL_sum_f32(ncclSymkDevWorkArgs4K)", "reduce_scatter"),
    ("rcclAnything", "other"),
    ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "other"),
    ("void mscclpp::collective::allreduceNvls<float>()", "all_reduce"),
    ("hcom_allReduce__903_0", "all_reduce"),
    ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
    ("void quickreduce::allreduce_prototype_twoshot<x>()", "all_reduce"),
    ("nvshmemi_barrier_all_kernel", "barrier"),
    ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "all_to_all"),
    ("void deep_ep::internode_ll::combine<true>(void*)", "all_to_all"),
    ("void c10d::intra_node_comm::oneShotAllReduceKernel<8u, true>()", "all_reduce"),
    ("void (anonymous namespace)::multimem_all_gather_kernel<16>()", "all_gather"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>()", "all_reduce"),
    ("c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)", "barrier"),
    ("c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int, unsigned long)", "send"),
    ("c10d::symmetric_memory::wait_signal_kernel(unsigned int**, int, int, int, int, unsigned long)", "send"),
    ("Memcpy PtoP (Device -> Device)", "send"),
    ("void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "other"),
    ("ncclDevKernelDebug_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other"),
    ("void ncclDevKernelDebug_Generic<2>(ncclDevKernelArgsStorage<4096ul>)", "other"),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<x, 8>(y)", "all_reduce"),
    ("void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<0>()", "all_reduce"),
    ("void tensorrt_llm::kernels::mnnvl::oneshotAllreduceFusionKernel<8>()", "all_reduce"),
    ("void aiter::allreduce_fusion_kernel_2stage<__hip_bfloat16, 8>()", "all_reduce"),
    ("void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>()", "reduce_scatter"),
    ("void aiter::allgather_lastdim<__hip_bfloat16, 8>()", "all_gather"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_blocked<8>(int, int)", "all_reduce"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int)", "reduce_scatter"),
    ("void userbuffers_fp16_sum_inplace_gpu_rw_ag(int, int)", "all_gather"),
    ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send"),
    ("void dpsk::ep::intranode::dispatch<8>(int4*)", "all_to_all"),
    ("void dpsk::ep::internode::combine<8>(int4*)", "all_to_all"),
    ("void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs)", "all_to_all"),
    ("EpCombineInterNodeV1Kernel_bf16", "all_to_all"),
    ("void pplx::all_to_all::dispatchKernel<4>()", "all_to_all"),
    ("void a2a_kernels::a2a_combine_send_kernel<8>()", "all_to_all"),
    ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8>()", "all_to_all"),
]


@pytest.mark.parametrize(("name", "collective"), KERNELS)
def test_kernels_that_communicate_are_known_and_tell_their_collective(name: str, collective: str) -> None:
    assert is_communication(name)
    assert collective_of(name) == collective


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1>(at::native::ReduceOp<float>)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 8>()",
        "void at::native::embedding_bag_nbits_rowwise_offsets_kernel<float>()",
        "Memcpy DtoD (Device -> Device)",
        "my_nccl_free_kernel",
        "void dpsk::ep::layout::get_dispatch_layout<256>(long const*)",
        "void flash_fwd_splitkv_combine_kernel<8>()",
        "void vllm::moe::topkGatingSoftmax<8>()",
        "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*, int*, int*, int*, bool*, int, int, int)",
    ],
)
def test_kernels_that_only_sound_alike_compute(name: str) -> None:
    assert not is_communication(name)


def test_every_rule_knows_a_kernel() -> None:
    for rule in RULES:
        assert any(re.search(rule.pattern, name) for name, _ in KERNELS), rule


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("gloo:all_reduce", "all_reduce"),
        ("gloo:all_to_all", "all_to_all"),
        ("gloo:send", "send"),
        ("gloo:recv", "send"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:recv 1<-0", "send"),
        ("nccl:coalesced", "other"),
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("gather", "gather"),
        ("scatter", "scatter"),
    ],
)
def test_words_of_the_host_tell_the_collective_too(name: str, collective: str) -> None:
    assert collective_of(name) == collective


@pytest.mark.parametrize(
    ("name", "is_step"),
    [("ProfilerStep#12", True), ("ProfilerStep*", False), ("observatory step", True), ("observatory steps", False)],
)
def test_annotations_of_steps_are_known(name: str, is_step: bool) -> None:
    assert (STEPS.match(name) is not None) == is_step
