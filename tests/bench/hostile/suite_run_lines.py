"""Hostile command lines of `observatory suite run`, `show` and `scaling`: none of them begins a suite run."""

from __future__ import annotations

from tests.bench.hostile.line import Line

_SHIPPED = "shipped are: collectives, levers, nightly, scaling, single_node, smoke"
_TIME = "is no time; it may be such as 90s, 45m, 2h or 1h30m"
_NONE = "no run of suite smoke in"
_OLD = "20261101-010203-smoke-abc123"

LINES = (
    # which suite
    Line("suite run", 2, "Missing argument 'NAME|FILE'"),
    Line("suite run ''", 2, "it is empty; leave it out, or name one"),
    Line("suite run nothing", 2, f'suite "nothing" is neither a file nor shipped; {_SHIPPED}'),
    Line("suite run smke", 2, 'did you mean "smoke"?'),
    Line("suite run empty.json", 2, "empty.json is empty; a suite has"),
    Line("suite run garbage.json", 2, "garbage.json is no text in UTF-8"),
    Line("suite run ./zero.json", 2, "zero.json is no file; name a suite file"),
    Line("suite run pipe", 2, "pipe is no file; name a suite file"),
    Line("suite plan ./socket", 2, "socket is no file; name a suite file"),
    Line("suite run /dev/null", 2, "/dev/null is no file; name a suite file"),
    Line("suite run ./folder", 2, "folder is a folder; name a suite file"),
    Line("suite run smoke smoke", 2, "unexpected extra argument (smoke)"),
    # what of it
    Line("suite run smoke --only nothing", 2, 'no case has the tag "nothing"'),
    Line("suite run smoke --only \x1b[31m", 2, "no case has the tag"),
    Line("suite run smoke --set trials=5", 2, "trials"),
    Line("suite run smoke --set defaults.trials=0", 2, "trials"),
    Line("suite run smoke --budget 0", 2, f"'0' {_TIME}"),
    Line("suite run smoke --budget -1", 2, f"'-1' {_TIME}"),
    Line("suite run smoke --budget nan", 2, f"'nan' {_TIME}"),
    Line("suite run smoke --budget 1y", 2, f"'1y' {_TIME}"),
    Line("suite run smoke --budget ''", 2, f"'' {_TIME}"),
    # going on
    Line("suite run smoke --resume", 2, _NONE),
    Line("suite run smoke --resume --dry-run", 2, _NONE),
    Line("suite run --resume smoke", 2, _NONE),
    Line("suite run --resume", 2, "Missing argument 'NAME|FILE'"),
    Line("suite run smoke --repeat-failed", 2, _NONE),
    Line("suite run smoke --resume nothing", 2, 'suite run "nothing" is unknown; the newest in'),
    Line("suite run smoke --resume ../..", 2, 'suite run "../.." is unknown; the newest in'),
    Line("suite run smoke --resume \x1b[31m", 2, "is unknown; the newest in"),
    Line("suite run smoke --resume --runs missing", 2, f"{_NONE} missing/suites is left to resume"),
    Line(f"suite run smoke --runs nights --resume {_OLD}", 2, "schema version 99 is newer than 2"),
    Line("suite run smoke --runs nights --resume 2026", 2, 'suite run "2026" may be any of'),
    Line("suite run smoke --runs nights --resume 20261102", 2, "is of suite nightly, not of smoke"),
    Line("suite run smoke --runs nights --resume 20261103", 2, "holds no suite run: its ledger is empty"),
    Line("suite run smoke --runs nights --resume 20261104", 2, "line 1 cannot be read"),
    Line("suite run smoke --runs nights --resume 20261105", 2, "was begun with another smoke"),
    # where, and how it is said
    Line("suite run smoke --runs garbage.json", 2, "Directory 'garbage.json' is a file"),
    Line("suite run smoke --runs ''", 2, "it is empty; name a folder"),
    Line("suite run smoke --store nonsense", 2, "the store's URL cannot be read"),
    Line("suite run smoke --engine mpi", 2, "'mpi' is not one of 'local', 'ray', 'slurm'"),
    Line("suite run smoke --engine-file garbage.json", 2, "--engine-file is of a cluster, and the engine is local"),
    Line("suite run smoke --engine slurm --engine-file garbage.json", 2, "garbage.json is no TOML"),
    Line("suite run smoke --engine slurm --engine-file nothing.toml", 2, "nothing.toml: No such file or directory"),
    Line("suite run smoke --engine slurm --engine-file pipe", 2, "pipe: Is a named pipe; name a file of Slurm's"),
    Line("suite plan smoke --engine ray --engine-file socket", 2, "socket: Is a socket; name a file of Ray's"),
    Line("suite render smoke --engine-file /dev/zero", 2, "/dev/zero: Is a device; name a file of Kubernetes's"),
    Line("suite run smoke --engine slurm --engine-file folder", 2, "folder: Is a directory; name a file of Slurm's"),
    Line("suite run smoke --engine kubernetes", 2, "--engine kubernetes works within the pods of a JobSet"),
    Line("suite run smoke --engine ray --engine-file garbage.json", 2, "garbage.json is no TOML"),
    Line("suite run smoke --engine ray --nodes 2", 2, "Ray is started on this machine, which is one node"),
    Line("suite run smoke --nodes 0", 2, "0 is not in the range 1<=x<=4096"),
    Line("suite plan smoke --ranks-per-node 0", 2, "0 is not in the range 1<=x<=4096"),
    Line("suite run smoke --port -1", 2, "-1 is not in the range 0<=x<=65535"),
    Line("suite run smoke --quiet --verbose", 2, "--quiet and --verbose cannot be together"),
    Line("suite run smoke --format xml", 2, "'xml' is not one of 'table', 'json', 'csv'"),
    Line("suite run smoke --drop-bad", 2, "this machine alone has no peers to be compared with"),
    Line("suite run smoke --nodes 2 --drop-bad --no-preflight", 2, "--drop-bad leaves out what the check finds"),
    # render
    Line("suite render", 2, "Missing argument 'NAME|FILE'"),
    Line("suite render smke", 2, 'did you mean "smoke"?'),
    Line("suite render smoke", 2, "Kubernetes's settings lack image; name a file that has it with --engine-file"),
    Line("suite render smoke --engine slurm", 2, "'slurm' is not 'kubernetes'"),
    Line("suite render smoke --engine-file nothing.toml", 2, "nothing.toml: No such file or directory; name a file"),
    Line("suite render smoke --engine-file garbage.json", 2, "garbage.json is no TOML"),
    Line("suite render smoke --engine-file empty.json", 2, "empty.json lacks the field image, which Kubernetes needs"),
    Line("suite render smoke --engine-file misspelt.toml", 2, 'the field "imag" is unknown; did you mean "image"?'),
    Line("suite render smoke --engine-file by-tag.toml", 2, 'image "x:1" has no digest'),
    Line("suite render smoke --engine-file pods.toml", 2, "how many GPUs has a pod? Say gpus = 8 in the engine's file"),
    Line("suite render smoke --engine-file pods.toml --key-secret My_Key --ranks-per-node 4", 2, "cannot be a name"),
    Line(
        "suite render smoke --engine-file pods.toml --nodes 99", 2, "no case of suite smoke uses more than 4 (three_d)"
    ),
    Line("suite render smoke --engine-file pods.toml --ranks-per-node 4 --output folder", 2, "is a directory"),
    Line("suite render smoke --engine-file pods.toml --ranks-per-node 4 --output no/where", 4, "cannot be written"),
    Line("suite render smoke --engine-file pods.toml --only nothing", 2, 'no case has the tag "nothing"'),
    Line("suite render smoke --as job", 2, "'job' is not one of 'jobset', 'trainjob'"),
    # show
    Line("suite shw", 2, "No such command 'shw'"),
    Line("suite show nothing", 2, 'suite or suite run "nothing" is unknown; the newest are: none'),
    Line("suite show ''", 2, "it is empty; leave it out, or name one"),
    Line("suite show smoke smoke", 2, "unexpected extra argument (smoke)"),
    Line("suite show --limit 0", 2, "0 is not in the range 1<=x<=1000000"),
    Line("suite show --runs garbage.json", 2, "Directory 'garbage.json' is a file"),
    Line("suite show --store nonsense", 2, "the store's URL cannot be read"),
    Line("suite show 2026 --runs nights", 2, 'suite or suite run "2026" may be any of', before=3),
    # scaling
    Line("suite scaling", 2, "no suite has run yet; `observatory suite run scaling` runs one"),
    Line("suite scaling nothing", 2, "no suite has run yet"),
    Line("suite scaling ''", 2, "it is empty; leave it out, or name one"),
    Line("suite scaling smoke smoke", 2, "unexpected extra argument (smoke)"),
    Line("suite scaling --format xml", 2, "'xml' is not one of 'table', 'json', 'csv'"),
    Line("suite scaling --runs garbage.json", 2, "Directory 'garbage.json' is a file"),
    Line("suite scaling --store nonsense", 2, "the store's URL cannot be read"),
    Line("suite scaling 2026 --runs nights", 2, 'suite or suite run "2026" may be any of', before=3),
    Line("show --suite ''", 2, "it is empty; leave it out, or name one"),
    Line("show --suite smoke --rebuild", 2, "--rebuild takes all runs of a folder"),
)
