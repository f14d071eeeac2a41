"""A suite file becomes its cases, or one line that names the file, the table, the key, and what it may be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.errors import Misuse
from bench.session.case_args import shape_of
from bench.suite.file import Lever, Suite, read_suite
from bench.suite.form.tables import CaseTable, Claim, Expected, SuiteNeeds
from workloads.registry import SPECS

CLAIM = 'claims = [{ metric = "observatory_run_step_seconds", low = 1.2, high = 1.5, text = "as in the book" }]'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def _read(folder: Path, text: str, *settings: str) -> Suite:
    path = folder / "night.toml"
    path.write_text(f"schema_version = 1\n{text}\n")
    return read_suite(path, settings)


def _refusal(folder: Path, text: str, *settings: str) -> str:
    """Return what the refusal says behind the file's name."""
    with pytest.raises(Misuse) as caught:
        _read(folder, text, *settings)
    (line,) = str(caught.value).splitlines()
    return line.removeprefix(f"{folder}/night.toml").removeprefix(": ").strip()


def _names(suite: Suite) -> list[str]:
    return [case.name for case in suite.cases]


def test_a_case_takes_its_table_as_strategy_and_the_usual_for_the_rest(folder: Path) -> None:
    (case,) = _read(folder, "[case.ddp]").cases
    assert (case.name, case.table, case.block, case.args.strategy) == ("ddp", "ddp", "ddp", "ddp")
    assert (case.args.ranks, case.args.trials, case.limit_s, case.retries) == (None, 3, 600.0, 1)


def test_every_key_arrives(folder: Path) -> None:
    suite = _read(
        folder,
        """
        name = "mine"
        description = "What it is."
        nightly = true
        period_hours = 24
        [case.drill]
        strategy = "ddp"
        ranks = 2
        shape = "125m"
        batch = 16
        device = "cpu"
        backend = "gloo"
        precision = "bf16"
        threads = 2
        trials = 1
        steps = 4
        warm_up = 1
        trace_steps = 2
        seed = 7
        options = { bucket_mb = 5, overlap = false, compress = "fp16" }
        keep_traces = true
        trace_every = 2
        memory_snapshot = true
        block = "together"
        limit_s = 60
        retries = 0
        tags = ["extra"]
        importance = 5
        needs = { gpus = 2, memory_bytes = 1e9, nodes = 3 }
        inject = "kill@1:3"
        expect = { outcome = "failed", cause = "killed", rank = 1 }
        """,
    )
    assert (suite.name, suite.description, suite.is_nightly, suite.period_s) == ("mine", "What it is.", True, 86400.0)
    (case,) = suite.cases
    args = case.args
    assert (args.strategy, args.ranks, args.shape_name, dict(args.dimensions)) == ("ddp", (2,), "125m", {"batch": 16})
    assert (args.device, args.backend, args.precision, args.threads) == ("cpu", "gloo", "bf16", 2)
    assert (args.trials, args.steps, args.warm_up, args.trace_steps, args.seed) == (1, 4, 1, 2, 7)
    assert list(args.options) == ["bucket_mb=5", "overlap=false", "compress=fp16"]
    assert (case.keep_traces, case.instrumentation.trace_every, case.instrumentation.memory_snapshot) == (True, 2, True)
    assert (case.block, case.limit_s, case.retries, case.tags, case.importance) == ("together", 60.0, 0, ("extra",), 5)
    assert case.needs == SuiteNeeds(gpus=2, memory_bytes=1e9, nodes=3)
    assert (case.fault, case.expect) == ("kill@1:3", Expected(outcome="failed", cause="killed", rank=1))


def test_defaults_fill_in_what_a_case_does_not_set_also_within_options(folder: Path) -> None:
    suite = _read(
        folder,
        """
        [defaults]
        trials = 2
        options = { workers = 0, clip = 2.0 }
        [case.ddp]
        options = { clip = 1.0, bucket_mb = 1 }
        [case.single]
        trials = 1
        """,
    )
    assert [case.args.trials for case in suite.cases] == [2, 1]
    assert [list(case.args.options) for case in suite.cases] == [
        ["clip=1.0", "bucket_mb=1", "workers=0"],
        ["workers=0", "clip=2.0"],
    ]


def test_defaults_of_training_are_not_for_probes(folder: Path) -> None:
    (case,) = _read(folder, '[defaults]\nbatch = [8, 16]\nscaling = "weak"\nprecision = "bf16"\n[case.matmul]').cases
    assert (case.name, dict(case.args.dimensions), case.args.precision) == ("matmul", {}, "bf16")


def test_lists_make_a_grid_in_the_order_of_the_table(folder: Path) -> None:
    suite = _read(folder, "[case.ddp]\nranks = [1, 2]\noptions = { bucket_mb = [1, 25] }")
    assert _names(suite) == [
        f"ddp[ranks={ranks},bucket_mb={size}]" for ranks, size in ((1, 1), (1, 25), (2, 1), (2, 25))
    ]
    assert [case.args.ranks for case in suite.cases] == [(1,), (1,), (2,), (2,)]


def test_a_strategy_is_swept_like_all_else(folder: Path) -> None:
    suite = _read(folder, '[case.sharded]\nstrategy = ["ddp", "fsdp"]')
    assert _names(suite) == ["sharded[strategy=ddp]", "sharded[strategy=fsdp]"]
    assert [case.args.strategy for case in suite.cases] == ["ddp", "fsdp"]


def test_an_option_that_one_of_the_strategies_has_not_is_refused(folder: Path) -> None:
    said = _refusal(folder, '[case.sharded]\nstrategy = ["ddp", "fsdp"]\noptions = { bucket_mb = 1 }')
    assert said.startswith('[case.sharded] options: fsdp has no option "bucket_mb", which ddp')


def test_no_option_is_called_as_a_key_of_a_case(folder: Path) -> None:
    options = {option.name for spec in SPECS for option in spec.options}
    assert options.isdisjoint(CaseTable.__struct_fields__)


# Scaling curves.


def _batches(suite: Suite) -> dict[str, int | None]:
    return {case.name: case.args.dimensions.get("batch") for case in suite.cases}


def _baselines(suite: Suite) -> dict[str, str | None]:
    return {case.name: case.baseline for case in suite.cases}


def test_a_weak_curve_gives_each_rank_the_work_of_one_of_the_fewest(folder: Path) -> None:
    suite = _read(folder, '[case.ddp]\nranks = [4, 2, 8]\nbatch = 6\nscaling = "weak"')
    assert _batches(suite) == {"ddp[ranks=4]": 12, "ddp[ranks=2]": 6, "ddp[ranks=8]": 24}
    assert _baselines(suite) == {"ddp[ranks=4]": "ddp[ranks=2]", "ddp[ranks=2]": None, "ddp[ranks=8]": "ddp[ranks=2]"}


def test_a_weak_curve_counts_the_ranks_that_train(folder: Path) -> None:
    suite = _read(folder, '[case.parameter_server]\nranks = [3, 5]\nbatch = 8\nscaling = "weak"')
    assert _batches(suite) == {"parameter_server[ranks=3]": 8, "parameter_server[ranks=5]": 16}


def test_a_strong_curve_leaves_the_batch(folder: Path) -> None:
    suite = _read(folder, '[case.ddp]\nranks = [1, 2]\nbatch = 6\nscaling = "strong"')
    assert set(_batches(suite).values()) == {6}


def test_each_combination_of_other_lists_is_a_curve_of_its_own(folder: Path) -> None:
    suite = _read(folder, '[case.ddp]\nranks = [1, 2]\nprecision = ["fp32", "bf16"]\nscaling = "weak"')
    assert _baselines(suite)["ddp[ranks=2,precision=bf16]"] == "ddp[ranks=1,precision=bf16]"
    assert _baselines(suite)["ddp[ranks=2,precision=fp32]"] == "ddp[ranks=1,precision=fp32]"


def test_batches_that_are_zipped_with_the_ranks_are_taken_as_they_are(folder: Path) -> None:
    suite = _read(folder, '[case.ddp]\nranks = [1, 2]\nbatch = [4, 8]\nzip = [["ranks", "batch"]]\nscaling = "weak"')
    assert _batches(suite) == {"ddp[ranks=1,batch=4]": 4, "ddp[ranks=2,batch=8]": 8}
    assert _baselines(suite)["ddp[ranks=2,batch=8]"] == "ddp[ranks=1,batch=4]"


def test_a_case_joins_the_block_of_its_baseline_and_takes_its_batch_from_there(folder: Path) -> None:
    suite = _read(
        folder,
        """
        [case.ddp]
        ranks = [2, 4]
        precision = ["fp32", "bf16"]
        scaling = "weak"
        baseline = "single"
        [case.single]
        ranks = 1
        batch = 3
        precision = ["fp32", "bf16"]
        """,
    )
    assert {case.block for case in suite.cases} == {"single"}
    assert _baselines(suite)["ddp[ranks=4,precision=bf16]"] == "single[precision=bf16]"
    assert _batches(suite)["ddp[ranks=4,precision=bf16]"] == 12


def test_a_baseline_may_be_one_resolved_case(folder: Path) -> None:
    suite = _read(
        folder,
        '[case.fsdp]\nranks = 4\nbaseline = "ddp[ranks=2]"\nscaling = "strong"\n[case.ddp]\nranks = [1, 2]',
    )
    assert _baselines(suite)["fsdp"] == "ddp[ranks=2]"


# Levers.


def test_a_lever_names_two_cases_and_its_claims(folder: Path) -> None:
    suite = _read(
        folder,
        f"""
        [case.compiled]
        strategy = "single"
        options = {{ compile = ["none", "default"] }}
        [lever.compile]
        off = "compiled[compile=none]"
        on = "compiled[compile=default]"
        {CLAIM}
        """,
    )
    claim = Claim(metric="observatory_run_step_seconds", low=1.2, high=1.5, text="as in the book")
    assert suite.levers == (
        Lever(name="compile", off="compiled[compile=none]", on="compiled[compile=default]", claims=(claim,)),
    )


# Values of the command line.


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("case.ddp.ranks=[1, 2]", ["ddp[ranks=1]", "ddp[ranks=2]"]),
        ("case.ddp.options.bucket_mb=[1,5]", ["ddp[bucket_mb=1]", "ddp[bucket_mb=5]"]),
        ('case.ddp.precision=["fp32","bf16"]', ["ddp[precision=fp32]", "ddp[precision=bf16]"]),
    ],
)
def test_a_setting_may_be_a_sweep(folder: Path, setting: str, names: Sequence[str]) -> None:
    assert _names(_read(folder, "[case.ddp]", setting)) == names


def test_a_setting_is_toml_or_else_a_text(folder: Path) -> None:
    suite = _read(folder, "[case.ddp]", "defaults.trials=5", "case.ddp.precision=bf16", "nightly=true")
    assert (suite.cases[0].args.trials, suite.cases[0].args.precision, suite.is_nightly) == (5, "bf16", True)


def test_a_suite_with_another_setting_has_another_digest(folder: Path) -> None:
    digests = {_read(folder, "[case.ddp]", *settings).digest for settings in ((), ("defaults.trials=5",))}
    assert len(digests) == 2
    assert _read(folder, "[case.ddp]\ntrials = 3").digest in digests
    assert _read(folder, 'description = "other words"\n[case.ddp]').digest in digests


_LLAMA = (
    '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": %d,'
    ' "num_attention_heads": 4, "vocab_size": 100}'
)
"""A file of a model, with its layers left open."""


def test_a_file_of_a_shape_is_named_relative_to_the_suite_and_its_content_is_in_the_digest(folder: Path) -> None:
    (folder / "models").mkdir()
    digests = []
    for place, layers in (("models/a.json", 2), ("models/a.json", 3), ("b.json", 3)):
        (folder / place).write_text(_LLAMA % layers)
        suite = _read(folder, f'[case.ddp]\nshape = ["tiny", "{place}"]\nsequence = 32\nranks = 2')
        of_preset, of_file = suite.cases
        assert (of_preset.name, of_file.name) == ("ddp[shape=tiny]", f"ddp[shape={place}]")
        assert (shape_of(of_file.args).layers, shape_of(of_file.args).sequence) == (layers, 32)
        digests.append(_read(folder, f'[case.ddp]\nshape = "{place}"\nsequence = 32').digest)
    assert digests[0] != digests[1] == digests[2]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("trials", '--set "trials" is not KEY=VALUE, for example defaults.trials=5 or case.ddp.ranks=[1,2]'),
        ("defaults.trials=", '--set "defaults.trials=" is not KEY=VALUE'),
        ("trials.x=5", "--set trials.x names no key of a suite; use for example nightly, defaults.trials or"),
        ("case.dpp.trials=5", '--set case.dpp.trials: {file} has no [case.dpp]; did you mean "ddp"?'),
        ("case.ddp=5", "--set case.ddp is a whole table; name one of its keys, for example case.ddp.trials"),
        ("case.ddp.name.x=5", "unknown key 'case.ddp.name'"),
        ("defaults.trails=5", "unknown key 'defaults.trails'; did you mean 'trials'?"),
        ("schema_version=2", "schema_version is 2, and this program reads 1; use the version"),
    ],
)
def test_a_setting_that_sets_nothing_is_refused(folder: Path, setting: str, said: str) -> None:
    expected = said.replace("{file}", f"{folder}/night.toml")
    assert _refusal(folder, "[case.ddp]", setting).startswith(expected)


def test_a_key_is_set_once(folder: Path) -> None:
    said = _refusal(folder, "[case.ddp]", "defaults.trials=5", "defaults.trials=6")
    assert said == "--set defaults.trials is given twice; give it once"


# What is refused, with file, table, key and what it may be.

REFUSED = [
    ("x", "line 2: Expected '=' after a key in a key/value pair; this is not TOML"),
    ("[case.ddp]\n[case.ddp]", "line 3: [case.ddp] is defined twice; rename one"),
    ("[case.ddp]\nranks = 1\nranks = 2", "line 4: a key is given twice; give it once"),
    ("day = 2026-13-45", "line 2: "),
    ("", "missing key 'case'; add it (The cases, a table each: [case.NAME])"),
    ("case = 3", "case is 3; it may be a table"),
    ("case.ddp = 3", "case.ddp is 3; it may be a table"),
    ("defaults = 3\n[case.ddp]", "defaults is 3; it may be a table"),
    ("[cases.ddp]", "unknown key 'cases'; did you mean 'case'?"),
    ("[case.'a b']", 'case has the key "a b"; it may be a name of letters, digits, _ and -, at most 60 of them'),
    ('[defaults]\nstrategy = "ddp"\n[case.ddp]', "[defaults] has a strategy, but each case names its own"),
    ("[case.dpp]", '[case.dpp] names no strategy, and has no key strategy: strategy "dpp" is unknown; did you mean'),
    ('[case.a]\nstrategy = "dpp"', 'case.a.strategy is "dpp"; did you mean "ddp"?'),
    (
        '[case.a]\nstrategy = ["ddp", "matmul"]',
        "[case.a] strategy has strategies and probes in one list; give probes a",
    ),
    ("[case.ddp]\nrank = 2", "unknown key 'case.ddp.rank'; did you mean 'ranks'?"),
    (
        '[case.ddp]\nranks = "two"',
        'case.ddp.ranks is "two"; it may be a whole number of at least 1 and at most 4,096, or a list of one ',
    ),
    (
        "[case.ddp]\nlayers = 99999",
        "case.ddp.layers is 99999; it may be a whole number of at least 1 and at most 10,000, or a list of on",
    ),
    (
        "[case.ddp]\nranks = true",
        "case.ddp.ranks is true; it may be a whole number of at least 1 and at most 4,096, or a list of one o",
    ),
    (
        "[case.ddp]\nranks = 0",
        "case.ddp.ranks is 0; it may be a whole number of at least 1 and at most 4,096, or a list of one or m",
    ),
    ("[case.ddp]\nranks = [1, 0]", "case.ddp.ranks[1] is 0; it may be a whole number of at least 1 and at most 4,096"),
    (
        "[case.ddp]\nranks = []",
        "case.ddp.ranks is []; it may be a whole number of at least 1 and at most 4,096, or a list of one or ",
    ),
    ("[case.ddp]\nranks = [2, 2]", "[case.ddp] ranks has 2 twice; a sweep has each value once"),
    (
        "[case.ddp]\nlimit_s = [1, 2]",
        "case.ddp.limit_s is [1, 2]; it may be a number of at least 1 and at most 10,000,000",
    ),
    ("[case.ddp]\nlimit_s = nan", "case.ddp.limit_s is NaN; it may be a number of at least 1 and at most 10,000,000"),
    ('[case.ddp]\ndevice = "gpu"', 'case.ddp.device is "gpu"; it may be cpu or cuda, or a list of one or more of them'),
    ('[case.ddp]\ntags = "extra"', 'case.ddp.tags is "extra"; it may be a list of names'),
    (
        '[case.ddp]\ntags = ["a b"]',
        'case.ddp.tags[0] is "a b"; it may be a name of letters, digits, _ and -, at most 60 of them',
    ),
    ('[case.ddp]\ninject = "\\u0007"', "case.ddp.inject has a character that cannot be printed; leave it out"),
    (f"[case.ddp]\nseed = 0x{'f' * 5000}", "case.ddp.seed is a whole number beyond 64 bits; give a smaller one"),
    (
        "[case.ddp]\noptions = { bucket = 1 }",
        '[case.ddp] options: ddp has no option "bucket"; did you mean "bucket_mb"?',
    ),
    (
        '[case.ddp]\noptions = { bucket_mb = "x" }',
        '[case.ddp] options: ddp: option bucket_mb is "x"; it may be a number',
    ),
    (
        "[case.ddp]\noptions = { bucket_mb = [[1]] }",
        "case.ddp.options.bucket_mb[0] is [1]; it may be true or false, or a whole number, or a number, or a ",
    ),
    ("[case.ddp]\noptions = 3", "case.ddp.options is 3; it may be a table"),
    ("[case.ddp]\nwidth = 100\nheads = 3", "[case.ddp] shape tiny: width 100 is not divisible by heads 3"),
    (
        '[case.ddp]\nshape = "small"',
        '[case.ddp] shape "small" is unknown; use one of tiny, 125m, 1b, 8b, 70b, 405b, or the path of a config.json',
    ),
    ("[case.ddp]\nneeds = { gpu = 8 }", "unknown key 'case.ddp.needs.gpu'; did you mean 'gpus'?"),
    (
        "[case.ddp]\nneeds = { gpus = -1 }",
        "case.ddp.needs.gpus is -1; it may be a whole number of at least 0 and at most 1,000,000",
    ),
    ("[case.ddp]\nexpect = { rank = 1 }", "missing key 'case.ddp.expect.outcome'; add it (How the case must end)"),
    ("[case.matmul]\nbatch = 8", "[case.matmul] batch is for training, and matmul is a probe; leave it out"),
    # Baselines and curves.
    (
        '[case.ddp]\nranks = 2\nbaseline = "singel"\n[case.single]',
        '[case.ddp] baseline is "singel", which is not a case',
    ),
    (
        '[case.ddp]\nranks = 2\nbaseline = "single[a=1]"\n[case.single]\nranks = 1',
        '[case.ddp] baseline is "single[a=1]",',
    ),
    (
        '[case.ddp]\nranks = 2\nbaseline = "single"\n[case.single]',
        "[case.ddp] baseline single has no ranks; give [case.s",
    ),
    (
        '[case.ddp]\nbaseline = "single"\n[case.single]\nranks = 1',
        "[case.ddp] has a baseline but no ranks; add ranks",
    ),
    (
        '[case.ddp]\nranks = [1, 2]\nbaseline = "single"\n[case.single]\nranks = 1',
        "[case.ddp] baseline of ddp[ranks=1] is single, which does not have fewer ranks than its 1; leave such"
        " ranks out",
    ),
    (
        '[case.ddp]\nranks = 2\nbaseline = "single"\n[case.single]\nranks = 1\nbaseline = "ddp"',
        "[case.ddp] baseline is circular: ddp > single > ddp; break the circle",
    ),
    (
        '[case.ddp]\nranks = [2, 4]\nbaseline = "single"\n[case.single]\nranks = 1\nbatch = [8, 16]',
        "[case.ddp] baseline of ddp[ranks=2] is single, which matches single[batch=8] and single[batch=16];",
    ),
    (
        '[case.ddp]\nscaling = "weak"\nranks = 2',
        "[case.ddp] has one number of ranks and no baseline with fewer; give it a",
    ),
    (
        '[case.ddp]\nscaling = "weak"\nranks = [2, 3]\nbatch = 9',
        "[case.ddp] scaling: ddp[ranks=3] trains on 3 ranks, ddp[ranks=2] on 2 with batch 9, which does not make"
        " a whole",
    ),
    (
        '[case.ddp]\nscaling = "weak"\nranks = 2\nbatch = 9\nbaseline = "single"\n[case.single]\nranks = 1',
        "[case.ddp] batch follows from the baseline's in weak scaling; set it there, and leave it out here",
    ),
    (
        '[case.hsdp]\nscaling = "weak"\nranks = [1, 4]',
        "[case.hsdp] ranks of hsdp[ranks=1] is 1, too few for its options; hsdp needs 4 or more ranks; cpu or cuda",
    ),
    # Levers.
    (
        f'[case.ddp]\nranks = [1, 2]\n[lever.a]\noff = "ddp"\non = "ddp[ranks=2]"\n{CLAIM}',
        '[lever.a] off is "ddp", a table',
    ),
    (
        f'[case.ddp]\n[lever.a]\noff = "ddp"\non = "dp"\n{CLAIM}',
        '[lever.a] on is "dp", which is not a case of the suite; did',
    ),
    (
        f'[case.ddp]\n[lever.a]\noff = "ddp"\non = "ddp"\n{CLAIM}',
        "[lever.a] has ddp for off and for on; name two cases",
    ),
    (
        f'[case.ddp]\n[case.fsdp]\n[lever.a]\noff = "ddp"\non = "fsdp"\n{CLAIM}',
        "[lever.a] compares ddp of block ddp with fsdp of block fsdp, which are not measured in turn; give both",
    ),
    (
        '[case.ddp]\ntrials = [1, 2]\n[lever.a]\noff = "ddp[trials=1]"\non = "ddp[trials=2]"\n'
        'claims = [{ metric = "observatory_run_peak_memory_bytes", low = 1, high = 2, text = "t" }]',
        "[lever.a] claims[0].labels is {}; observatory_run_peak_memory_bytes has the labels account",
    ),
    (
        f'[case.ddp]\ntrials = [1, 2]\n[lever.a]\noff = "ddp[trials=1]"\non = "ddp[trials=2]"\n{CLAIM}'.replace(
            "1.2", "2"
        ),
        "[lever.a] claims[0].low is 2 and high 1.5; low must be at most high",
    ),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[said[:60] for _, said in REFUSED])
def test_what_is_wrong_is_told_with_table_and_key(folder: Path, text: str, said: str) -> None:
    assert _refusal(folder, text).startswith(said)


def test_a_file_of_a_newer_version_is_refused_before_its_keys_are_read(folder: Path) -> None:
    path = folder / "new.toml"
    path.write_text("schema_version = 2\n[unheard_of]\n")
    with pytest.raises(Misuse, match="schema_version is 2, and this program reads 1; use the version of"):
        read_suite(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.toml", b"", "is empty; a suite has a line schema_version = 1 and a table for each case, for"),
        ("comment.toml", b"# nothing else\n", "is empty; a suite has a line schema_version = 1"),
        ("picture.toml", b"\x89PNG\r\n\xff\xfe", ": it is not UTF-8 text; name a TOML file"),
        ("long.toml", b"#" * 1_000_001, ": it has more than 1,000,000 bytes; shorten it"),
        (
            "deep.toml",
            b"a = " + b"[" * 5000,
            ": lists and tables are nested more than 16 deep (at line 1); flatten them",
        ),
        (
            "two words.toml",
            b"schema_version = 1\n[case.ddp]",
            ": the file's name is not a valid suite name, which is a name of",
        ),
    ],
)
def test_a_file_that_is_no_suite_is_refused(folder: Path, name: str, content: bytes, said: str) -> None:
    path = folder / name
    path.write_bytes(content)
    with pytest.raises(Misuse) as caught:
        read_suite(path)
    assert str(caught.value).removeprefix(str(path)).strip().startswith(said)


@pytest.mark.parametrize(
    ("name", "what"),
    [("", "Is a directory"), ("nowhere.toml", "No such file or directory"), ("/dev/zero", "Is a device")],
)
def test_what_is_no_file_is_refused(folder: Path, name: str, what: str) -> None:
    with pytest.raises(Misuse, match=f"{what}; name a TOML file"):
        read_suite(folder / name)
