"""A folder of files and folders that are not what a command wants, under names that the tables use."""

from __future__ import annotations

import gzip
import json
import os
import random
import socket
import sqlite3
from pathlib import Path

from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from tests.bench.made.small_traces import write_kineto, write_timelines
from tests.bench.report.nccl_tests.files import document

DEEP = "[" * 100_000
_WEAK = 'baseline = "single"\nscaling = "weak"\nranks = [2, 4]'
_CURVE = f"{_WEAK}\n[case.single]\nranks = 1"
SUITES = {
    "needs.toml": "[case.ddp]\nneeds.memory_bytes = 1e300",
    "infinite.toml": "[case.ddp]\nneeds.memory_bytes = inf",
    "seed.toml": f"[defaults]\nseed = {10**30}\n[case.ddp]",
    "option.toml": f"[case.ddp]\noptions.accumulate = {10**30}",
    "blank.toml": '[case.ddp]\nbaseline = "  "',
    "weak-own.toml": f"[case.ddp]\nbatch = 8\n{_CURVE}",
    "weak.toml": f"[case.ddp]\n{_CURVE}",
    "weak-two.toml": f"[defaults]\nbatch = [8, 16]\n[case.ddp]\n{_CURVE}\n[case.fsdp]\n{_WEAK}",
    "margin.toml": "[case.ddp]\ngate = { margin = 0 }",
    "weak-list.toml": f"[defaults]\nbatch = [8, 16]\n[case.ddp]\n{_CURVE}",
}


def make_files(folder: Path) -> None:
    """Fill the folder."""
    garbage = random.Random(0).randbytes(4000)  # No secret: the same bytes in each run.
    for name in ("garbage.json", "garbage.json.gz", "garbage.timeline.npz", "garbage.sqlite", "garbage.yaml"):
        (folder / name).write_bytes(garbage)
    texts = {
        "empty.json": "",
        "cut.json": '{"traceEvents": [{"ph": "X", "name"',
        "list.json": "[1, 2]",
        "null.json": "null",
        "foreign.json": '{"a": 1}',
        "deep.json": DEEP,
        "deep.yaml": DEEP[:500],
        "open.yaml": "tls_server_config: [",
        "unknown.yaml": "tls: {}",
        "plain.yaml": "basic_auth_users: {me: hunter2}",
        "digits.yaml": f"basic_auth_users: {'9' * 5000}",
        "no-date.yaml": "a: 2001-99-99",
        "wide-hex.yaml": f"tls_server_config: {{cert_file: 0x{'f' * 5000}}}",
        "no-path.yaml": 'tls_server_config: {cert_file: "a\\0b", key_file: k}',
        "misspelt.toml": 'imag = "x"',
        "deep.toml": f"x = {'[' * 5000}",
        "deep-key.toml": f"{'a.' * 60_000}b = 1",
        "deep-table.toml": f"[{'a.' * 60_000}b]",
        "many-tables.toml": "".join(f"[t{number}.a.b.c.d]\n" for number in range(5000)),
        "long-number.toml": f"schema_version = 0x{'f' * 5000}",
        "levels.toml": '[[accepted_efficiency]]\nstrategy="dpp"\ndevice="cuda"\nscaling="weak"\nratio=1',
        "stack.toml": "[prometheus]\nprot = 9090",
        "brief.toml": "[prometheus]\nretention_days = 7",
        "seldom.toml": "[prometheus]\nscrape_seconds = 121",
        "older.toml": "[prometheus]\nevaluation_seconds = 15",
        "twice.toml": "[grafana]\nport = 9090",
        "newer.toml": "schema_version = 99",
        "by-tag.toml": 'image = "x:1"\nclaim = "results"',
        "pods.toml": f'image = "x@sha256:{"0" * 64}"\nclaim = "results"',
        "piped.yaml": "tls_server_config: {cert_file: pipe, key_file: pipe}",
        "half.yaml": "tls_server_config: {cert_file: missing.pem, key_file: missing.pem}",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    marked = {
        "marked.toml": 'imag = "x"',
        "marked-suite.toml": "schema_version = 1\n[case.dpp]\n",
        "marked.json": '{"a": 1}',
        "marked.yaml": "tls: {}",
    }
    for name, text in marked.items():  # With the byte order mark that some editors put in front.
        (folder / name).write_text(text, encoding="utf-8-sig")
    for name in ("wide.toml", "wide.json"):
        (folder / name).write_text("schema_version = 1\n", encoding="utf-16")
    for name, table in SUITES.items():
        (folder / name).write_text(f"schema_version = 1\n{table}\n")
    (folder / "cut.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}' * 1000)[:30])
    (folder / "nccl.json").write_bytes(document())
    (folder / "nccl9.json").write_bytes(document(form=9))
    (folder / "cut-nccl.json").write_bytes(document()[:-200])
    for name in ("folder", "broken-run", "newer-run", "deep-run", "strange-run"):
        (folder / name).mkdir()
    (folder / "broken-run" / "case.json").write_text("{}")
    (folder / "newer-run" / "case.json").write_text('{"schema_version": 99}')
    (folder / "deep-run" / "case.json").write_text('{"x": ' + DEEP)
    (folder / "strange-run" / "case.json").write_text(json.dumps({"schema_version": 1, "run": 1}))
    state = {"schema_version": 1, "begun_ns": 1, "made": [], "made_folders": [], "urls": {}}
    for name, text in (
        ("old-stack", json.dumps(state)),
        ("newer-stack", json.dumps({**state, "schema_version": 99})),
        ("broken-stack", "{"),
    ):
        (folder / name).mkdir()
        (folder / name / "state.json").write_text(text)
    for name in ("prometheus", "alertmanager"):
        (folder / "by-hand" / "data" / name).mkdir(parents=True)
    (folder / "by-hand" / "data" / "mine.csv").write_text("1")
    for name in ("pipe-run", "device-run", "folder-run", "pipe-stack"):
        (folder / name).mkdir()
    for path in ("pipe", "pipe.json", "pipe-run/case.json", "pipe-stack/state.json"):
        os.mkfifo(folder / path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fsencode(folder / "socket"))
    (folder / "device-run" / "case.json").symlink_to("/dev/zero")
    (folder / "folder-run" / "case.json").mkdir()
    with (folder / "long.json").open("wb") as long:
        long.truncate((64 << 20) + 1)
    (folder / "loop").symlink_to("loop")
    (folder / "zero.json").symlink_to("/dev/zero")
    ledgers = {
        "20261101-010203-smoke-abc123": '{"type":"begun","schema_version":99}\n',
        "20261102-010203-nightly-abc123": _begun("nightly"),
        "20261103-010203-smoke-abc123": "",
        "20261104-010203-smoke-abc123": "nonsense\n" + _begun("smoke"),
        "20261105-010203-smoke-abc123": _begun("smoke"),
    }
    for name, text in ledgers.items():
        (folder / "nights" / "suites" / name).mkdir(parents=True)
        (folder / "nights" / "suites" / name / "ledger.jsonl").write_text(text)
    write_kineto(folder / "trace.json", 0)
    write_kineto(folder / "same-rank.json", 0)
    (folder / "windows").mkdir()
    write_timelines(folder / "windows", 0, 1)
    (folder / "garbage-folder").mkdir()
    (folder / "garbage-folder" / "notes.json").write_text('{"a": 1}')
    (folder / "garbage-folder" / "rank0.json.gz").write_bytes(garbage)
    night = SuiteRecord(
        id="20261101-020000-nightly-abc123", suite="nightly", started_ns=1, progress_ns=1, ended_ns=1, outcome="done",
        period_s=None, cases={}, total=0, folder=str(folder / "nowhere"),
    )  # fmt: skip
    with History(f"sqlite:///{folder}/judged.sqlite") as history:
        history.save_suite(night)
    with sqlite3.connect(folder / "other.sqlite") as connection:
        connection.execute("CREATE TABLE places (id INTEGER)")
    connection.close()


def _begun(suite: str) -> str:
    """The first line of a ledger."""
    record = {"type": "begun", "suite": suite, "suite_run": "any", "digest": "any", "time_ns": 1, "schema_version": 1}
    return json.dumps(record) + "\n"
