"""A rank is found on the GPU that it named, or that its process computes on, and on no other."""

import pytest

from bench.serve.gpu_placement import Place, Placement
from collectors.metrics.gpu import GPU_INFO, GPU_INSTANCE
from collectors.metrics.metric import Sample
from collectors.nvml.queries import GpuProcess
from collectors.sample_log import Opened


def _gpu(index: int, uuid: str) -> Sample:
    return GPU_INFO.at(1, **{**dict.fromkeys(GPU_INFO.labels, "unknown"), "gpu": str(index), "uuid": uuid})


SHOWN = [_gpu(0, "GPU-a-1"), _gpu(1, "GPU-b-2"), GPU_INSTANCE.at(1, gpu="1", slice="2/0", uuid="MIG-c-3", name="3g")]
PROCESSES = {
    70: (GpuProcess(pid=70, gpu="3", uuid="GPU-d", memory_bytes=5), GpuProcess(pid=70, gpu="2", uuid="GPU-e")),
    71: tuple(GpuProcess(pid=71, gpu="1", uuid="MIG", instance=part, memory_bytes=7) for part in ("2/0", "2/0", "3/0")),
}


def _opened(pid: int = 70, host: str = "node0", gpu_uuid: str | None = None) -> Opened:
    return Opened(run="r", trial=0, rank=0, time_ns=0, pid=pid, host=host, gpu_uuid=gpu_uuid)


@pytest.mark.parametrize(
    ("opened", "places"),
    [
        pytest.param(_opened(gpu_uuid="b-2"), (Place(gpu="1"),), id="named"),
        pytest.param(_opened(gpu_uuid="c-3"), (Place(gpu="1", slice="2/0"),), id="named a part of one"),
        pytest.param(_opened(gpu_uuid="b-2", host="a-container"), (Place(gpu="1"),), id="named from a container"),
        pytest.param(_opened(gpu_uuid="z-2"), (), id="named one of another node"),
        pytest.param(_opened(pid=70), (Place(gpu="2"), Place(gpu="3", memory_bytes=5)), id="its process on two"),
        pytest.param(
            _opened(pid=71),
            (Place(gpu="1", slice="2/0", memory_bytes=14), Place(gpu="1", slice="3/0", memory_bytes=7)),
            id="its process on two parts of one",
        ),
        pytest.param(
            _opened(pid=71, gpu_uuid="c-3"),
            (Place(gpu="1", slice="2/0", memory_bytes=14),),
            id="named, and its process",
        ),
        pytest.param(_opened(pid=72), (), id="its process on none"),
        pytest.param(_opened(pid=70, host="a-container"), (), id="a process of another count"),
        pytest.param(
            _opened(pid=71, host="a-container", gpu_uuid="c-3"),
            (Place(gpu="1", slice="2/0"),),
            id="named, its process of another count",
        ),
    ],
)
def test_a_rank_is_on(opened: Opened, places: tuple[Place, ...]) -> None:
    assert Placement(lambda: SHOWN, lambda: PROCESSES, host="node0").places_of(opened) == places


def test_memory_that_is_known_in_part_is_not_told() -> None:
    processes = [GpuProcess(pid=70, gpu="0", uuid="GPU-a", memory_bytes=memory_bytes) for memory_bytes in (5, None)]
    placement = Placement(list, lambda: {70: processes}, host="node0")
    assert placement.places_of(_opened()) == (Place(gpu="0"),)


def test_a_gpu_that_is_shown_later_is_found_then_and_stays_when_it_is_lost() -> None:
    shown: list[Sample] = []
    placement = Placement(lambda: shown, dict, host="node0")
    assert placement.places_of(_opened(gpu_uuid="a-1")) == ()
    shown.extend(SHOWN)
    assert placement.places_of(_opened(gpu_uuid="a-1")) == (Place(gpu="0"),)
    shown.clear()
    assert placement.places_of(_opened(gpu_uuid="a-1")) == (Place(gpu="0"),)
