"""From the words of a command line and the GPUs of a machine to a case, or to one line that says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from bench.case import Case
from bench.engines.cluster import Capacity
from bench.errors import Misuse
from bench.machine.device_checks import TorchBuild
from bench.machine.gpus import Gpu, Gpus, read_gpus
from bench.session.case_args import CaseArgs, NodeResources, case_of_args, check_room
from tests.bench.made.recorded_nvml import RecordedNvml

FOUR = RecordedNvml(names=("A", "B", "C", "D"))


def _gpus(visible: str | None = None, nvml: RecordedNvml = FOUR) -> Gpus:
    return read_gpus(nvml, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})


def _case(
    gpus: Gpus,
    strategy: str = "ddp",
    *,
    ranks: int | None = None,
    nodes: int = 1,
    ranks_per_node: int | None = None,
    **said: Any,
) -> Case:
    node = NodeResources(
        cores=2,
        host_bytes=1 << 40,
        gpus=gpus,
        torch=TorchBuild(version="2.13.0+cu130", cuda="13.0"),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
    )
    return case_of_args(CaseArgs(strategy=strategy, dimensions={"batch": 72, "kv_heads": 4}, **said), ranks, node)


def test_a_case_takes_the_gpus_that_can_be_used() -> None:
    case = _case(_gpus("GPU-2abc,1"))
    assert (case.device, case.backend, case.ranks) == ("cuda", "nccl", 2)


@pytest.mark.parametrize(
    ("said", "ranks", "nodes"),
    [
        ({"nodes": 2}, 8, 2),
        ({"nodes": 2, "ranks_per_node": 1}, 2, 2),
        ({"nodes": 3, "ranks": 2}, 2, 2),
        ({"nodes": 3, "ranks": 8, "ranks_per_node": 4}, 8, 2),
        ({"nodes": 3, "device": "cpu"}, 3, 3),
        ({"nodes": 3, "strategy": "single"}, 1, 1),
    ],
)
def test_ranks_are_spread_over_the_nodes(said: dict[str, Any], ranks: int, nodes: int) -> None:
    case = _case(_gpus(), **said)
    assert (case.ranks, case.nodes) == (ranks, nodes)


@pytest.mark.parametrize(
    ("strategy", "ranks", "nodes", "tensor_ranks", "said"),
    [
        ("three_d", 8, 2, 2, None),
        ("three_d", 8, 2, 4, None),
        ("three_d", 8, 4, 4, "three_d on 8 over 4 nodes: the tensor axis has 4 ranks and a node has 2, so"),
        ("three_d", 8, 3, 2, "three_d on 8 over 3 nodes: the tensor axis has 2 ranks and a node has 2 or 3, so"),
        ("tensor_parallel", 4, 1, None, None),
        ("tensor_parallel", 4, 2, None, "tensor_parallel on 4 over 2 nodes: the tensor axis has 4 ranks and a node"),
        ("ddp", 4, 2, None, None),
        ("collectives", 4, 2, None, None),
    ],
)
def test_a_tensor_axis_that_crosses_nodes_is_said(
    strategy: str, ranks: int, nodes: int, tensor_ranks: int | None, said: str | None
) -> None:
    """Ranks are spread in their order, so that 8 over 3 nodes are 0-2, 3-5 and 6-7."""
    options = () if tensor_ranks is None else (f"tensor_ranks={tensor_ranks}", "pipeline_ranks=2")
    case = _case(_gpus(), strategy, ranks=ranks, nodes=nodes, options=options, device="cpu")
    node = NodeResources(cores=64, host_bytes=1 << 40, gpus=_gpus(), torch=TorchBuild(), nodes=nodes)
    found = check_room(case, node)
    assert len(found) == (said is not None)
    assert said is None or found[0].startswith(said)


def test_more_ranks_than_the_gpus_of_all_nodes_is_refused() -> None:
    with pytest.raises(
        Misuse, match=r"ranks is 9 over 2 nodes, up to 5 per node, and NCCL needs a GPU for each rank; a node has 4"
    ):
        _case(_gpus(), ranks=9, nodes=2)


def test_more_ranks_than_fill_the_nodes_is_refused() -> None:
    with pytest.raises(Misuse, match=r"ranks is 8, but --nodes 2 with --ranks-per-node 3 allows only 6; increase one"):
        _case(_gpus(), ranks=8, nodes=2, ranks_per_node=3)


def test_the_key_of_a_case_on_one_node_is_that_of_before_there_were_nodes() -> None:
    one, two = _case(_gpus(), ranks=2), _case(_gpus(), ranks=2, nodes=2)
    assert "nodes" not in one.key()
    assert one.key() != two.key()
    assert (one.title, two.title) == ("ddp on 2", "ddp on 2 over 2 nodes")


def test_without_a_gpu_a_case_is_for_the_cpu() -> None:
    case = _case(_gpus(nvml=RecordedNvml(is_without_library=True)))
    assert (case.device, case.backend, case.ranks) == ("cpu", "gloo", 2)


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("visible", ["9", "0,9", "gpu0", "1,1", "GPU-9", "MIG-9"])
def test_a_variable_that_names_what_is_not_there_is_refused_where_gpus_may_be_meant(
    visible: str, device: str | None
) -> None:
    with pytest.raises(Misuse) as caught:
        _case(_gpus(visible), device=device)
    assert str(caught.value).startswith(f'CUDA_VISIBLE_DEVICES is "{visible}"')
    assert str(caught.value).endswith("; correct it, or use --device cpu")


@pytest.mark.parametrize("visible", ["9", "", "1,1"])
def test_a_case_on_the_cpu_is_not_bothered_by_what_hides_gpus(visible: str) -> None:
    assert _case(_gpus(visible), device="cpu").device == "cpu"


def test_gpus_hidden_on_purpose_leave_the_cpu_to_a_case_that_names_no_device() -> None:
    assert _case(_gpus("")).device == "cpu"
    with pytest.raises(Misuse, match="no GPU can be used: CUDA_VISIBLE_DEVICES is"):
        _case(_gpus(""), device="cuda")


def test_more_ranks_than_gpus_is_refused_on_nccl_with_what_hides_the_others() -> None:
    with pytest.raises(Misuse) as caught:
        _case(_gpus("2"), ranks=2)
    assert str(caught.value) == (
        "ranks is 2 and NCCL needs a GPU for each rank, but 1 can be used:"
        ' CUDA_VISIBLE_DEVICES is "2" and shows 1 of 4 GPUs;'
        " use --ranks 1, or --backend gloo, on which ranks may share a GPU unless they send messages"
    )


def test_ranks_share_a_gpu_on_gloo() -> None:
    assert _case(_gpus("2"), ranks=2, backend="gloo").ranks == 2


def test_slices_of_one_gpu_are_one_gpu_to_nccl() -> None:
    split = RecordedNvml(names=("A",), slices={0: ("MIG-a", "MIG-b")})
    assert _case(_gpus(nvml=split), "single").ranks == 1
    with pytest.raises(Misuse, match=r"1 can be used: MIG splits GPU 0.*NCCL does not join MIG instances"):
        _case(_gpus("MIG-a,MIG-b", split), ranks=2)


def _on_cluster(gpus: tuple[str, ...] | None, **said: Any) -> Case:
    node = NodeResources(
        cores=8,
        host_bytes=1 << 40,
        gpus=Gpus(gpus=tuple(Gpu(index=i, name=name, uuid="", memory_bytes=None) for i, name in enumerate(gpus or ()))),
        torch=TorchBuild(),
        nodes=2,
        cluster=Capacity(whose="a node of the partition night", asks="", gpus=gpus),
    )
    return case_of_args(CaseArgs(strategy="ddp", dimensions={"batch": 72}, **said), None, node)


def test_a_case_takes_the_gpus_that_a_cluster_tells_of() -> None:
    case = _on_cluster(("a100",) * 4)
    assert (case.device, case.ranks, case.nodes) == ("cuda", 8, 2)
    assert (_on_cluster(()).device, _on_cluster(()).ranks) == ("cpu", 2)


def test_gpus_that_a_cluster_does_not_tell_of_are_taken_where_they_are_asked_for() -> None:
    assert _on_cluster(None).device == "cpu"
    assert (_on_cluster(None, device="cuda").backend, _on_cluster(None, device="cuda").ranks) == ("nccl", 2)


def test_a_cluster_without_gpus_is_named_with_the_next_move() -> None:
    with pytest.raises(Misuse, match="a node of the partition night has no GPU; request other nodes or"):
        _on_cluster((), device="cuda")
    with pytest.raises(Misuse, match=r"but a node of the partition night has only 8 usable cores"):
        _on_cluster((), threads=9)


@pytest.mark.parametrize(
    ("said", "bind"),
    [({}, True), ({"bind": False}, False), ({"device": "cpu"}, False), ({"device": "cpu", "bind": False}, False)],
)
def test_ranks_on_gpus_are_bound_to_cores_unless_asked_otherwise_and_on_the_cpu_never(
    said: dict[str, Any], bind: bool
) -> None:
    assert _case(_gpus(), **said).bind is bind
