"""Hostile command lines of `observatory predict` and `choose`."""

from __future__ import annotations

from tests.bench.hostile.line import Line

_ON = "--on h100x8"

LINES = (
    Line("predict", 2, "Missing argument 'STRATEGY'"),
    Line("predict ddp --score", 2, "--score covers all runs of the history; leave STRATEGY out"),
    Line("predict --score --tokens 15T", 2, "--score covers all runs of the history; leave --tokens out"),
    Line("predict dpp", 2, 'strategy "dpp" is unknown; did you mean "ddp"?'),
    Line("predict ''", 2, 'strategy "" is unknown'),
    Line("predict ddp x", 2, "unexpected extra argument (x)"),
    Line("predict collectives --ranks 2", 2, "collectives is a probe, which trains no model"),
    Line("predict ddp --on ''", 2, "it is empty; leave it out, or name one"),
    Line("predict ddp --on h100x8x0", 2, "it may have 1 to 4,096, for example h100x8x8"),
    Line("predict ddp --on nowhere.toml", 2, "nowhere.toml"),
    Line("predict ddp --on h100x8 --ranks 1000000", 2, "ranks is 1000000; it must be 4096 or less"),
    Line("predict ddp --ranks 1000000 --batch 1000000", 2, "ranks is 1000000; it must be 4096 or less"),
    Line("predict ddp --on h100x8 --ranks 8,8", 2, "not a list of different numbers of ranks"),
    Line("predict ddp --on h100x8 --ranks 0", 2, "ranks is 0; it must be 1 or more"),
    Line("predict fsdp --on h100x8 --tokens ''", 2, "'' is not a number of tokens"),
    Line("predict fsdp --on h100x8 --tokens -15T", 2, "'-15T' is not a number of tokens"),
    Line("predict fsdp --on h100x8 --tokens inf", 2, "'inf' is not a number of tokens"),
    Line("predict fsdp --on h100x8 --tokens 1e99T", 2, "tokens are too many; it may be 1 to 1e18"),
    Line("predict fsdp --on h100x8 --tokens 0.1", 2, "tokens are too few; it may be 1 to 1e18"),
    Line("predict fsdp --on h100x8 --nodes 2", 2, "--nodes and --ranks-per-node cannot be set with it"),
    Line("predict fsdp --on h100x8 --device cpu", 2, "device is cpu, and --on h100x8 plans for its GPUs"),
    Line("predict fsdp --on h100x8 --batch 7", 2, "batch 7 cannot be shared equally by 8 data ranks"),
    Line(
        "predict fsdp --on h100x8 --from-history",
        2,
        "the history has no run of matmul, copies or collectives on 8 x NVIDIA H100 80GB HBM3",
    ),
    Line("predict ddp --store notaurl", 2, "the store's URL cannot be read"),
    Line("predict ddp --store sqlite:///nowhere.sqlite", 4, "does not exist yet"),
    Line("choose", 2, "Missing option '--shape'"),
    Line("choose --shape ''", 2, "it is empty; name one"),
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
        "make replicas of 3 ranks, which do not divide 8 ranks; --ranks 6 or 9 would fit",
    ),
    Line(f"choose ddp fsdp --shape 8b {_ON} --batch 7", 2, "batch 7 cannot be shared equally by 8 data ranks"),
    Line(f"choose ddp --shape 8b {_ON} --batch 0", 2, "batch is 0"),
    Line(f"choose ddp --shape 8b --batch 8 {_ON} -o best.toml", 2, "-o best.toml: nothing fits, so there is no case"),
    Line(
        "choose ddp --shape tiny --dry-run",
        2,
        "nothing is predicted here: the history has no run yet; `observatory run matmul",
    ),
    Line(f"choose ddp --shape 8b {_ON} --budget 5m", 2, "--on measures nothing; leave --budget out"),
    Line(f"choose ddp --shape 8b {_ON} --steps 5 --dry-run", 2, "nothing; leave --steps and --dry-run out"),
    Line("choose ddp fsdp --shape tiny --steps 0", 2, "observatory: steps is 0; it must be 1 or more"),
    Line("choose ddp fsdp --shape tiny --budget soon", 2, "'soon' is not a time"),
    Line("choose ddp fsdp --shape tiny --budget 0s", 2, "it must be above 0"),
    Line("choose ddp fsdp --shape tiny --limit 0", 2, "limit is 0; it must be a number of seconds"),
    Line("choose ddp --shape tiny", 2, "a race needs two cases, and there is only ddp; name a second one"),
    Line("choose ddp fsdp --shape tiny --resume nothing", 2, 'suite run "nothing" is unknown'),
    Line(f"choose ddp --shape 8b {_ON} --format xml", 2, "'xml' is not one of"),
)
