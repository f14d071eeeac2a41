"""`observatory suite render`: writes the manifests with which a cluster runs a suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.options import NamedPath, NamedText, nodes_options
from bench.cli.suite.plan import BUDGET, ONLY, SETTINGS, SUITE
from bench.errors import InfrastructureFailed, Misuse, say
from bench.store.files import read_small
from collectors.files import write_named

if TYPE_CHECKING:
    from bench.engines.kubernetes.manifests import Form


@click.command(name="render")
@SUITE
@SETTINGS
@ONLY
@BUDGET
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["kubernetes"]),
    default="kubernetes",
    show_default=True,
    help="Engine that the manifests are for.",
)
@click.option(
    "--engine-file",
    type=NamedPath(),
    metavar="FILE",
    help="TOML file with image, volume and pods (docs/clusters/kubernetes.md).",
)
@nodes_options
@click.option(
    "--as",
    "form",
    type=click.Choice(["jobset", "trainjob"]),
    default="jobset",
    show_default=True,
    help="Kind of manifest: a JobSet, or a TrainJob of Kubeflow Trainer with its runtime.",
)
@click.option(
    "--key-secret", metavar="NAME", type=NamedText(), help="Existing Secret with the key.  [default: a new Secret]"
)
@click.option(
    "--output", type=NamedPath(is_folder=False), metavar="FILE", help="Output file.  [default: standard output]"
)
def render(
    suite_name: str,
    settings: tuple[str, ...],
    only: tuple[str, ...],
    budget_s: float | None,
    engine_name: str,
    engine_file: Path | None,
    nodes: int,
    ranks_per_node: int | None,
    form: Form,
    key_secret: str | None,
    output: Path | None,
) -> None:
    """Write manifests for kubectl that run a suite in pods.

    The manifests hold a Secret with a new key, so only the owner can read the output file. The command starts nothing.

    \b
    Example:
      observatory suite render scaling --nodes 4 --ranks-per-node 8 \\
        --engine-file kubernetes.toml
    """
    from bench.engines.cluster import Capacity
    from bench.engines.kubernetes.manifests import SuiteJob, as_yaml, check_nodes, manifests
    from bench.engines.kubernetes.settings import read_kubernetes_settings
    from bench.report.table import to_reader
    from bench.session.case_args import node_of
    from bench.suite.file import read_suite
    from bench.suite.form.document import find_suite, shipped_suites
    from bench.suite.plan import chosen, plan_suite

    path = find_suite(suite_name)
    suite = read_suite(path, settings)
    names = chosen(suite, only)
    counts = [
        (case.name, None if case.args.ranks is None else case.args.ranks[0])
        for case in suite.cases
        if case.name in names
    ]
    check_nodes(suite.name, counts, nodes, ranks_per_node)
    words = [
        word for option, texts in (("--set", settings), ("--only", only)) for text in texts for word in (option, text)
    ]
    job = SuiteJob(
        suite=suite.name,
        file=None if path in shipped_suites().values() else read_small(path).decode(),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        settings=read_kubernetes_settings(engine_file),
        words=words if budget_s is None else [*words, "--budget", f"{budget_s:g}s"],
        key_secret=key_secret,
    )
    pod = Capacity(whose="a pod", asks="", gpus=("GPU",) * job.gpus)
    planned = plan_suite(suite, node_of(pod, nodes, ranks_per_node), "")  # Refuses the same as the first pod would.
    of_pods = [
        planned_case
        for planned_case in planned.cases
        if planned_case.suite_case.name in names and planned_case.possible is not None
    ]
    if refused := [
        f"{planned_case.suite_case.name}: {planned_case.refusal}"
        for planned_case in of_pods
        if planned_case.refusal is not None
    ]:
        if len(refused) == len(of_pods):
            raise Misuse(f"no case of suite {suite.name} can run in these pods: {refused[0]}")
        say(f"{len(refused)} of {len(of_pods)} cases cannot run in these pods, and will be skipped: {refused[0]}")
    text = as_yaml(manifests(job, form))
    if output is None:
        with to_reader():
            click.echo(text, nl=False)
        return
    try:
        write_named(output, text.encode(), mode=0o600)
    except OSError as error:
        raise InfrastructureFailed(
            f"{output} cannot be written: {error.strerror}; name another with --output"
        ) from None
