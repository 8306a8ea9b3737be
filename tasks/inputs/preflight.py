"""Everything that can be known to be wrong before expensive work starts, found in one place in seconds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from flytekit import FlyteContextManager, Resources

from images import DATA
from tasks.config import SpecError
from tasks.difficulty.spec import DifficultySpec, Variant
from tasks.evaluation.spec import EvaluationSpec
from tasks.flyte.stages import show, uncached_stage
from tasks.generation.models import HubModel, ModelError, ModelSpec, PackagedGguf
from tasks.inputs.estimate import estimate
from tasks.inputs.files import DataFile, Recipe
from tasks.lineage.code_digest import LOCK, pinned_version
from tasks.sourcing import loaders
from tasks.sourcing.columns import VERIFIERS_OF
from tasks.sourcing.hub import resolve_revision
from tasks.sourcing.spec import SourceSpec
from tasks.tables.content_digest import file_digest
from tasks.training.config import TrainingConfig
from tasks.training.telemetry import trackers
from tasks.verifiers import VerifiersConfig, functions


class Plan(NamedTuple):
    data: DataFile
    training: Recipe
    evaluation: EvaluationSpec
    model: ModelSpec
    shown: dict


@uncached_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"), enable_deck=True, deck_fields=())
def plan(data: DataFile, training: Recipe, evaluation: EvaluationSpec) -> Plan:
    """Check the three files against each other and against what they name, and pass them on.

    Never cached: it looks at files and folders, whose digests it passes on, and asks the hub which commits its branches
    are, so that the other tasks see commits. `shown` holds what the user wrote of the files, for the report.
    """
    from tasks import charts

    planned = data.model_copy(
        update={
            "sources": [loaders.pinned(source) for source in data.sources],
            "difficulty": data.difficulty.model_copy(update={"compared": _fingerprinted_variants(data)}),
            "evaluation_sets": [
                each.model_copy(update={"loader": loaders.pinned(each.source).loader}) for each in data.evaluation_sets
            ],
        }
    )
    check(planned, training, evaluation)
    if _is_here():
        trackers.check(training.trackers)
    model = fingerprinted_model(training.model)
    show("plan", charts.page(_figures(planned, training, evaluation), charts.table(_sources(planned), "Sources")))
    say_duration(planned, training, evaluation)
    return Plan(
        data=planned.model_copy(update={"verifiers": fingerprinted(data.verifiers)}),
        training=training,
        evaluation=evaluation,
        model=model,
        shown={"data": _shown(data), "training": _shown(training), "evaluation": _shown(evaluation)},
    )


def say_duration(data: DataFile, training: Recipe, evaluation: EvaluationSpec) -> None:
    """Say on the terminal how long the run will take, where it runs on this machine: on a cluster, others compute."""
    if _is_here() and (line := estimate(data, training, evaluation)) is not None:
        print(line, file=sys.stderr, flush=True)


def _is_here() -> bool:
    """Whether the other stages run on this machine, too."""
    state = FlyteContextManager.current_context().execution_state
    return state is not None and state.is_local_execution()


def check(data: DataFile, training: Recipe, evaluation: EvaluationSpec) -> None:
    """Raise one error for the first thing that would fail later.

    Raises:
        SpecError: a missing file or column, a repository of the hub that cannot be read, a reward function that cannot
            be imported, chat without a judge, a mixture of sources that are not there, a response length that one stage
            cannot hold.
        ModelError: a model folder that is not usable, a package that neither this machine nor an image holds.
    """
    names = [source.name for source in data.sources]
    for source in data.sources:
        loaders.check(source)
        _check_judges(source, data)
    _check_cleaning(data, names)
    for name in data.mixture.sources:
        if name not in names:
            raise SpecError(
                f"{data.name}: mixture.sources: no source is called {name!r}; there are: {', '.join(names)}"
            )
    present = {domain for source in data.sources for domain in source.domains}
    for domain in data.mixture.domains:
        if domain not in present:
            raise SpecError(
                f"{data.name}: mixture.domains: no source has the domain {domain!r}; there are: "
                f"{', '.join(sorted(present))}"
            )
    for where, engine, sampling in (
        ("difficulty", data.difficulty.engine, data.difficulty.sampling),
        ("evaluation", evaluation.engine, evaluation.sampling),
    ):
        if sampling.max_tokens >= engine.max_model_len:
            raise SpecError(
                f"{where}: sampling.max_tokens ({sampling.max_tokens}) leaves no room for a prompt in "
                f"engine.max_model_len ({engine.max_model_len})"
            )
    _check_alike(data, training)
    fingerprinted_model(training.model)


def _check_alike(data: DataFile, training: Recipe) -> None:
    """Pass rates tell what training will see where both sample alike (OlmoRL, data construction step 2)."""
    if data.difficulty.unlike_training:
        return
    for name in (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "stop_token_ids",
        "guided_regex",
        "chat_template_kwargs",
    ):
        there, here = (getattr(each.sampling, name) for each in (training, data.difficulty))
        if there != here:
            raise SpecError(
                f"{data.name}: difficulty.sampling.{name} is {here!r}, and training samples with {there!r}: pass rates "
                "would not be those of training; make them equal, or say difficulty.unlike_training: true"
            )


def longest_prompt(difficulty: DifficultySpec, training: TrainingConfig) -> tuple[int, str]:
    """How many tokens a prompt may have in difficulty and in training, and what sets that bound."""
    limits = {
        "difficulty.engine.max_model_len": (difficulty.engine.max_model_len, difficulty.sampling.max_tokens),
        "actors.engine.max_model_len of training": (
            training.actors.engine.max_model_len,
            training.sampling.max_tokens,
        ),
        "learner.micro_batch_tokens of training": (training.learner.micro_batch_tokens, training.sampling.max_tokens),
    }
    name, (limit, response) = min(limits.items(), key=lambda item: item[1][0] - item[1][1])
    room = limit - response
    return room, f"{room} fit beside a response of {response} ({name} is {limit})"


def _fingerprinted_variants(data: DataFile) -> dict[str, Variant]:
    """Those that difficulty compares, with what tells the content of their models."""
    return {
        name: variant
        if variant.model is None
        else variant.model_copy(update={"model": fingerprinted_model(variant.model)})
        for name, variant in data.difficulty.compared.items()
    }


def _check_cleaning(data: DataFile, names: list[str]) -> None:
    for each in data.evaluation_sets:
        loaders.check(each.source)
    if data.cleaning.filters.ground_truths and not any("math" in source.verifiers for source in data.sources):
        raise SpecError(f"{data.name}: cleaning.filters.ground_truths: no source has the verifier 'math'")
    for name in data.cleaning.priority:
        if name not in names:
            raise SpecError(
                f"{data.name}: cleaning.priority: no source is called {name!r}; there are: {', '.join(names)}"
            )


def fingerprinted_model(spec: ModelSpec) -> ModelSpec:
    """The model with what tells its content: a digest of files that lie here, a commit, or the version of a package.

    A package of weights lies in the image of the stage that loads it, and not in this task's: its version is that in
    the pins of the images, and that stage finds the file before a rollout is sampled.

    Raises:
        ModelError, SpecError: see `check`.
    """
    source = spec.source
    if isinstance(source, HubModel):
        commit = resolve_revision(source.name, source.revision, kind="model", where="model: source")
        return spec.model_copy(update={"source": source.model_copy(update={"revision": commit})})
    if not isinstance(source, PackagedGguf) or source.folder() is not None:
        return spec.fingerprinted()
    version = pinned_version(source.package)
    if version is None:
        raise ModelError(
            f"model: package {source.package!r} is not installed here, and {LOCK} gives no version of it for an "
            "image to hold"
        )
    return spec.model_copy(update={"fingerprint": f"{source.package}=={version}"})


def _check_judges(source: SourceSpec, data: DataFile) -> None:
    where = f"{data.name}: source {source.name!r}"
    for reward in source.rewards:
        if reward.function is not None and (missing := functions.missing_resources({"function": reward.function})):
            raise SpecError(f"{where}: {missing[0]}")
    if source.verifiers & set(VERIFIERS_OF["chat"]) and data.verifiers.judge is None:
        raise SpecError(
            f"{where}: chat needs a judge: give verifiers.judge (a model to serve, or the URL of an OpenAI-compatible "
            "endpoint)"
        )


def fingerprinted(verifiers: VerifiersConfig) -> VerifiersConfig:
    """The same with a digest of the judge's model where that is a folder, so that a changed one misses the cache."""
    judge = verifiers.judge
    if (
        judge is None
        or judge.fingerprint is not None
        or getattr(judge, "url", None) is not None
        or not Path(judge.model).is_dir()
    ):
        return verifiers
    return verifiers.model_copy(update={"judge": judge.model_copy(update={"fingerprint": file_digest(judge.model)})})


def _figures(data: DataFile, training: Recipe, evaluation: EvaluationSpec) -> dict[str, str]:
    """The size of what will be done, for the deck."""
    return {
        "data": data.name,
        "model": training.model.name,
        "rollouts a prompt": f"{data.difficulty.sampling.samples}",
        "kept below": f"{data.difficulty.max_pass_rate:.1%}",
        "steps": f"{training.steps:,}",
        "groups x samples a step": f"{training.groups_per_step} x {training.sampling.samples}",
        "response limit, tokens": f"{training.sampling.max_tokens:,}",
        "learner ranks, engines": f"{training.learner.ranks}, {training.actors.count}",
        "held-out samples a prompt": f"{evaluation.sampling.samples}",
    }


def _sources(data: DataFile) -> list[dict[str, Any]]:
    return [
        {
            "source": each.name,
            "domain": ", ".join(sorted(each.domains)),
            "verifier": ", ".join(sorted(each.verifiers)),
            "loader": each.loader.kind,
        }
        for each in data.sources
    ]


def _shown(spec: Any) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude_unset=True)
