"""Hostile command lines of `observatory choose`."""

from __future__ import annotations

from tests.bench.hostile.line import Line

_ON = "--on h100x8"

LINES = (
    Line("choose", 2, "Missing option '--shape'"),
    Line("choose --shape ''", 2, "it is empty; leave it out, or name one"),
    Line(f"choose --shape huge {_ON}", 2, 'shape "huge" is unknown; use one of tiny'),
    Line("choose --shape 8b --on h100x9", 2, 'machine "h100x9" is unknown; did you mean "h100x8"?'),
    Line("choose --shape 8b --on nothing.toml", 2, "nothing.toml"),
    Line(f"choose --shape 8b {_ON} --ranks 1000000", 2, "ranks is 1000000; it may be 1 to 4096"),
    Line(f"choose --shape 8b {_ON} --ranks 0", 2, "ranks is 0; it may be 1 to 4096"),
    Line(f"choose --shape 8b {_ON} --ranks 9", 2, "ranks is 9, and h100x8 has 8 GPUs; use --ranks 8 or fewer"),
    Line("choose --shape 8b --on h100x8x4096", 2, "ranks is 32768; it may be 1 to 4096"),
    Line(f"choose --shape 8b {_ON} --objective energy", 2, "no cost model predicts energy, and only a GPU's NVML"),
    Line(
        f"choose --shape 8b {_ON} --objective speed", 2, "'speed' cannot be predicted; it may be throughput or memory"
    ),
    Line(f"choose dpp --shape 8b {_ON}", 2, 'strategy "dpp" is unknown; did you mean "ddp"?'),
    Line(f"choose matmul --shape 8b {_ON}", 2, "matmul is a probe and trains no model"),
    Line(f"choose ddp --shape 8b {_ON} --option buckets=1", 2, 'ddp has no option "buckets"'),
    Line(f"choose ddp --shape 8b {_ON} --option checkpoint=half", 2, 'option checkpoint is "half"; it may be none'),
    Line(
        f"choose three_d --shape 8b {_ON} --option pipeline_ranks=3 --option tensor_ranks=1",
        2,
        "make replicas of 3 ranks, of which 8 ranks is no multiple; --ranks 6 or 9 would fit",
    ),
    Line(f"choose ddp fsdp --shape 8b {_ON} --batch 7", 2, "batch 7 cannot be shared equally by 8 data ranks"),
    Line(f"choose ddp --shape 8b {_ON} --batch 0", 2, "batch is 0"),
    Line(f"choose ddp --shape 8b --batch 8 {_ON} -o best.toml", 2, "-o best.toml: nothing fits, so there is no case"),
    Line(
        "choose ddp --shape tiny --dry-run",
        2,
        "nothing is predicted here: the history has no run yet; `observatory run matmul",
    ),
    Line(f"choose ddp --shape 8b {_ON} --budget 5m", 2, "--on measures nothing; leave --budget, --resume and"),
    Line("choose ddp fsdp --shape tiny --budget soon", 2, "'soon' is not a time"),
    Line("choose ddp fsdp --shape tiny --budget 0s", 2, "it must be above 0"),
    Line("choose ddp fsdp --shape tiny --limit 0", 2, "limit is 0; it must be a number of seconds"),
    Line("choose ddp --shape tiny", 2, "a race needs two cases, and there is only ddp; name another too"),
    Line("choose ddp fsdp --shape tiny --resume nothing", 2, 'suite run "nothing" is unknown'),
    Line(f"choose ddp --shape 8b {_ON} --format xml", 2, "'xml' is not one of"),
)
