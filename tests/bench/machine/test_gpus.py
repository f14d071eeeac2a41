"""Which GPUs this process may use, and how they reach each other, by a recorded NVML."""

from __future__ import annotations

import threading

import pytest

from bench.machine.gpus import Gpu, GpuLink, GpuMemory, HiddenGpus, Holder, read_gpus, read_memory
from tests.bench.made.recorded_nvml import RecordedNvml, RecordedProcess

FOUR = RecordedNvml(names=("A", "B", "C", "D"), near_cpus=dict.fromkeys(range(4), 0b1111))


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        (None, ("A", "B", "C", "D")),
        ("", ()),
        ("-1", ()),
        ("2", ("C",)),
        ("3,1", ("D", "B")),
        (" 0 , 2 ", ("A", "C")),
        ("1,-1,2", ("B",)),
        ("0,9,1", ("A",)),
        ("1,1", ()),
        ("GPU-2abc-0000,GPU-0abc-0000", ("C", "A")),
        ("GPU-3", ("D",)),
        ("GPU-", ()),
        ("GPU-9", ()),
        ("MIG-1234", ()),
        ("NoDevFiles", ()),
    ],
)
def test_visible_devices_are_read_as_cuda_does(variable: str | None, names: tuple[str, ...]) -> None:
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert tuple(gpu.name for gpu in read_gpus(FOUR, environment).gpus) == names


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("", 'CUDA_VISIBLE_DEVICES is "" and hides all 4 GPUs'),
        ("-1", 'CUDA_VISIBLE_DEVICES is "-1" and hides all 4 GPUs'),
        ("NoDevFiles", 'CUDA_VISIBLE_DEVICES is "NoDevFiles" and hides all 4 GPUs'),
        ("2", 'CUDA_VISIBLE_DEVICES is "2" and shows 1 of 4 GPUs'),
        ("0,", 'CUDA_VISIBLE_DEVICES is "0," and shows 1 of 4 GPUs'),
    ],
)
def test_gpus_that_were_hidden_on_purpose_are_counted_and_no_mistake(variable: str, text: str) -> None:
    assert read_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": variable}).hidden == HiddenGpus(text=text)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("0,9,1", '"9" is not a GPU here (GPUs are 0 to 3), so CUDA shows 1 of 4 GPUs'),
        ("gpu0", '"gpu0" is neither a number nor a UUID of a GPU, so CUDA shows none of 4 GPUs'),
        ("GPU-9", '"GPU-9" matches no GPU here (`nvidia-smi -L` lists them), so CUDA shows none of 4 GPUs'),
        ("GPU-", '"GPU-" matches 4 GPUs here (`nvidia-smi -L` lists them), so CUDA shows none of 4 GPUs'),
        (
            "MIG-1",
            '"MIG-1" is not a MIG instance of a GPU here (`nvidia-smi -L` lists them), so CUDA shows none of 4 GPUs',
        ),
        ("0,,1", '"" is neither a number nor a UUID of a GPU, so CUDA shows 1 of 4 GPUs'),
    ],
)
def test_a_variable_that_names_what_is_not_there_is_a_mistake_and_the_entry_is_named(variable: str, text: str) -> None:
    hidden = read_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": variable}).hidden
    assert hidden == HiddenGpus(text=f'CUDA_VISIBLE_DEVICES is "{variable}", and {text}', is_mistake=True)


def test_a_gpu_that_is_named_twice_is_a_mistake() -> None:
    hidden = read_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": "1,GPU-1abc"}).hidden
    text = 'CUDA_VISIBLE_DEVICES is "1,GPU-1abc" and names GPU 1 twice, so CUDA shows none'
    assert hidden == HiddenGpus(text=text, is_mistake=True)


def test_nothing_is_hidden_where_all_gpus_are_shown_or_none_is_there() -> None:
    for nvml, variable in ((FOUR, None), (FOUR, "3,2,1,0"), (RecordedNvml(), "0")):
        environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
        assert read_gpus(nvml, environment).hidden is None


SPLIT = RecordedNvml(names=("A", "B", "C"), slices={1: ("MIG-a", "MIG-b"), 2: ()})


@pytest.mark.parametrize(
    ("variable", "uuids"),
    [
        (None, ("MIG-a",)),
        ("0,1", ("MIG-a",)),
        ("0", ("GPU-0abc-0000",)),
        ("0,2", ("GPU-0abc-0000",)),
        ("MIG-b,MIG-a", ("MIG-b",)),
        ("2", ()),
    ],
)
def test_cuda_shows_one_slice_and_no_gpu_beside_it(variable: str | None, uuids: tuple[str, ...]) -> None:
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert tuple(gpu.uuid for gpu in read_gpus(SPLIT, environment).gpus) == uuids


def test_a_slice_is_named_with_what_cuda_leaves_out() -> None:
    found = read_gpus(SPLIT, {})
    assert (found.gpus[0].index, found.gpus[0].name, found.on_node) == (1, "B MIG 1g.5gb", 3)
    assert found.hidden is not None
    assert found.hidden.text.startswith("MIG splits GPU 1, and CUDA shows a process one MIG instance and no other GPU")
    assert "here MIG-a, the first of 2" in found.hidden.text
    assert "NCCL does not join MIG instances" in found.hidden.text


def test_a_slice_that_was_named_alone_is_what_was_asked_for() -> None:
    found = read_gpus(RecordedNvml(names=("A",), slices={0: ("MIG-a", "MIG-b")}), {"CUDA_VISIBLE_DEVICES": "MIG-b"})
    assert (found.gpus[0].uuid, found.hidden) == ("MIG-b", None)


def test_a_gpu_with_mig_on_and_no_slice_is_said_to_be_hidden() -> None:
    hidden = read_gpus(SPLIT, {"CUDA_VISIBLE_DEVICES": "0,2"}).hidden
    assert hidden is not None
    assert "GPU 2 has MIG enabled but no MIG instance, so CUDA does not show it" in hidden.text


def test_the_driver_tells_the_newest_cuda_that_it_runs() -> None:
    assert read_gpus(RecordedNvml(names=("A",), cuda_version=12020), {}).cuda_version == "12.2"


def test_memory_is_what_is_free_now_and_who_holds_the_rest() -> None:
    nvml = RecordedNvml(
        names=("A", "B"), free_bytes={1: 5}, processes={1: (RecordedProcess(77, 9), RecordedProcess(7, None))}
    )
    gpus = read_gpus(nvml, {}).gpus
    assert read_memory(gpus, nvml) == (
        GpuMemory(index=0, free_bytes=1 << 30, holders=()),
        GpuMemory(index=1, free_bytes=5, holders=(Holder(pid=77, memory_bytes=9), Holder(pid=7, memory_bytes=None))),
    )
    assert nvml.open_count == 0


def test_memory_of_a_gpu_that_does_not_tell_it_is_absent() -> None:
    nvml = RecordedNvml(names=("A",), near_cpus={0: 1}, is_without_memory=True)
    (told,) = read_memory(read_gpus(nvml, {}).gpus, nvml)
    assert (told.free_bytes, told.reason) == (None, "NVML: Not Supported")


class FakeHang(RecordedNvml):
    """A driver that does not answer until it is let go."""

    def __init__(self) -> None:
        super().__init__(names=("A",))
        self.go = threading.Event()

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's own name.
        self.go.wait(30)


def test_a_driver_that_hangs_is_waited_for_no_longer_than_told() -> None:
    nvml, said = FakeHang(), list[str]()
    try:
        found = read_gpus(nvml, {}, within_s=0.05, late_s=0.01, on_late=said.append)
        (memory,) = read_memory((Gpu(index=0, name="A", uuid="GPU-0", memory_bytes=1),), nvml, within_s=0.05)
    finally:
        nvml.go.set()
    assert (found.gpus, found.absent["gpus"]) == ((), "NVML: no answer within 0.05 s")
    assert found.failure is not None
    assert memory.reason == "NVML: no answer within 0.05 s"
    assert said == ["NVML has not answered yet; waiting at most 0.05 s"]


def test_memory_is_not_asked_for_without_gpus() -> None:
    nvml = RecordedNvml(is_without_library=True)
    assert read_memory((), nvml) == ()


def test_a_machine_without_a_driver_has_no_gpu_and_a_reason() -> None:
    found = read_gpus(RecordedNvml(is_without_library=True), {})
    assert (found.gpus, found.links, found.driver_version) == ((), (), None)
    assert found.absent["gpus"] == "NVML: NVML Shared Library Not Found"


def test_nvml_is_closed_again() -> None:
    nvml = RecordedNvml(names=("A",))
    read_gpus(nvml, {})
    assert (nvml.init_count, nvml.open_count) == (1, 0)


def test_a_gpu_has_its_index_name_identity_and_memory() -> None:
    found = read_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": "1"})
    expected = Gpu(
        index=1,
        name="B",
        uuid="GPU-1abc-0000",
        memory_bytes=2 << 30,
        power_limit_watts=700.0,
        clock_limit_hertz=1_980_000_000,
        near_cpus="0-3",
    )
    assert found.gpus == (expected,)
    assert found.driver_version == "580.82.07"


def test_memory_shared_with_the_cpu_is_absent_with_a_reason() -> None:
    found = read_gpus(RecordedNvml(names=("A",), near_cpus={0: 1}, is_without_memory=True), {})
    assert found.gpus[0].memory_bytes is None
    assert found.absent == {"gpus[0].memory_bytes": "NVML: Not Supported"}


def test_links_are_nvlink_or_the_pcie_ancestor() -> None:
    nvml = RecordedNvml(names=("A", "B", "C"), nvlinks=frozenset({(0, 1)}), levels={(0, 2): 20, (1, 2): 40})
    assert read_gpus(nvml, {}).links == (
        GpuLink(first=0, second=1, kind="nvlink"),
        GpuLink(first=0, second=2, kind="multiple"),
        GpuLink(first=1, second=2, kind="node"),
    )


def test_unknown_links_leave_the_gpus_known() -> None:
    found = read_gpus(RecordedNvml(names=("A", "B"), near_cpus={0: 1, 1: 1}, is_without_topology=True), {})
    assert len(found.gpus) == 2
    assert found.links == ()
    assert found.absent == {"links": "NVML: Not Supported"}


# The cores of a GPU's NUMA node.


def test_a_gpu_has_the_cpus_of_its_numa_node_also_beyond_64() -> None:
    nvml = RecordedNvml(names=("A", "B"), near_cpus={0: 0xFFFFFFFF | 0xFFFFFFFF << 64, 1: 0xFFFFFFFF << 32})
    assert [gpu.near_cpus for gpu in read_gpus(nvml, {}).gpus] == ["0-31,64-95", "32-63"]


def test_an_instance_has_the_cpus_of_the_gpu_that_mig_splits() -> None:
    nvml = RecordedNvml(names=("A", "B"), slices={1: ("MIG-1", "MIG-2")}, near_cpus={0: 0b1, 1: 0b10})
    (instance,) = read_gpus(nvml, {"CUDA_VISIBLE_DEVICES": "MIG-2"}).gpus
    assert (instance.index, instance.uuid, instance.near_cpus) == (1, "MIG-2", "1")


def test_cpus_that_the_driver_does_not_name_are_absent_with_a_reason() -> None:
    found = read_gpus(RecordedNvml(names=("A", "B"), near_cpus={0: 1, 1: 0}), {})
    assert [gpu.near_cpus for gpu in found.gpus] == ["0", None]
    assert found.absent == {"gpus[1].near_cpus": "NVML: a GPU that is near no CPU is implausible"}


# GPUs that a scheduler or a container withholds.


def test_a_gpu_whose_device_file_is_withheld_leaves_the_others_known() -> None:
    """Numbers count what is left, as CUDA's do; NVML's index stays that of the node."""
    nvml = RecordedNvml(names=("A", "B", "C", "D"), forbidden=frozenset({0, 2}))
    found = read_gpus(nvml, {})
    assert [(gpu.index, gpu.name) for gpu in found.gpus] == [(1, "B"), (3, "D")]
    text = "this process may not open /dev/nvidia* of 2 of 4 GPUs, which a container or a scheduler withholds"
    assert (found.on_node, found.hidden) == (4, HiddenGpus(text=text))
    assert [gpu.index for gpu in read_gpus(nvml, {"CUDA_VISIBLE_DEVICES": "1"}).gpus] == [3]


def test_gpus_that_are_all_withheld_are_absent_with_nvmls_reason() -> None:
    found = read_gpus(RecordedNvml(names=("A",), forbidden=frozenset({0})), {})
    assert (found.gpus, found.absent["gpus"]) == ((), "NVML: GPU 0 does not answer (Insufficient Permissions)")


IN_STEP = {"SLURMD_NODENAME": "node2", "SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "2,3", "SLURM_JOB_GPUS": "0,1,2,3"}
IN_SCRIPT = {"SLURMD_NODENAME": "node2", "SLURM_JOB_GPUS": "2"}


@pytest.mark.parametrize(
    ("variables", "foreign", "source"),
    [
        ({**IN_STEP, "CUDA_VISIBLE_DEVICES": "0,1"}, 'is "0,1" and shows GPU 0, 1', "GPU 2, 3 (SLURM_STEP_GPUS)"),
        ({**IN_STEP, "CUDA_VISIBLE_DEVICES": "GPU-1"}, 'is "GPU-1" and shows GPU 1', "GPU 2, 3 (SLURM_STEP_GPUS)"),
        (IN_STEP, "is not set and shows GPU 0, 1", "GPU 2, 3 (SLURM_STEP_GPUS)"),
        ({**IN_SCRIPT, "CUDA_VISIBLE_DEVICES": "2,3"}, 'is "2,3" and shows GPU 3', "GPU 2 (SLURM_JOB_GPUS)"),
    ],
)
def test_a_gpu_that_slurm_gave_to_another_job_is_a_mistake(
    variables: dict[str, str], foreign: str, source: str
) -> None:
    text = (
        f"CUDA_VISIBLE_DEVICES {foreign}, but Slurm gave this process {source}; leave the variable to Slurm, because"
        " others may use the rest"
    )
    assert read_gpus(FOUR, variables).hidden == HiddenGpus(text=text, is_mistake=True)


@pytest.mark.parametrize(
    "variables",
    [
        {**IN_STEP, "CUDA_VISIBLE_DEVICES": "2,3"},
        {**IN_STEP, "CUDA_VISIBLE_DEVICES": "3"},
        {**IN_STEP, "CUDA_VISIBLE_DEVICES": ""},
        {**IN_STEP, "SLURM_STEP_GPUS": "0:1", "CUDA_VISIBLE_DEVICES": "0"},
        {"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0"},
    ],
    ids=["as Slurm set it", "fewer", "none", "words of another form", "the shell of salloc, on another node"],
)
def test_what_slurm_gave_or_less_is_no_mistake(variables: dict[str, str]) -> None:
    hidden = read_gpus(FOUR, variables).hidden
    assert hidden is None or not hidden.is_mistake


def test_where_a_control_group_withholds_other_gpus_numbers_count_what_slurm_gave() -> None:
    nvml = RecordedNvml(names=("A", "B", "C", "D"), forbidden=frozenset({0, 1}))
    found = read_gpus(nvml, {**IN_STEP, "CUDA_VISIBLE_DEVICES": "0,1"})
    assert [gpu.index for gpu in found.gpus] == [2, 3]
    assert found.hidden is not None
    assert not found.hidden.is_mistake
