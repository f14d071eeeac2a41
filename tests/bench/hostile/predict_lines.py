"""Hostile command lines of `observatory predict`."""

from __future__ import annotations

from tests.bench.hostile.line import Line

LINES = (
    Line("predict", 2, "Missing argument 'STRATEGY'"),
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
    Line("predict fsdp --on h100x8 --tokens ''", 2, "'' is no number of tokens"),
    Line("predict fsdp --on h100x8 --tokens -15T", 2, "'-15T' is no number of tokens"),
    Line("predict fsdp --on h100x8 --tokens inf", 2, "'inf' is no number of tokens"),
    Line("predict fsdp --on h100x8 --tokens 1e99T", 2, "tokens are too many; it may be 1 to 1e18"),
    Line("predict fsdp --on h100x8 --tokens 0.1", 2, "tokens are too few; it may be 1 to 1e18"),
    Line("predict fsdp --on h100x8 --nodes 2", 2, "--nodes and --ranks-per-node cannot be set with it"),
    Line("predict fsdp --on h100x8 --device cpu", 2, "device is cpu, and --on h100x8 plans for its GPUs"),
    Line("predict fsdp --on h100x8 --batch 7", 2, "batch 7 cannot be shared equally by 8 data ranks"),
    Line("predict fsdp --on h100x8 --from-history", 2, "the history has no matmul run on 8 x NVIDIA H100 80GB HBM3"),
    Line("predict ddp --store notaurl", 2, "the store's URL cannot be read"),
    Line("predict ddp --store sqlite:///nowhere.sqlite", 4, "does not exist yet"),
)
