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
    Line(f"{_UP} missing", 2, "missing: No such file or directory; name a TOML file"),
    Line(f"{_UP} ''", 2, "it is empty; name a file"),
    Line(f"{_UP} marked.toml", 2, "unknown key 'imag'"),
    Line(f"{_UP} wide.toml", 2, "wide.toml: it is not UTF-8 text; name a TOML file"),
    Line(f"{_UP} pipe", 2, "pipe: Is a named pipe; name a TOML file"),
    Line(f"{_UP} folder", 2, "File 'folder' is a directory"),
    Line(f"{_UP} garbage.json", 2, "garbage.json: it is not UTF-8 text; name a TOML file"),
    Line(f"{_UP} zero.json", 2, "zero.json: Is a device"),
    Line(f"{_UP} deep.toml", 2, "deep.toml: lists and tables are nested more than 16 deep (at line 1); flatten them"),
    Line(f"{_UP} deep-key.toml", 2, "deep-key.toml: a key has more than 16 parts (at line 1); shorten it"),
    Line(f"{_UP} deep-table.toml", 2, "deep-table.toml: a key has more than 16 parts (at line 1)"),
    Line(f"{_UP} long-number.toml", 2, "long-number.toml: schema_version is a whole number beyond 64 bits"),
    Line(f"{_UP} loop", 2, "Too many levels of symbolic links"),
    Line(f"{_UP} misspelt.toml", 2, "unknown key 'imag'; it may be schema_version, prometheus,"),
    Line(f"{_UP} stack.toml", 2, "stack.toml: unknown key 'prometheus.prot'; did you mean 'port'?"),
    Line(f"{_UP} brief.toml", 2, "retention_days is 7, and the rules look back 15 days; give 15 or more"),
    Line(
        f"{_UP} seldom.toml",
        2,
        "prometheus.scrape_seconds is 121; it may be 1 to 120: dashboards and rules look back 5 minutes and",
    ),
    Line(f"{_UP} older.toml", 2, f"unknown key 'prometheus.evaluation_seconds'; {_FIELDS}"),
    Line(f"{_UP} twice.toml", 2, "prometheus.port and grafana.port are both 9090; change one of them"),
    Line(f"{_UP} newer.toml", 2, "schema_version is 99, and this program reads 1"),
    Line("stack up --targets ''", 2, "it is empty; name a folder"),
    Line("stack up --targets foreign.json", 2, "Directory 'foreign.json' is a file"),
    Line("stack up --agent --store ''", 2, "it is empty; leave it out, or name one"),
    Line("stack up --agent --store notaurl", 2, "'--store' (env var: 'OBSERVATORY_STORE'): the store's URL cannot be"),
    Line("stack up --agent --store mysql://x", 2, "mysql is not supported; it may be sqlite or postgresql"),
    Line("stack up --folder ''", 2, "it is empty; name a folder"),
    Line("stack up --folder garbage.json", 2, "Directory 'garbage.json' is a file"),
    Line(
        "stack up --folder newer-run",
        2,
        "newer-run holds case.json, which does not belong to a stack; name an empty folder",
    ),
    Line(
        "stack up --folder old-stack",
        2,
        "old-stack holds a stack whose servers have all ended; `observatory stack down",
    ),
    Line(
        "stack up --folder by-hand",
        2,
        "by-hand/data holds mine.csv, which does not belong to a stack; name an empty folder",
    ),
    Line("stack down --folder by-hand", 2, _NOTHING),
    Line("stack down x", 2, "unexpected extra argument (x)"),
    Line("stack down", 2, _NOTHING),
    Line("stack down --folder folder", 2, _NOTHING),
    Line("stack down --folder missing", 2, _NOTHING),
    Line("stack down --folder ''", 2, "it is empty; name a folder"),
    Line("stack up --targets pipe.json", 2, "pipe.json: name a folder; each node writes a file of its own into it"),
    Line("stack down --folder pipe-stack", 2, "pipe-stack/state.json: Is a named pipe; name another"),
    Line("stack status --folder pipe-stack", 2, "pipe-stack/state.json: Is a named pipe; name another"),
    Line("stack down --folder newer-stack", 2, "was written by a newer program (schema_version 99); use that one"),
    Line("stack down --folder broken-stack", 2, "state.json is damaged; end the servers that still run by hand"),
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
