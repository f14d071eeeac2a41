"""Hostile command lines of `observatory stack`."""

from __future__ import annotations

from tests.bench.hostile.line import Line

_UP = "stack up --config"
_FIELDS = "it may be port, scrape_seconds, retention_days"
_NOTHING = "no stack is up in"

LINES = (
    Line("stack upp", 2, "Did you mean 'up'?"),
    Line("stack start", 2, "Did you mean 'status'?"),
    Line("stack --demo", 2, "No such option '--demo'"),
    Line("stack up x", 2, "unexpected extra argument (x)"),
    Line("stack up --agnet", 2, "No such option '--agnet'"),
    Line(f"{_UP} missing", 2, "missing: No such file or directory; name a file of the stack's settings, in TOML"),
    Line(f"{_UP} ''", 2, "it is empty; name a file"),
    Line(f"{_UP} marked.toml", 2, 'the field "imag" is unknown'),
    Line(f"{_UP} wide.toml", 2, "wide.toml is no text in UTF-8; name a file of the stack's settings"),
    Line(f"{_UP} pipe", 2, "pipe: Is a named pipe; name a file of the stack's settings, in TOML"),
    Line(f"{_UP} folder", 2, "File 'folder' is a directory"),
    Line(f"{_UP} garbage.json", 2, "garbage.json is no text in UTF-8; name a file of the stack's settings"),
    Line(f"{_UP} zero.json", 2, "zero.json: Is a device"),
    Line(f"{_UP} loop", 2, "Too many levels of symbolic links"),
    Line(f"{_UP} misspelt.toml", 2, 'the field "imag" is unknown; it may be schema_version, prometheus,'),
    Line(
        f"{_UP} stack.toml", 2, f'stack.toml: prometheus: the field "prot" is unknown; did you mean "port"?; {_FIELDS}'
    ),
    Line(f"{_UP} brief.toml", 2, "retention_days is 7, and the rules look back 15 days; give 15 or more"),
    Line(
        f"{_UP} seldom.toml",
        2,
        "scrape_seconds is 121, and pages and rules look back 5 minutes, in which they need two",
    ),
    Line(f"{_UP} older.toml", 2, f'"evaluation_seconds" is unknown; {_FIELDS}'),
    Line(f"{_UP} twice.toml", 2, "prometheus.port and grafana.port are both 9090; give one of them another"),
    Line(f"{_UP} newer.toml", 2, "schema_version is 99, and this program knows 1"),
    Line("stack up --targets ''", 2, "it is empty; name a file"),
    Line("stack up --targets folder", 2, "File 'folder' is a directory"),
    Line("stack up --targets new.txt", 2, "new.txt: the list of targets is JSON; name a file that ends in .json"),
    Line("stack up --targets foreign.json", 2, "foreign.json: holds no list of targets"),
    Line("stack up --agent --store ''", 2, "it is empty; leave it out, or name one"),
    Line("stack up --agent --store notaurl", 2, "'--store' (env var: 'OBSERVATORY_STORE'): the store's URL cannot be"),
    Line("stack up --agent --store mysql://x", 2, "mysql is not supported; it may be sqlite or postgresql"),
    Line("stack up --folder ''", 2, "it is empty; name a folder"),
    Line("stack up --folder garbage.json", 2, "Directory 'garbage.json' is a file"),
    Line("stack up --folder newer-run", 2, "newer-run holds case.json, which is no stack's; name an empty folder"),
    Line(
        "stack up --folder old-stack",
        2,
        "old-stack holds a stack whose servers have all ended; `observatory stack down",
    ),
    Line("stack up --folder by-hand", 2, "by-hand/data holds mine.csv, which is no stack's; name an empty folder"),
    Line("stack down --folder by-hand", 2, _NOTHING),
    Line("stack down x", 2, "unexpected extra argument (x)"),
    Line("stack down", 2, _NOTHING),
    Line("stack down --folder folder", 2, _NOTHING),
    Line("stack down --folder missing", 2, _NOTHING),
    Line("stack down --folder ''", 2, "it is empty; name a folder"),
    Line("stack up --targets pipe.json", 2, "pipe.json: holds no list of targets"),
    Line("stack down --folder pipe-stack", 2, "pipe-stack/state.json: Is a named pipe; name another"),
    Line("stack status --folder pipe-stack", 2, "pipe-stack/state.json: Is a named pipe; name another"),
    Line("stack down --folder newer-stack", 2, "is of a newer program (schema_version 99); use that one"),
    Line("stack down --folder broken-stack", 2, "state.json is damaged; end the servers that still run by hand"),
    Line("stack size", 2, "Missing option '--nodes'"),
    Line("stack size --nodes 0", 2, "0 is not in the range 1<=x<=1000000"),
    Line("stack size --nodes x", 2, "'x' is not a valid integer range"),
    Line("stack size --nodes 1 --gpus-per-node -1", 2, "-1 is not in the range 0<=x<=1024"),
    Line("stack size --nodes 1 --with disk", 2, "'disk' is no UNIT=NUMBER; it may be such as disk=8 or result=500"),
    Line("stack size --nodes 1 --with disk=-1", 2, "'disk=-1' is no UNIT=NUMBER"),
    Line("stack size --nodes 1 --with disc=1", 2, "--with: unit disc is unknown; it may be disk, figure,"),
    Line("stack size --nodes 1 --with gpu=4", 2, "--with: unit gpu is unknown"),
    Line("stack size --nodes 1 --config stack.toml", 2, 'the field "prot" is unknown'),
    Line("stack size --nodes 1 --format xml", 2, "'xml' is not one of 'table', 'json', 'csv'"),
    Line("stack status", 2, _NOTHING),
    Line("stack status --format xml", 2, "'xml' is not one of 'table', 'json', 'csv'"),
    Line("stack status --prometheus ''", 2, "it is empty; leave it out, or name one"),
    Line("stack status --prometheus notaurl", 2, "the Prometheus's address cannot be used; it looks like http://127"),
    Line("stack status --prometheus http://me:hunter2@host", 2, "the Prometheus's address cannot be used"),
    Line("stack status --prometheus http://a..b", 2, "the Prometheus's address cannot be used"),
    Line("stack status --prometheus http://127.0.0.1:99999", 2, "the Prometheus's address cannot be used"),
    Line(
        "stack status --prometheus http://127.0.0.1:1",
        4,
        "no answer (connection refused); is a Prometheus running there?",
    ),
)
