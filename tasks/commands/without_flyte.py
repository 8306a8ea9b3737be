"""Trains on a mixture without Flyte, as `rlvr train` does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config.cache_keys import result_options
from tasks.config.loading import parse
from tasks.failures import MistakeError
from tasks.generation.models import ModelSpec, prepare_model
from tasks.inputs.files import DataFile, Recipe
from tasks.inputs.overrides import with_overrides
from tasks.lineage.provenance import made_from
from tasks.machine.gpus import check_types
from tasks.machine.local_ray import start_ray
from tasks.machine.memory_limit import return_freed_memory
from tasks.machine.progress import track_progress
from tasks.machine.resources import has_gpu, read_ray_resources
from tasks.storage.durable import PARTIAL, write_whole
from tasks.storage.locations import resolve_address, resolve_folder
from tasks.storage.model_folder import check_model_folder
from tasks.tables.content_digest import file_digest
from tasks.tables.parquet import read_columns
from tasks.tables.schemas import canonical_json
from tasks.training.records.identity import run_name

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def train_recipe(
    recipe: str,
    overrides: Sequence[str],
    mixture: Path,
    *,
    model: Path | None = None,
    data: str | None = None,
    folder: Path | None = None,
    cluster: str = "local",
) -> dict[str, Path]:
    """Train by a recipe, and return the paths of the results by name.

    Args:
        recipe: a name or a path.
        overrides: options that replace the recipe's, as `KEY=VALUE`.
        mixture: Parquet file of the mixture.
        model: folder of the initial checkpoint, or None for the recipe's.
        data: name or path of the data file, for its verifiers, or None for the recipe's.
        folder: the run folder, or None for the pipeline's.
        cluster: address of a Ray cluster, or `local` for this machine.

    Raises:
        MistakeError: an option is invalid, or the model is refused.
    """
    from tasks.inputs.benchmarks import read_questions
    from tasks.inputs.fingerprints import fingerprint_verifiers
    from tasks.inputs.own_objectives import add_code_digests
    from tasks.inputs.pinning import pin_recipe
    from tasks.inputs.preflight import warn_off_policy
    from tasks.training.control.questions import Benchmark
    from tasks.training.records.shorter_runs import RunLocation, find_run_location
    from tasks.training.run import RunInputs, make_run_folder
    from tasks.training.run_attempt import run_attempt, step_note

    config = add_code_digests(with_overrides(recipe, overrides))
    warn_off_policy(config)
    judging = parse(DataFile, data) if data else config.load_companion(DataFile, recipe)
    verifiers = fingerprint_verifiers(judging.verifiers)
    model = check_model_folder(model) if model else prepare_recipe_model(config.model)
    read_columns(mixture)  # a file that is not a table is refused before anything starts
    inputs = {"model": file_digest(model), "mixture": file_digest(mixture)}
    benchmarks = [Benchmark(benchmark.asked, read_questions(benchmark)) for benchmark in pin_recipe(config).benchmarks]
    digests = [benchmark.digest for benchmark in benchmarks]
    name = run_name(inputs["model"], inputs["mixture"], config.run, verifiers, digests)
    named = RunLocation(folder, resolve_address(folder.name, "")) if folder else None
    location = named or find_run_location(name, config.run, "", open_filesystem)
    make_run_folder(folder := location.folder)
    start_ray(cluster, log_to_driver=False)
    if cluster == "local":
        check_types({"learner.dtype": config.learner.dtype}, {"actors.engine.dtype": config.actors.engine.dtype})
    if config.model_check:
        check_once(config, model, inputs["model"], folder)
    with track_progress("training: steps", config.steps) as advance:

        def on_step(metrics: dict[str, float]) -> None:
            advance(note=step_note(metrics, folder), done=int(metrics["step"]) + 1)

        lineage = made_from(
            "tasks.training.run", inputs=inputs, seed=config.seed, training=config.run, verifiers=verifiers
        )
        judged_by = verifiers.resolve_initial(model)
        inputs_of_run = RunInputs(
            config.run,
            model,
            mixture,
            folder,
            judged_by,
            benchmarks,
            lineage=lineage,
            on_step=on_step,
        )
        result = run_attempt(location, inputs_of_run, open_filesystem, advance)
    results = {"policy": result.policy, "ledger": result.ledger, "metrics": result.metrics}
    return results | ({"responses": folder / "rollouts"} if config.keep_rollouts else {})


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
    from tasks.model_check.options import CheckedOptions

    options = CheckedOptions.from_config(config)
    checked = {"model": digest, "options": result_options(options)}
    record = folder / "model_check.json"
    if record.is_file() and json.loads(record.read_text())["checked"] == checked:
        return
    if read_ray_resources().gpus and not has_gpu():
        raise MistakeError(
            "the model cannot be checked on this machine, as the run has GPUs and this machine has none: start the run "
            f"on a machine of the cluster with a GPU, or run rlvr doctor model-check {model} there and start it "
            "here with model_check=false"
        )
    from tasks.model_check.check import check_model

    figures = {what: apart._asdict() for what, apart in check_model(model, options).items()}
    return_freed_memory()
    with write_whole(record) as partial:
        partial.write_text(json.dumps({"checked": checked, "differences": figures}, indent=2))


def prepare_recipe_model(spec: ModelSpec) -> Path:
    """Return the folder of the model that a recipe names, next to the run folders; prepare it on the first call."""
    digest = hashlib.sha256(canonical_json(result_options(spec.add_fingerprint())).encode()).hexdigest()[:16]
    folder = resolve_folder(f"model-{digest}")
    if not folder.exists():
        # Not `durable.whole`, which would start again: an interrupted download is resumed from this folder.
        partial = folder.with_suffix(PARTIAL)
        partial.mkdir(parents=True, exist_ok=True)
        prepare_model(spec, partial).rename(folder)
    return folder


def open_filesystem(address: str) -> AbstractFileSystem:
    """Return the fsspec file system of an address on blob storage, with the credentials of the environment."""
    from fsspec.core import url_to_fs

    return url_to_fs(address)[0]
