"""Hostile command lines of `observatory suite`."""

from __future__ import annotations

from tests.bench.hostile.line import Line

LONG = "a" * 300
MANY = "a" * 100_000
WORDS = "a b " * 25_000
_SHIPPED = "shipped suites: collectives"
_NO_TOML = "name a TOML file"
_TIME = "is not a time; use for example 90s, 45m, 2h or 1h30m"
_PLAN = "suite plan smoke"

LINES = (
    Line("suite paln", 2, "No such command 'paln'. Did you mean 'plan'?"),
    Line("suite nope", 2, "No such command 'nope'. (`observatory suite --help`)"),
    Line("suite schema x", 2, "unexpected extra argument (x)"),
    Line("suite plan", 2, "Missing argument 'NAME|FILE'"),
    Line("suite plan ''", 2, "it is empty; name one"),
    Line("suite plan smoek", 2, 'suite "smoek" is neither a file nor a shipped suite; did you mean "smoke"?'),
    Line("suite plan \x1b[31msmoke", 2, 'suite "\\x1b[31msmoke" is neither a file nor a shipped suite'),
    Line("suite plan \udcff", 2, 'suite "\\udcff" is neither a file nor a shipped suite'),
    Line(f"suite plan {LONG}", 2, "File name too long; name another file or folder"),
    Line("suite plan loop", 2, "loop: Too many levels of symbolic links; name a TOML file"),
    Line("suite plan folder", 2, f"folder: Is a directory; {_NO_TOML}"),
    Line("suite plan ./folder", 2, f"folder: Is a directory; {_NO_TOML}"),
    Line("suite plan ./missing.toml", 2, 'suite "./missing.toml" is neither a file nor a shipped suite'),
    Line("suite plan zero.json", 2, f"zero.json: Is a device; {_NO_TOML}"),
    Line("suite plan /dev/zero", 2, f"/dev/zero: Is a device; {_NO_TOML}"),
    Line("suite plan garbage.json", 2, f"garbage.json: it is not UTF-8 text; {_NO_TOML}"),
    Line("suite plan empty.json", 2, "empty.json is empty; a suite has a line schema_version = 1 and a table"),
    Line("suite plan cut.json", 2, "cut.json: line 1: Invalid statement; this is not TOML"),
    Line("suite plan nope", 2, f'suite "nope" is neither a file nor a shipped suite; {_SHIPPED}'),
    Line("suite plan nope/", 2, f'suite "nope/" is neither a file nor a shipped suite; {_SHIPPED}'),
    Line("suite plan smoke/", 2, 'suite "smoke/" is neither a file nor a shipped suite; did you mean "smoke"?'),
    Line(
        "suite plan folder/nope.toml", 2, f'suite "folder/nope.toml" is neither a file nor a shipped suite; {_SHIPPED}'
    ),
    Line("suite plan garbage.json/nope.toml", 2, f"is neither a file nor a shipped suite; {_SHIPPED}"),
    Line("suite plan ./loop", 2, f"loop: Too many levels of symbolic links; {_NO_TOML}"),
    Line("suite plan marked-suite.toml", 2, 'strategy "dpp" is unknown; did you mean "ddp"?'),
    Line("suite plan wide.toml", 2, f"wide.toml: it is not UTF-8 text; {_NO_TOML}"),
    Line("suite plan needs.toml", 2, "memory_bytes is 1e+300; it may be a number of at least 0 and at most 9,223,372"),
    Line("suite plan infinite.toml", 2, "memory_bytes is Infinity; it may be a number of at least 0 and at most 9,22"),
    Line("suite plan seed.toml", 2, "defaults.seed is a whole number beyond 64 bits; give a smaller one"),
    Line("suite plan option.toml", 2, "options.accumulate is a whole number beyond 64 bits; give"),
    Line("suite plan blank.toml", 2, 'case.ddp.baseline is " "; it may be a text that is not empty'),
    Line("suite plan weak-own.toml", 2, "[case.ddp] batch follows from the baseline's in weak scaling; set it there"),
    Line("suite plan weak.toml --set case.ddp.batch=8", 2, "[case.ddp] batch follows from the baseline's"),
    Line("suite plan weak.toml --set case.ddp.batch=[8,16]", 2, "[case.ddp] batch follows from the baseline's"),
    Line("suite plan weak.toml --set defaults.batch=[8,16]", 2, "[defaults] batch is a list; set batch in each case"),
    Line("suite plan weak.toml --set case.single.batch=[8,16]", 2, "[case.ddp] baseline of ddp[ranks=2] is single"),
    Line("suite plan weak-two.toml", 2, '[case.ddp] has scaling = "weak", so its batch follows from the baseline\'s'),
    Line("suite plan weak-list.toml --only all", 2, "[defaults] batch is a list; set batch in each case"),
    Line("suite plan margin.toml", 2, "case.ddp.gate.margin is 0; it may be a number of at least 0.005 and at most 1"),
    Line("suite plan weak.toml --set case.ddp.gate.margin=2", 2, "gate.margin is 2; it may be a number of at least"),
    Line("suite plan weak.toml --set case.ddp.gate.margn=0.1", 2, "margn"),
    Line("suite plan weak.toml --set case.ddp.gate=0.1", 2, "case.ddp.gate is 0.1; it may be"),
    Line("suite plan weak-list.toml", 2, "[defaults] batch is a list; set batch in each case"),
    Line(f"suite plan ./{MANY}", 2, "File name too long; name another file or folder"),
    Line(f"{_PLAN} --set defaults.{MANY}=1", 2, "characters) ..."),
    Line(f"{_PLAN} --set {MANY}", 2, "is not KEY=VALUE, for example defaults.trials=5"),
    Line(f"{_PLAN} --only {MANY}", 2, "--only takes extra, all"),
    Line(f"{_PLAN} --only '{WORDS}'", 2, "--only takes extra, all"),
    Line("suite plan deep.json", 2, "deep.json: lists and tables are nested more than 16 deep (at line 1)"),
    Line("suite plan deep.toml", 2, "deep.toml: lists and tables are nested more than 16 deep (at line 1); flatten"),
    Line("suite plan deep-key.toml", 2, "deep-key.toml: a key has more than 16 parts (at line 1); shorten it"),
    Line(
        "suite plan many-tables.toml",
        2,
        "many-tables.toml: it has more than 4,000 tables and dotted keys (at line 4001)",
    ),
    Line("suite plan deep-table.toml", 2, "deep-table.toml: a key has more than 16 parts (at line 1)"),
    Line("suite plan long-number.toml", 2, "long-number.toml: schema_version is a whole number beyond 64 bits"),
    Line(f"{_PLAN} --set", 2, "Option '--set' requires an argument"),
    Line(f"{_PLAN} --set trials", 2, '--set "trials" is not KEY=VALUE'),
    Line(f"{_PLAN} --set =", 2, '--set "=" is not KEY=VALUE'),
    Line(f"{_PLAN} --set =1", 2, '--set "=1" is not KEY=VALUE'),
    Line(f"{_PLAN} --set defaults.trials=many", 2, 'defaults.trials is "many"; it may be a whole number of at least 1'),
    Line(f"{_PLAN} --set defaults.trials=0", 2, "defaults.trials is 0; it may be a whole number of at least 1"),
    Line(f"{_PLAN} --set case.dpp.trials=1", 2, 'has no [case.dpp]; did you mean "ddp"?'),
    Line(
        f"{_PLAN} --set case.ddp.ranks=3", 2, "[case.ddp] batch: ddp: batch 8 cannot be shared equally by 3 data ranks"
    ),
    Line(f"{_PLAN} --set case.ddp.\x1b[31m=1", 2, 'case.ddp."\\u001b[31m"'),
    Line(f"{_PLAN} --set defaults.seed=0x{'f' * 5000}", 2, 'seed is "0xffff'),
    Line(f"{_PLAN} --only ''", 2, 'no case has the tag ""'),
    Line(f"{_PLAN} --only extr", 2, 'no case has the tag "extr"; did you mean "extra"?; --only takes extra, all'),
    Line(f"{_PLAN} --budget 0", 2, "'0' is too short; it must be above 0 and at most a year, for example 90s"),
    Line(f"{_PLAN} --budget -1h", 2, f"'-1h' {_TIME}"),
    Line(f"{_PLAN} --budget nan", 2, f"'nan' {_TIME}"),
    Line(f"{_PLAN} --budget 1e9", 2, f"'1e9' {_TIME}"),
    Line(f"{_PLAN} --format xml", 2, "'xml' is not one of 'table', 'json', 'csv'"),
    Line(f"{_PLAN} --store ''", 2, "it is empty; leave it out, or name one"),
)
