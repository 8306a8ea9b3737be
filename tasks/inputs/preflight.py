"""Defines the pipeline's first task, which finds user errors in seconds that would otherwise fail a run later."""

from __future__ import annotations

import logging
from functools import partial
from typing import Annotated, Any, NamedTuple

from flytekit import FlyteContextManager, Resources

from images import DATA
from tasks.config.loading import SpecError, check_choice
from tasks.difficulty.spec import DifficultySpec
from tasks.environments.conversation import ChatTemplate
from tasks.evaluation.harness_spec import check_installed
from tasks.failures import MistakeError
from tasks.flyte.stages import RESULT, show, uncached_stage
from tasks.generation.config import SamplingConfig
from tasks.generation.models import ModelSpec
from tasks.inputs.contexts import check_contexts
from tasks.inputs.disk_needs import check_disk
from tasks.inputs.environments import check_environment, load_template
from tasks.inputs.evaluations import check_evaluation
from tasks.inputs.experiments import Experiment
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.fingerprints import fingerprint_model
from tasks.inputs.heldout import check_heldout
from tasks.inputs.installed import check_environment_of_run
from tasks.inputs.judges import (
    check_has_judge,
    check_judge,
    check_policy_server,
    check_reward_models,
    report_unjudgeable,
)
from tasks.inputs.memory_needs import check_memory, find_served_judge, judge_gpus
from tasks.inputs.minimal_options import written_options
from tasks.inputs.own_objectives import check_own_functions
from tasks.inputs.own_verifiers import check_own_verifiers
from tasks.inputs.pinning import (
    apply_to_sources,
    fingerprint_data,
    fingerprint_evaluation,
    fingerprint_recipe,
    pin_evaluation_file,
    pin_recipe,
    pin_sources,
)
from tasks.inputs.rewards import check_rewards
from tasks.inputs.stage_pods import check_images
from tasks.inputs.user_modules import check_registered
from tasks.machine.gpus import check_types
from tasks.machine.image import ImageError
from tasks.machine.local_ray import check_machine
from tasks.machine.resources import has_gpu
from tasks.recipe.learner import check_attention, check_liger
from tasks.recipe.routing_replay import check_replayed_episodes, check_routing_replay
from tasks.recipe.run import TrainingConfig
from tasks.sourcing import loaders
from tasks.sourcing.columns import VERIFIERS_OF
from tasks.sourcing.spec import SourceSpec
from tasks.storage.locations import check_folders
from tasks.training.cluster.pods import check_judge_gpus
from tasks.training.telemetry import trackers

logger = logging.getLogger(__name__)

SAMPLING_OF_TRAINING = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "stop_token_ids",
    "guided_regex",
    "chat_template_kwargs",
    "vllm",
)
"""Sampling options that affect a prompt's pass rate, and must therefore be equal in difficulty and training."""


class CheckedFiles(NamedTuple):
    """The three files after the checks, with the revisions and digests that the other tasks need.

    Attributes:
        data: the data file. Branches of the hub are replaced by commits, and sources and models have a digest.
        training: the recipe. The sources of its benchmarks are pinned likewise.
        evaluation: the evaluation file. Its benchmarks and models are pinned likewise.
        model: the recipe's model with a digest of its content.
        written: the non-default options, under `data`, `training` and `evaluation`.
    """

    data: Annotated[DataFile, RESULT]
    training: Annotated[Recipe, RESULT]
    evaluation: Annotated[EvaluationFile, RESULT]
    model: ModelSpec
    written: dict


@uncached_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"), enable_deck=True, deck_fields=())
def preflight(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> CheckedFiles:
    """Check the three files against each other and against the data and models they name, and return them.

    The task is never cached, because it reads files and folders to compute their digests, and queries the hub for the
    commit of every branch. The other tasks only see digests and commits.
    """
    from tasks import charts

    check_registered()
    as_given = training, evaluation
    data = apply_training_sampling(data, training)
    check_together(data, training, evaluation)  # before any request to the hub
    check_images(data, training, evaluation)
    on_this_machine, lacking = _is_on_this_machine(), dict[str, int]()
    if on_this_machine:
        check_machine()
        check_environment_of_run(training.model)
        check_folders()
        check_types({"training: learner.dtype": training.learner.dtype}, _list_engine_types(data, training, evaluation))
    else:
        check_disk(data, training, evaluation)
    check_memory(data, training, on_this_machine=on_this_machine)
    pinned = pin_sources(data)
    training, evaluation = pin_recipe(training), pin_evaluation_file(evaluation)
    first_rows = check(pinned, training, evaluation)
    check_heldout(pinned, first_rows)
    if on_this_machine:
        trackers.check(training.trackers)
        check_liger(training.learner, gpu=has_gpu())
        check_attention(training.learner, gpu=has_gpu())
        check_routing_replay(training, gpu=has_gpu())
        if evaluation.harness:
            check_installed()
        lacking = report_unjudgeable(pinned, first_rows)
    benchmarks = [*evaluation.benchmarks, *training.benchmarks]
    judged = (*pinned.sources, *(benchmark.source for benchmark in benchmarks))
    if any(source.verifiers & set(VERIFIERS_OF["chat"]) for source in judged):
        check_judge(data.verifiers, data.name, on_this_machine=on_this_machine)
    if data.difficulty is not None:
        check_policy_server(data.difficulty.engine, data.name, on_this_machine=on_this_machine)
    for name in data.leave_out:
        logger.warning("%s: source %r is left out (leave_out): none of its rows is read", data.name, name)
    model = fingerprint_model(training.model)
    deck = charts.page(
        _collect_figures(pinned, training, evaluation), charts.render_table(_list_sources(pinned, lacking), "Sources")
    )
    show("preflight", deck)
    return CheckedFiles(
        data=fingerprint_data(pinned),
        training=fingerprint_recipe(training),
        evaluation=fingerprint_evaluation(evaluation),
        model=model,
        written={
            name: written_options(spec, absolute=on_this_machine)
            for name, spec in zip(("data", "training", "evaluation"), (data, *as_given), strict=True)
        },
    )


@uncached_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def check_variants(experiment: Experiment) -> Experiment:
    """Check the files of all variants before the first of them runs, and return the experiment.

    Raises:
        SpecError: as `preflight.check` raises it, after the variant's name.
        ImageError: as `check_images` raises it, after the variant's name.
    """
    for name, files in experiment.variants.items():
        try:
            data = apply_training_sampling(files.data, files.training)
            check_images(data, files.training, files.evaluation)
            check(data, files.training, files.evaluation)
        except (SpecError, ImageError) as error:
            raise type(error)(f"{experiment.name}: variants.{name}: {error}") from None
    return experiment


def _list_engine_types(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> dict[str, str]:
    """Return the option `dtype` of every engine that the pipeline starts, by its name."""
    engines = {"training: actors.engine": training.actors.engine, "evaluation: engine": evaluation.engine}
    if data.difficulty is not None:
        engines[f"{data.name}: difficulty.engine"] = data.difficulty.engine
    types: dict[str, str] = {f"{name}.dtype": engine.dtype for name, engine in engines.items() if engine.server is None}
    judge = find_served_judge(data)
    return types if judge is None else types | {f"{data.name}: verifiers.judge.server.dtype": judge.server.dtype}


def _is_on_this_machine() -> bool:
    """Return whether the other stages also run on this machine, and not in separate pods."""
    state = FlyteContextManager.current_context().execution_state
    return state is not None and state.is_local_execution()


def check(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> dict[str, list[loaders.Row]]:
    """Raise an error for the first problem that would fail a run later, and return sources' first rows by name.

    Raises:
        SpecError: a file or column is missing, a repository on the hub cannot be read, a user-defined reward function
            or verifier cannot be imported or fails on every dummy response, a function of the objective cannot be
            imported, a chat source has no judge, a mixture names an unknown source or domain, a response length does
            not fit into the context of a stage, or a stage's context is longer than a model's.
        ModelError: a model folder is not usable, or neither this machine nor an image contains a package.
    """
    check_together(data, training, evaluation)
    check_own_functions(training)
    names = [source.name for source in data.used_sources]
    benchmarks = [benchmark.source for benchmark in (*evaluation.benchmarks, *training.benchmarks)]
    template = None
    if any(source.environment for source in (*data.used_sources, *benchmarks)):
        template = load_template(training.model, training.sampling.chat_template_kwargs)
    opened = partial(_read_first_rows, data, template)
    first_rows = dict(zip(names, apply_to_sources(data, opened), strict=True))
    for known in data.evaluation_sets:
        loaders.check(known.source)
    for source in benchmarks:
        opened(source)
    for model in (training.model, *evaluation.policies.values()):
        fingerprint_model(model)
    check_contexts(data, training, evaluation)
    return first_rows


def _read_first_rows(data: DataFile, template: ChatTemplate | None, source: SourceSpec) -> list[loaders.Row]:
    """Return the first rows of a source, after testing its functions, verifiers and environment on them."""
    rows = loaders.check(source)
    check_own_verifiers(source, rows, data)
    check_environment(source, rows, data, template)
    check_rewards(source, rows, data)
    return rows


def check_together(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> None:
    """Raise `SpecError` if the three files contradict each other or themselves. Nothing that they name is opened.

    Raises:
        SpecError: as in `check`.
    """
    names = [source.name for source in data.used_sources]
    for source in data.used_sources:
        check_has_judge(source, data)
    check_reward_models(data, [*evaluation.benchmarks, *training.benchmarks])
    for name in data.cleaning.priority:
        check_choice(name, names, f"{data.name}: cleaning.priority", "source")
    if data.cleaning.filters.ground_truths and not any("math" in source.verifiers for source in data.used_sources):
        raise SpecError(f"{data.name}: cleaning.filters.ground_truths: no source has the verifier 'math'")
    for name in data.mixture.sources:
        check_choice(name, names, f"{data.name}: mixture.sources", "source")
    domains = {domain for source in data.used_sources for domain in source.domains}
    for domain in data.mixture.domains:
        check_choice(domain, domains, f"{data.name}: mixture.domains", "domain of a source")
    _check_judge_pods(data, training)
    sampled = {"difficulty": data.difficulty, "evaluation": evaluation}
    for where, spec in sampled.items():
        if spec is not None and spec.sampling.max_tokens >= spec.engine.max_model_len:
            raise SpecError(
                f"{where}: sampling.max_tokens ({spec.sampling.max_tokens}) leaves no room for a prompt in "
                f"engine.max_model_len ({spec.engine.max_model_len})"
            )
    check_evaluation(data, training, evaluation)
    check_replayed_episodes(training, episodes=any(source.environment for source in data.used_sources))
    warn_off_policy(training)
    if data.difficulty is not None:
        _check_alike(data.name, data.difficulty, training)
    elif training.prompts.curriculum is not None:
        raise SpecError(
            f"{data.name}: difficulty is null, so that prompts have no pass rates, which prompts.curriculum of the "
            "training recipe orders them by; give difficulty, or leave the curriculum out"
        )


def warn_off_policy(training: Recipe) -> None:
    """Log a warning if older policies sample what the policy is trained on, and nothing corrects for that."""
    if training.async_steps > 0 and not training.objective.corrects_engine:
        logger.warning(
            "training: async_steps = %d: older policies sample what the policy is trained on, and objective.correction "
            "= none does not correct for that; set kind: tis, or async_steps: 0",
            training.async_steps,
        )


def _check_judge_pods(data: DataFile, training: Recipe) -> None:
    try:
        check_judge_gpus(training, training.cluster, judge_gpus(data, training.benchmarks))
    except MistakeError as error:
        raise SpecError(f"{data.name}: {error}") from None


def _check_alike(name_of_data: str, difficulty: DifficultySpec, training: Recipe) -> None:
    """Raise `SpecError` if difficulty samples differently from training, unless the data file allows it.

    The measured pass rates only apply to training if sampling is the same (OlmoRL, data construction step 2).
    """
    if difficulty.unlike_training:
        return
    pairs = {
        name: (getattr(difficulty.sampling, name), getattr(training.sampling, name)) for name in SAMPLING_OF_TRAINING
    }
    unlike = [
        f"difficulty.sampling.{name} is {measured!r}, and training samples with {trained!r}"
        for name, (measured, trained) in pairs.items()
        if measured != trained
    ]
    if unlike:
        raise SpecError(
            f"{name_of_data}: {'; '.join(unlike)}: pass rates would differ from training; make them equal, or set "
            "difficulty.unlike_training: true"
        )


def apply_training_sampling(data: DataFile, training: Recipe) -> DataFile:
    """Return the data file. If `difficulty` has its default, rollouts use training's sampling options and context."""
    if data.difficulty != DifficultySpec():
        return data
    sampling = training.sampling.model_copy(update={"samples": data.difficulty.sampling.samples})
    context = {"max_model_len": training.actors.engine.max_model_len}
    engine = data.difficulty.engine.model_copy(update=context)
    return data.model_copy(update={"difficulty": DifficultySpec(sampling=sampling, engine=engine)})


def make_unfiltered_spec(training: TrainingConfig) -> DifficultySpec:
    """Return the substitute for a difficulty filter that is null, which only limits the length of prompts."""
    template = training.sampling.chat_template_kwargs
    return DifficultySpec(sampling=SamplingConfig(chat_template_kwargs=template))


def find_longest_prompt(difficulty: DifficultySpec | None, training: TrainingConfig) -> tuple[int, str]:
    """Return the maximum number of prompt tokens in both difficulty and training, and a text that names the bound."""
    measured = (
        {"difficulty.engine.max_model_len": (difficulty.engine.max_model_len, difficulty.sampling.max_tokens)}
        if difficulty is not None
        else {}
    )
    limits = {
        **measured,
        "actors.engine.max_model_len of training": (
            training.actors.engine.max_model_len,
            training.sampling.max_tokens,
        ),
        "learner.micro_batch_tokens of training": (training.learner.micro_batch_tokens, training.sampling.max_tokens),
    }
    name, (limit, response) = min(limits.items(), key=lambda item: item[1][0] - item[1][1])
    tokens = limit - response
    return tokens, f"{tokens} fit with a response of {response} ({name} is {limit})"


def _collect_figures(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> dict[str, str]:
    """Return the key facts about the run, for the deck."""
    return {
        "data": data.name,
        "model": training.model.name,
        "rollouts a prompt": f"{data.difficulty.sampling.samples}" if data.difficulty else "none",
        "kept if mean score is": str(data.difficulty.bounds) if data.difficulty else "not measured",
        "steps": f"{training.steps:,}",
        "groups x samples a step": f"{training.groups_per_step} x {training.sampling.samples}",
        "response limit, tokens": f"{training.sampling.max_tokens:,}",
        "learner ranks, engines": f"{training.learner.ranks}, {training.actors.count}",
        "held-out samples a prompt": f"{evaluation.sampling.samples}",
        "benchmarks": ", ".join(evaluation.names_of_benchmarks) or "none",
        "benchmarks while training": ", ".join(benchmark.name for benchmark in training.benchmarks) or "none",
        "policies": ", ".join(evaluation.names_of_policies),
    }


def _list_sources(data: DataFile, lacking: dict[str, int]) -> list[dict[str, Any]]:
    """Return the deck's table of sources, one row each. `lacking` counts first rows that cannot be scored here."""
    return [
        {
            "source": source.name,
            "domain": ", ".join(sorted(source.domains)),
            "verifier": ", ".join(sorted(source.verifiers)),
            "loader": source.loader.kind,
            "first rows that cannot be scored here": lacking.get(source.name, 0),
        }
        for source in data.sources
    ]
