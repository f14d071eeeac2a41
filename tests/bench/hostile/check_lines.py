"""Hostile command lines of `observatory check`."""

from __future__ import annotations

from tests.bench.hostile.line import Line

_NONE = "no suite has run yet; `observatory suite run smoke` runs one"

_JUDGED = "--store sqlite:///judged.sqlite"

LINES = (
    Line("check", 2, _NONE),
    Line("check --suite nightly", 2, _NONE),
    Line(f"check --suite nope {_JUDGED}", 2, 'suite "nope" has no run in this history; it has nightly'),
    Line(f"check --suite nightl {_JUDGED}", 2, 'suite "nightl" has no run in this history; did you mean "nightly"?'),
    Line(
        f"check --suite smoke {_JUDGED}",
        2,
        'suite "smoke" has no run in this history; it has nightly (`observatory suite run smoke` makes one)',
    ),
    Line(f"check --suite folder/nope.toml {_JUDGED}", 2, 'suite "folder/nope.toml" has no run in this history; it has'),
    Line(f"check --suite 'nope; rm' {_JUDGED}", 2, 'suite "nope; rm" has no run in this history; it has nightly'),
    Line(f"check --accept nope --because x {_JUDGED}", 2, 'case "nope" has never been judged, so there is no level'),
    Line(f"check --suite nope --accept ddp --because x {_JUDGED}", 2, 'suite "nope" has no run in this history'),
    Line(
        f"check --since nope {_JUDGED}",
        2,
        'night "nope" is neither a day, for example 2026-11-23, nor a suite run; the newest are',
    ),
    Line("check --suite ''", 2, "it is empty; leave it out, or name one"),
    Line("check nightly", 2, "unexpected extra argument (nightly)"),
    Line("check --format xml", 2, "'xml' is not one of"),
    Line("check --since ''", 2, "it is empty"),
    Line("check --since 2026-11-23 --format junit", 2, "--since shows earlier nights as table or json"),
    Line("check --store sqlite:///garbage.sqlite", 4, "file is not a database"),
    Line("check --store mysql://host/name", 2, "mysql is not supported"),
    Line("check --runs garbage.json", 2, "Directory 'garbage.json' is a file"),
    Line("check --runs ''", 2, "it is empty; name a folder"),
    # --accept
    Line("check --accept", 2, "requires an argument"),
    Line("check --accept ddp", 2, '--accept ddp needs a reason, which is stored with it: --because "..."'),
    Line("check --because x", 2, "--because and --metric belong to --accept CASE"),
    Line("check --metric step", 2, "--because and --metric belong to --accept CASE"),
    Line("check --accept ddp --because ''", 2, "it is empty"),
    Line("check --accept ddp --because x --since 2026-11-23", 2, "--since has no meaning with --accept"),
    Line("check --accept ddp --because x --format json", 2, "--format has no meaning with --accept"),
    Line("check --accept ddp --because x --runs folder", 2, "--runs has no meaning with --accept"),
    Line("check --accept ddp --because x --details", 2, "--details has no meaning with --accept"),
    Line("check --accept ddp --because x", 2, _NONE),
)
