"""Hostile command lines of `observatory compare`."""

from __future__ import annotations

from tests.bench.hostile.line import Line

_TWO = "a comparison has two sides: `observatory compare A B` compares two runs, suite runs or commits"
_NO_RUN = "is unknown; the history has no run yet, `observatory run` makes one"
_AB = "compare --ab ddp --device cpu"

LINES = (
    *(
        Line(f"compare a b --margin {text}", 2, f"{text.lstrip('-').lower()} is not in the range 0<x<=1")
        for text in ("nan", "-nan", "NaN", "inf")
    ),
    Line("compare", 2, _TWO),
    Line("compare x", 2, _TWO),
    Line("compare x ''", 2, "it is empty; leave it out, or name one"),
    Line("compare x y z", 2, "unexpected extra argument (z); a comparison has two sides; `observatory choose` ranks"),
    Line("compare x y", 2, f'"x" {_NO_RUN}'),
    Line("compare \x1b[31m y", 2, f'"\\x1b[31m" {_NO_RUN}'),
    Line("compare x y --store sqlite:///garbage.sqlite", 4, "file is not a database"),
    Line("compare x y --format xml", 2, "'xml' is not one of"),
    Line("compare x y --margin 0", 2, "is not in the range 0<x<=1"),
    Line("compare x y --margin 2", 2, "is not in the range 0<x<=1"),
    Line("compare x y --ranks 2", 2, "--ranks is for measuring now; add --ab STRATEGY or --aa SUITE"),
    Line("compare x y --a bucket_mb=1", 2, "--a is for measuring now"),
    Line("compare x y --set defaults.trials=5", 2, "--set is for measuring now"),
    # --ab
    Line("compare --ab", 2, "requires an argument"),
    Line("compare --ab ''", 2, "it is empty"),
    Line("compare --ab dpp", 2, 'strategy "dpp" is unknown; did you mean "ddp"?'),
    Line("compare --ab ddp --aa smoke", 2, "--ab and --aa exclude each other"),
    Line("compare x --ab ddp", 2, "--ab measures now, and takes no A and B from the history; leave x out"),
    Line("compare --ab ddp --only x", 2, "--only is for --aa; leave it out"),
    Line(_AB, 2, "A and B are the same; give --a or --b KEY=VALUE"),
    Line(f"{_AB} --a bucket_mb=0", 2, "A and B are the same case, ddp on 2, because the settings equal the defaults"),
    Line(f"{_AB} --a buckets=1", 2, 'side A: ddp has no option "buckets"; did you mean "bucket_mb"?'),
    Line(f"{_AB} --b bucket_mb=x", 2, "side B: ddp: option bucket_mb"),
    Line(f"{_AB} --b bucket_mb", 2, 'side B: --b "bucket_mb" has no value; write it as KEY=VALUE'),
    Line(f"{_AB} --b steps=3", 2, "--b steps cannot be set for one side: both are measured alike; use --steps"),
    Line(f"{_AB} --b precision=fp7", 2, '--b precision is "fp7"; it may be fp32, bf16, fp16'),
    Line(f"{_AB} --b device=tpu", 2, '--b device is "tpu"; it may be cpu, cuda'),
    Line(f"{_AB} --b strategy=dpp", 2, 'side B: strategy "dpp" is unknown; did you mean "ddp"?'),
    Line(f"{_AB} --b strategy=matmul", 2, "A is ddp and B matmul, which measure different things"),
    Line(f"{_AB} --b shape=huge", 2, 'side B: shape "huge" is unknown; use one of tiny'),
    Line(f"{_AB} --b ranks=99999999", 2, "side B: ranks is 99999999; it must be 4096 or less"),
    Line(f"{_AB} --b bucket_mb=1 --trials 1", 2, "trials is 1; a comparison needs 2 trials or more"),
    Line(f"{_AB} --b bucket_mb=1 --limit nan", 2, "limit is nan; it must be a number of seconds"),
    Line(f"{_AB} --b bucket_mb=1 --runs /dev/null/x", 4, "no run can be written in /dev/null/x"),
    Line(f"{_AB} --b bucket_mb=1 --store notaurl", 2, "the store's URL cannot be read"),
    Line("compare --ab dpp --b ranks=3", 2, 'side A: strategy "dpp" is unknown; did you mean "ddp"?'),
    Line(f"{_AB} --checkout-a folder", 2, "folder is not a source tree of this program: bench/__init__.py is missing"),
    Line(f"{_AB} --checkout-b nothing", 2, '"nothing" is neither a folder nor a commit of this source tree'),
    Line(f"{_AB} --checkout-b=--help", 2, '"--help" is neither a folder nor a commit'),
    Line(f"{_AB} --checkout-a ''", 2, "it is empty"),
    # --aa
    Line("compare --aa ''", 2, "it is empty"),
    Line("compare --aa nothing", 2, 'suite "nothing" is neither a file nor a shipped suite'),
    Line("compare --aa smoke --ranks 2", 2, "--ranks is not for --aa: the suite defines its cases"),
    Line("compare --aa smoke --margin 0.1", 2, "--margin is not for --aa"),
    Line("compare x y --aa smoke", 2, "--aa measures now, and takes no A and B"),
    Line("compare --aa smoke --only nothing", 2, "no case has the tag"),
    Line("compare --aa smoke --set defaults.trials=1", 2, "has a single trial, which shows no noise"),
)
