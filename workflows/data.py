"""Makes the training mixture from the sources: read, clean, roll out, select, mix.

rlvr run data --model FOLDER [--data FILE] [--training FILE] [--evaluation FILE]
"""

from functools import partial
from typing import Annotated, Any, NamedTuple

from flytekit import Resources, map_task, workflow

from images import DATA
from tasks.cleaning.control_tokens import TOKENIZER_FILES, find_control_tokens
from tasks.cleaning.task import count_questions, merge_sources, screen_prompts
from tasks.difficulty.rollout_tasks import collect_rollouts, judge_rollouts, roll_out, split_prompts
from tasks.difficulty.task import compare_variants, select_prompts, take_all
from tasks.flyte.stages import RESULT, Folder, Parquet, composed, config_digest, read_members
from tasks.generation.task import prepare_model
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.files import DataFile, EvaluationFile, Recipe, list_templates, load_quickstart
from tasks.inputs.handed_on import hand_on_rollouts, hand_on_screening, hand_to_difficulty, list_contents
from tasks.inputs.pin_tasks import pin_data
from tasks.inputs.pinning import check_pinned
from tasks.inputs.preflight import apply_training_sampling, find_longest_prompt, make_unfiltered_spec
from tasks.inputs.stage_pods import make_judging_pod, make_rollout_pod
from tasks.kubernetes.pods import overrides
from tasks.mixing.spec import Limit, Limits
from tasks.mixing.task import check_mixture, mix_prompts
from tasks.rollouts.judged_by import JudgedBy
from tasks.sourcing.loaders import divide_into_batches
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.task import source_prompts
from tasks.tables.schemas import StageSummary
from workflows.questions import sourced_questions

FILES = load_quickstart()

ANY_LENGTH = 2**40
"""Maximum number of characters in a question of an evaluation set, which is effectively unlimited."""


class Curated(NamedTuple):
    """The output tables of the data stages, with the columns of `tasks.tables.schemas`, and the stages' summaries."""

    prompts: Parquet
    rollouts: Parquet
    graded: Parquet
    selected: Parquet
    compared: Parquet
    mixture: Parquet
    heldout: Parquet
    set_aside: Parquet
    cleaning: StageSummary
    rolling_out: StageSummary
    judging: StageSummary
    selecting: StageSummary
    mixing: StageSummary


@composed(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def compose_data(
    model: Folder,
    data: Annotated[DataFile, RESULT],
    training: Annotated[Recipe, RESULT],
    evaluation: Annotated[EvaluationFile, RESULT],
) -> Curated:
    """Make the training mixture and the held-out prompts. Every stage is cached separately.

    Args:
        model: the initial checkpoint, whose pass rates measure difficulty.
        data: the data file.
        training: the recipe, whose `cluster` decides whether pods have GPUs.
        evaluation: the evaluation file. Prompts that contain a question of its benchmarks, or of the recipe's
            validation benchmarks, are counted but kept.
    """
    # Nodes have numbers, not the names in the file: if `data-0-` and a node's name have more than 20 characters
    # together, Flyte replaces them with a hash, and its console never knows the node's state.
    data = apply_training_sampling(data, training)
    benchmarks = _benchmarks(training, evaluation)
    difficulty = data.difficulty or make_unfiltered_spec(training)
    variants = difficulty.compared.values()
    check_pinned(
        "workflows/data.py data",
        data.verifiers,
        [*_sources(data), *(benchmark.source for benchmark in benchmarks)],
        [variant.model for variant in variants if variant.model is not None],
        {"the image of checkers": data.available is None},
    )
    pod = overrides(data.pod)
    filtering = data.difficulty is not None
    room, within = find_longest_prompt(data.difficulty, training)
    handed = hand_to_difficulty(
        model=model, spec=difficulty.rollout_spec, verifiers=data.verifiers, contents=list_contents(model)
    ).with_overrides(node_name="inputs")
    initial, verifiers = handed.model, handed.verifiers
    merged, read = _merged(data, verifiers, find_control_tokens(read_members(model, TOKENIZER_FILES)))
    limits = Limits(
        limits=[
            Limit(source=source.name, prompts=source.limit, seed=source.seed)
            for source in data.used_sources
            if source.top_up is not None and source.limit is not None
        ]
    )
    if benchmarks:
        questions = [known.prompts for known in sourced_questions(benchmarks, pod)]
        asked = count_questions(
            prompts=merged.prompts,
            questions=questions,
            rule=data.cleaning.contamination,
            templates=list_templates([*data.used_sources, *(benchmark.source for benchmark in benchmarks)]),
        ).with_overrides(node_name="asked", **pod)
    checked = check_mixture(
        prompts=merged.prompts, spec=data.mixture, limits=limits, set_aside=[merged.set_aside]
    ).with_overrides(node_name="check", **pod)

    def split_by_length(suffix: str, checkpoint: Any, spec: Any) -> Any:
        """Add the node that splits the prompts that fit into shards, and return its outputs."""
        split = split_prompts(
            prompts=merged.prompts,
            model=checkpoint,
            spec=spec,
            rows=difficulty.shard_prompts,
            room=room,
            within=within,
            available=data.available or [],
            verifiers=verifiers,
        ).with_overrides(node_name=f"split{suffix}", **pod)
        checked >> split.shards
        if benchmarks:
            asked >> split.shards
        return split

    def rolled_out(suffix: str, checkpoint: Any, spec: Any, *, stops: bool = False) -> tuple[Any, Any]:
        """Add the nodes that sample and grade rollouts; return the shards of prompts, and the graded rollouts.

        `stops` says whether verdicts may end the sampling of a prompt early (`spec.stop_at`).
        """
        split = split_by_length(suffix, checkpoint, spec)
        judging = JudgedBy(data.verifiers, "initial").everything if stops else ""
        sampled_in = make_rollout_pod(data, training, difficulty, judges=stops)
        sampled = map_task(
            partial(roll_out, model=checkpoint, spec=spec, judging=judging, initial=initial, verifiers=verifiers),
            concurrency=difficulty.shards_at_once,
        )(prompts=split.shards).with_overrides(node_name=f"roll-out{suffix}", **overrides(sampled_in))
        judged = map_task(partial(judge_rollouts, model=checkpoint, spec=spec, initial=initial, verifiers=verifiers))(
            prompts=split.shards, responses=sampled
        ).with_overrides(node_name=f"judge{suffix}", **overrides(make_judging_pod(data, training, difficulty)))
        collected = collect_rollouts(responses=sampled, rollouts=judged, spec=spec, verifiers=verifiers).with_overrides(
            node_name=f"collect{suffix}", **pod
        )
        return split, collected

    if filtering:
        split, collected = rolled_out("", initial, handed.spec, stops=difficulty.rollout_spec.stop_at is not None)
        graded = select_prompts(
            prompts=merged.prompts,
            rollouts=collected.rollouts,
            set_aside=split.set_aside,
            bounds=difficulty.bounds,
            warn_if_lost=data.warn_if_lost,
        ).with_overrides(node_name="select", **pod)
    else:
        split = split_by_length("", initial, handed.spec)
        graded = collected = take_all(
            prompts=merged.prompts, set_aside=split.set_aside, warn_if_lost=data.warn_if_lost
        ).with_overrides(node_name="select", **pod)
    rollouts_of_variants = []
    for number, variant in enumerate(variants):
        checkpoint = (
            initial
            if variant.model is None
            else prepare_model(spec=variant.model).with_overrides(node_name=f"model-{number}").model
        )
        spec = hand_on_rollouts(spec=difficulty.build_rollout_spec(variant)).with_overrides(
            node_name=f"inputs-{number}"
        )
        rollouts_of_variants.append(rolled_out(f"-{number}", checkpoint, spec)[1].rollouts)
    compared = compare_variants(
        prompts=merged.prompts,
        rollouts=[collected.rollouts, *rollouts_of_variants] if variants else [],
        variants=["initial", *difficulty.compared] if variants else [],
    ).with_overrides(node_name="compare", **pod)
    mixed = mix_prompts(
        graded=graded.selected,
        spec=data.mixture,
        set_aside=[merged.set_aside, split.set_aside, graded.set_aside],
        limits=limits,
        read=read,
        warn_if_lost=data.warn_if_lost,
    ).with_overrides(node_name="mix", **pod)
    return Curated(
        prompts=merged.prompts,
        rollouts=collected.rollouts,
        graded=graded.graded,
        selected=graded.selected,
        compared=compared,
        mixture=mixed.mixture,
        heldout=mixed.heldout,
        set_aside=mixed.set_aside,
        cleaning=merged.summary,
        rolling_out=collected.sampling,
        judging=collected.judging,
        selecting=graded.summary,
        mixing=mixed.summary,
    )


@workflow
def data(
    model: Folder,
    data: DataFile = FILES[0],
    training: Recipe = FILES[1],
    evaluation: EvaluationFile = FILES[2],
) -> Curated:
    """Make the training mixture and the held-out prompts, without the rest of the pipeline."""
    pinned = pin_data(data=data, training=training, evaluation=evaluation).with_overrides(node_name="pin")
    return compose_data(
        model=model, data=pinned.data, training=pinned.training, evaluation=pinned.evaluation
    ).with_overrides(node_name="data")


def _sources(data: DataFile) -> list[SourceSpec]:
    """Return the sources of the prompts and of the evaluation sets."""
    return [*data.used_sources, *(known.source for known in data.evaluation_sets)]


def _benchmarks(training: Recipe, evaluation: EvaluationFile) -> list[BenchmarkFile]:
    """Return the benchmarks of both files. Benchmarks with the same questions are listed once."""
    by_source: dict[str, BenchmarkFile] = {}
    for benchmark in (*evaluation.benchmarks, *training.benchmarks):
        by_source.setdefault(benchmark.source.model_dump_json(), benchmark)
    return list(by_source.values())


def _merged(data: DataFile, verifiers: Any, tokens: list[str]) -> tuple[Any, list[Any]]:
    """Add the nodes that read, screen and merge all sources.

    Return the outputs of `merge_sources`, and the counts of what was read of each batch of sources.
    """
    pod = overrides(data.pod)
    evaluated = [
        source_prompts(batch=batch, content=config_digest(batch), max_prompt_chars=ANY_LENGTH).with_overrides(
            node_name=f"eval-set-{number}", **pod
        )
        for number, batch in enumerate(divide_into_batches([known.source for known in data.evaluation_sets]))
    ]
    screening = data.screening(evaluated=bool(evaluated))
    if screening is not None:
        handed = hand_on_screening(spec=screening).with_overrides(node_name="screening")
    prompts, set_aside, read = [], [], []
    for number, batch in enumerate(divide_into_batches(data.used_sources)):
        sourced = source_prompts(
            batch=batch, content=config_digest(batch), max_prompt_chars=data.max_prompt_chars
        ).with_overrides(node_name=f"source-{number}", **pod)
        prompts.append(sourced.prompts)
        set_aside.append(sourced.set_aside)
        read.append(sourced.read)
        if screening is not None:
            screened = screen_prompts(
                prompts=sourced.prompts,
                evaluation_sets=[known.prompts for known in evaluated],
                spec=handed,
                control_tokens=tokens,
                verifiers=verifiers,
            ).with_overrides(node_name=f"screen-{number}", **pod)
            prompts[-1] = screened.prompts
            set_aside.append(screened.set_aside)
    merged = merge_sources(
        prompts=prompts,
        set_aside=set_aside,
        sources=[source.name for source in data.used_sources],
        spec=data.duplication,
        control_tokens=tokens,
        warn_if_lost=data.warn_if_lost,
    ).with_overrides(node_name="merge", **pod)
    return merged, read
