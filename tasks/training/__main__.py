"""Trains without Flyte: `python -m tasks.training run RECIPE --mixture FILE [KEY=VALUE ...]`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from tasks.config import SpecError, parse, result_options
from tasks.failures import MistakeError, one_line
from tasks.generation.models import ModelSpec, prepare_model
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.lineage.provenance import made_from
from tasks.machine.error_report import run_command
from tasks.machine.local_ray import start_ray
from tasks.machine.progress import track_progress
from tasks.machine.quiet import silence_libraries
from tasks.machine.resources import has_gpu, ray_resources, return_freed_memory
from tasks.storage.durable import PARTIAL, whole
from tasks.storage.locations import address_of, folder_of
from tasks.storage.model_folder import check_model_folder
from tasks.storage.outputs import at_work
from tasks.tables.content_digest import file_digest
from tasks.tables.schemas import canonical_json
from tasks.training.records.identity import run_name
from tasks.training.simulation import roofline
from tasks.training.simulation.plan import Machines
from tasks.training.simulation.plan_table import table
from tasks.training.telemetry.alarms import as_markdown

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

silence_libraries()

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
"""Types of options that name an existing file, or an existing folder."""

SHARE: dict[str, Any] = {"type": click.FloatRange(0.01, 1), "show_default": True}
"""Settings of the command-line options that are fractions of a GPU's peak."""


@click.group()
def main() -> None:
    """Training without Flyte."""


@main.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--mixture", required=True, type=FILE, help="Parquet file of a mixture.")
@click.option("--model", type=FOLDER, help="Folder of the initial checkpoint. By default the recipe's.")
@click.option("--data", help="Data file, for its verifiers: a name or a path. By default the recipe's.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Run folder, to resume an interrupted run from. By default outputs/runs/<digest>, as in the pipeline. Use "
    "another folder for fewer steps than the run in it has taken.",
)
@click.option("--cluster", default="local", show_default=True, help="Address of a Ray cluster; local: this machine.")
def run(
    recipe: str,
    overrides: tuple[str, ...],
    mixture: Path,
    model: Path | None,
    data: str | None,
    folder: Path | None,
    cluster: str,
) -> None:
    """Train by RECIPE, a name or a path, with options that override it: objective.clip_high=0.3.

    The same command resumes an interrupted run, and a larger number of steps continues it. Other options, or fewer
    steps, start another run. The command `check` runs first.
    """
    from tasks.inputs.benchmarks import questions
    from tasks.inputs.fingerprints import fingerprinted
    from tasks.inputs.pinning import pinned_recipe
    from tasks.inputs.preflight import warn_off_policy
    from tasks.training.control.questions import Benchmark
    from tasks.training.records.shorter_runs import RunLocation, location_of_run
    from tasks.training.run import RunInputs, make_run_folder
    from tasks.training.run_attempt import step_note, train_at

    click.get_current_context().with_resource(at_work())
    config = with_overrides(recipe, overrides)
    warn_off_policy(config)
    judging = parse(DataFile, data) if data else config.companion(DataFile)
    verifiers = fingerprinted(judging.verifiers)
    model = check_model_folder(model) if model else prepared(config.model)
    inputs = {"model": file_digest(model), "mixture": file_digest(mixture)}
    benchmarks = [Benchmark(benchmark.asked, questions(benchmark)) for benchmark in pinned_recipe(config).benchmarks]
    digests = [benchmark.digest for benchmark in benchmarks]
    name = run_name(inputs["model"], inputs["mixture"], config.run, verifiers, digests)
    named = RunLocation(folder, address_of(folder.name, "")) if folder else None
    location = named or location_of_run(name, config.run, "", filesystem_of)
    make_run_folder(folder := location.folder)
    start_ray(cluster, log_to_driver=False)
    if config.model_check:
        check_once(config, model, inputs["model"], folder)
    with track_progress("training: steps", config.steps) as advance:

        def on_step(metrics: dict[str, float]) -> None:
            advance(note=step_note(metrics, folder), done=int(metrics["step"]) + 1)

        lineage = made_from(
            "tasks.training.run", inputs=inputs, seed=config.seed, training=config.run, verifiers=verifiers
        )
        judged_by = verifiers.with_initial(model)
        inputs_of_run = RunInputs(
            config.run, model, mixture, folder, judged_by, benchmarks, lineage=lineage, on_step=on_step
        )
        result = train_at(location, inputs_of_run, filesystem_of, advance)
    click.echo(f"policy      {result.policy}\nledger      {result.ledger}\nmetrics     {result.metrics}")
    if config.keep_rollouts:
        click.echo(f"responses   {folder / 'rollouts'}")


@main.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--gpu", type=click.Choice(list(roofline.GPUS)), default="H100", show_default=True)
@click.option("--config", "shape", type=click.Path(path_type=Path), help="config.json of a model that is not known.")
@click.option("--nodes", type=click.IntRange(min=2), help="Find the best split of this number of nodes.")
@click.option("--mean-tokens", type=click.FloatRange(1), help="Mean length of a response. By default 45% of the limit.")
@click.option(
    "--zero-variance",
    default=0.3,
    show_default=True,
    type=click.FloatRange(0, 0.95),
    help="Share of the groups that have no gradient.",
)
@click.option("--mfu", default=Machines.mfu, **SHARE, help="Fraction of a GPU's peak FLOPs that the learner reaches.")
@click.option("--mbu", default=Machines.mbu, **SHARE, help="Fraction of its peak bandwidth that an engine reaches.")
def plan(
    recipe: str,
    overrides: tuple[str, ...],
    gpu: str,
    shape: Path | None,
    nodes: int | None,
    mean_tokens: float | None,
    zero_variance: float,
    mfu: float,
    mbu: float,
) -> None:
    """Compute memory, tokens/s, idle shares, days and pods of RECIPE on GPUs, without using any, and the smallest gains
    that its evaluation detects.

    The controller and the fleet are the real ones, in virtual time. A roofline model gives the speeds of engines and
    learner; nothing is measured.
    """
    from tasks.inputs.detectable_gains import detectable_gains
    from tasks.inputs.pod_table import pod_table
    from tasks.inputs.stage_pods import pods_of_run
    from tasks.training.simulation.plan import Prompts, best_split
    from tasks.training.simulation.plan import plan as planned

    config = with_overrides(recipe, overrides)
    model = roofline.architecture(config.model.source.model_dump(), shape)
    machines = Machines(roofline.GPUS[gpu], config.cluster.gpus_per_node or 8, mfu, mbu)
    prompts = Prompts(mean_tokens, zero_variance)
    if nodes:
        result = best_split(config.run, model, machines, nodes, prompts)
    else:
        result = planned(config.run, model, machines, prompts)
    click.echo(table(recipe, gpu, model, result, config.cluster))
    split = {name: getattr(result.config, name) for name in ("learner", "actors", "placement")}
    data, evaluation = config.companion(DataFile), config.companion(EvaluationFile)
    click.echo(f"\n{pod_table(pods_of_run(data, config.model_copy(update=split), evaluation))}")
    click.echo(f"\n{detectable_gains(data, evaluation)}")


@main.command()
@click.argument("model")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--engine/--no-engine", default=True, show_default=True, help="Compare with an engine, too.")
def check(model: str, overrides: tuple[str, ...], engine: bool) -> None:
    """Check that learner, engine and export have the same policy for MODEL: a folder, or a recipe (which checks the
    recipe's model).

    Options such as learner.dtype=float32 override those in the recipe; a folder uses the quickstart's options.
    """
    from tasks.training.model_check.check import check_model
    from tasks.training.model_check.options import CheckedOptions

    click.get_current_context().with_resource(at_work())
    is_folder = Path(model).is_dir()
    config = with_overrides("quickstart" if is_folder else model, overrides)
    folder = check_model_folder(model) if is_folder else prepared(config.model)
    for what, apart in check_model(folder, CheckedOptions.of(config), engine=engine).items():
        click.echo(f"{apart.nats:10.2g} nats (rounding: {apart.tolerance:.2g}) between {what.rstrip(',')}")


@main.command()
def alarms() -> None:
    """Print docs/alarms.md: the thresholds beyond which a run logs a warning, and what to do."""
    click.echo(as_markdown(), nl=False)


@main.command()
def metrics() -> None:
    """Print docs/metrics.md: every metric that a run records, with its unit and meaning."""
    from tasks.training.metrics_page import metrics_page

    click.echo(metrics_page(), nl=False)


@main.command()
@click.option("--gpu", type=click.Choice(list(roofline.GPUS)), default="H100", show_default=True)
@click.argument("names", nargs=-1, metavar="[RECIPE]...")
def recipes(gpu: str, names: tuple[str, ...]) -> None:
    """Print the table of all included recipes, or of some: their pods, and the memory and hours that plan computes."""
    from tasks.inputs.files import RECIPES
    from tasks.training.recipe_table import HEAD, recipe_row

    click.echo("\n".join(HEAD))
    for name in names or sorted(path.stem for path in RECIPES.glob("*.yaml")):
        click.echo(recipe_row(name, parse(Recipe, name), gpu))


def check_once(config: Recipe, model: Path, digest: str, folder: Path) -> None:
    """Check the model on this machine before the first step of a run.

    A resumed run finds the results of the check in its folder, and does not repeat it.

    Args:
        config: the recipe.
        model: folder of the initial checkpoint.
        digest: digest of the model's files.
        folder: the run folder.

    Raises:
        MistakeError: the run has GPUs, and this machine has none.
    """
    from tasks.training.model_check.options import CheckedOptions

    options = CheckedOptions.of(config)
    checked = {"model": digest, "options": result_options(options)}
    record = folder / "model_check.json"
    if record.is_file() and json.loads(record.read_text())["checked"] == checked:
        return
    if ray_resources().gpus and not has_gpu():
        raise MistakeError(
            "the model cannot be checked on this machine, as the run has GPUs and this machine has none: start the run "
            f"on a machine of the cluster with a GPU, or run python -m tasks.training check {model} there and start it "
            "here with model_check=false"
        )
    from tasks.training.model_check.check import check_model

    click.echo("training: checking learner, engine and export on the model", err=True)
    figures = {what: apart._asdict() for what, apart in check_model(model, options).items()}
    return_freed_memory()
    with whole(record) as partial:
        partial.write_text(json.dumps({"checked": checked, "differences": figures}, indent=2))


def prepared(spec: ModelSpec) -> Path:
    """Return the folder of the model that a recipe names, next to the run folders; prepare it on the first call."""
    digest = hashlib.sha256(canonical_json(result_options(spec.fingerprinted())).encode()).hexdigest()[:16]
    folder = folder_of(f"model-{digest}")
    if not folder.exists():
        # Not `durable.whole`, which would start again: an interrupted download is resumed from this folder.
        partial = folder.with_suffix(PARTIAL)
        partial.mkdir(parents=True, exist_ok=True)
        prepare_model(spec, partial).rename(folder)
    return folder


def filesystem_of(address: str) -> AbstractFileSystem:
    """Return the fsspec file system of an address on blob storage, with the credentials of the environment."""
    from fsspec.core import url_to_fs

    return url_to_fs(address)[0]


def with_overrides(recipe: str, overrides: tuple[str, ...]) -> Recipe:
    """Return the recipe with options replaced by `KEY=VALUE`; values are YAML.

    Raises:
        SpecError: an override has no key, or is invalid (see `load_yaml`).
    """
    given: dict[str, Any] = {"extends": recipe}
    for override in overrides:
        key, sign, value = override.partition("=")
        if not (key and sign):
            raise SpecError(f"{override!r} must be KEY=VALUE, as in objective.clip_high=0.3")
        given[key] = value_of(key, value)
    return parse(Recipe, json.dumps(given, default=str))  # `default=str`: YAML has dates, JSON does not


def value_of(key: str, text: str) -> Any:
    """Return the value that a user wrote for an option, as YAML.

    Raises:
        SpecError: the text is not valid YAML.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"{key} = {text!r}: not valid YAML: {one_line(error)}") from None


if __name__ == "__main__":
    run_command(main)
