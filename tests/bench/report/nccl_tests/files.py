"""Files as nccl-tests writes them: its keys in its order, six decimals, words for truth values.

Source: nccl-tests, src/util.cu.
"""

from __future__ import annotations

HEAD = (
    '{"version":%d,"start_time":"2025-11-03 10:00:00","args":["%s","-b","8","-e","1M","-J","x.json"],'
    '"env":["PATH=\\/usr\\/bin"],"nccl_version":22703,"config":{"nthreads":1,"ngpus":%d,"minimum_bytes":8,'
    '"maximum_bytes":1048576,"step_factor":2,"warmup_iters":1,"iterations":20,"aggregated_iterations":1,'
    '"validation":1,"graph":0,"blocking_collectives":"false","parallel_init":"false","devices":[%s]},"results":['
)
DEVICE = (
    '{"rank":%d,"group":%d,"pid":4711,"hostname":"node-a","device":%d,"device_hex":"0000:04:00",'
    '"device_info":"NVIDIA H100 80GB HBM3"}'
)
TAIL = (
    '],"out_of_bounds":{"count":0,"okay":"true"},"average_bus_bandwidth":{"bandwidth":41.700000,"okay":"unchecked"},'
    '"errors":[""],"end_time":"2025-11-03 10:00:09"}'
)


def body(time_us: float = 20.5, algbw: float = 51.15, wrong: str = "0.000000", key: str = "time") -> str:
    """One placement of a row."""
    return f'{{"{key}":{time_us:f},"alg_bw":{algbw:f},"bus_bw":{1.75 * algbw:f},"nwrong":{wrong}}}'


def row(
    size: int = 1048576,
    dtype: str = "float",
    redop: str = "sum",
    out_of_place: str | None = None,
    in_place: str | None = None,
) -> str:
    """One size."""
    return (
        f'{{"size":{size},"count":{size // 4},"type":"{dtype}","redop":"{redop}","root":"    -1",'
        f'"out_of_place":{out_of_place or body()},"in_place":{in_place or body(21.25, 49.35)},'
        '"actual_iterations":20,"experiment_name":""}'
    )


def document(
    *rows: str,
    form: int = 1,
    program: str = ".\\/build\\/all_reduce_perf",
    gpus: int = 1,
    groups: tuple[int, ...] = (0,) * 8,
    tail: str = TAIL,
) -> bytes:
    """A whole file of a run with one process for each entry of groups."""
    devices = ",".join(DEVICE % (rank, group, rank) for rank, group in enumerate(groups))
    return (HEAD % (form, program, gpus, devices) + ",".join(rows or (row(),)) + tail).encode()
