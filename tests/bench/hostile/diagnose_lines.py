"""Hostile command lines of `observatory diagnose`."""

from __future__ import annotations

from tests.bench.hostile.line import Line

LONG = "a" * 300
_NO_RUN = "is unknown; the history has no run yet, `observatory run` makes one"

LINES = (
    Line("diagnose pipe-run", 2, "pipe-run/case.json cannot be read: Is a named pipe"),
    Line("diagnose", 2, "Missing argument 'RUN'"),
    Line("diagnose ''", 2, "it is empty; name one"),
    Line("diagnose nothing", 2, f'run "nothing" {_NO_RUN}'),
    Line("diagnose \x1b[31m", 2, 'run "\\x1b[31m" is unknown'),
    Line("diagnose \udcff", 2, _NO_RUN),
    Line(f"diagnose {LONG}", 2, "File name too long"),
    Line("diagnose loop", 2, _NO_RUN),
    Line("diagnose garbage.json", 2, 'run "garbage.json" is unknown'),
    Line("diagnose trace.json", 2, 'run "trace.json" is unknown'),
    Line("diagnose .", 2, "holds no run: case.json is missing"),
    Line("diagnose folder", 2, "folder holds no run: case.json is missing"),
    Line("diagnose broken-run", 2, "broken-run/case.json cannot be read: Object missing required field"),
    Line("diagnose strange-run", 2, "strange-run/case.json cannot be read: Expected `str`, got `int`"),
    Line("diagnose newer-run", 2, "schema version 99 is newer than 1"),
    Line("diagnose deep-run", 2, "deep-run/case.json cannot be read"),
    Line("diagnose a b", 2, "unexpected extra argument (b)"),
    Line("diagnose x --format xml", 2, "'xml' is not one of"),
    Line("diagnose x --details", 2, "No such option '--details'"),
    Line("diagnose x --runs garbage.json", 2, "Directory 'garbage.json' is a file"),
    Line("diagnose x --runs ''", 2, "it is empty; name a folder"),
    Line("diagnose x --store notaurl", 2, "the store's URL cannot be read"),
    Line("diagnose x --store ''", 2, "it is empty; leave it out, or name one"),
    Line("diagnose x --store sqlite:///garbage.sqlite", 4, "file is not a database"),
)
