"""Evaluates policies on the same held-out prompts and benchmarks, and compares them.

rlvr run evaluate --model FOLDER --policy FOLDER --heldout FILE [--evaluation FILE]
"""

from itertools import count
from typing import Annotated, Any, NamedTuple

from flytekit import Resources, workflow

from images import DATA
from tasks.evaluation.harness_task import evaluate_by_harness
from tasks.evaluation.spec import check_server
from tasks.evaluation.task import compare_policies, evaluate_policy
from tasks.flyte.stages import RESULT, Folder, Parquet, composed
from tasks.generation.task import prepare_model
from tasks.inputs.evaluations import add_digests
from tasks.inputs.files import DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.inputs.handed_on import hand_on_benchmark, hand_to_evaluation, list_contents
from tasks.inputs.pin_tasks import pin_evaluation
from tasks.inputs.pinning import check_pinned
from tasks.inputs.stage_pods import make_evaluation_pod
from tasks.kubernetes.pods import overrides
from tasks.tables.schemas import AFTER, BEFORE, StageSummary
from tasks.view.task import bundle_responses, empty_view
from workflows.questions import sourced_questions

FILES = load_quickstart()


class Comparison(NamedTuple):
    """The outputs of an evaluation. Tables have the columns of `tasks.tables.schemas`.

    `view` is a folder of static files with the responses, or with a note if the evaluation file does not set `view`.
    """

    evaluation: Parquet
    evaluation_prompts: Parquet
    evaluation_rollouts: Parquet
    set_aside_evaluation: Parquet
    view: Folder
    summaries: list[StageSummary]


@composed(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def compose_evaluation(
    model: Folder,
    policy: Folder,
    heldout: Parquet,
    data: Annotated[DataFile, RESULT],
    training: Annotated[Recipe, RESULT],
    evaluation: Annotated[EvaluationFile, RESULT],
) -> Comparison:
    """Sample and score the initial checkpoint, the trained policy and any others, and compare them.

    Args:
        model: the initial checkpoint, which is also the judge if `data` says so.
        policy: the trained policy.
        heldout: prompts that no policy was trained on.
        data: the data file, for its verifiers.
        training: the recipe, whose `cluster` decides whether pods have GPUs.
        evaluation: the benchmarks, the sampling options, and the other policies.
    """
    check_server(evaluation)
    sources = [benchmark.source for benchmark in evaluation.benchmarks]
    files = {"a file of a benchmark": add_digests(evaluation) != evaluation}
    check_pinned("workflows/evaluation.py evaluation", data.verifiers, sources, evaluation.policies.values(), files)
    pod = overrides(make_evaluation_pod(data, training, evaluation))
    sourced = sourced_questions(evaluation.benchmarks, overrides(data.pod))
    questions = [known.prompts for known in sourced]
    # Names of nodes are short, because they are prefixed with `evaluation-0-`, and have numbers: see `workflows.data`.
    handed = hand_to_evaluation(
        model=model,
        policy=policy,
        heldout=heldout,
        config=evaluation.of_a_policy,
        verifiers=data.verifiers,
        contents=list_contents(model, policy, heldout),
    ).with_overrides(node_name="inputs")
    checkpoints = _checkpoints(handed.model, handed.policy, training, evaluation)
    evaluated = {
        name: evaluate_policy(
            policy=checkpoint,
            prompts=handed.heldout,
            config=handed.config,
            initial=handed.model,
            verifiers=handed.verifiers,
            questions=questions,
            asked=evaluation.asked,
        ).with_overrides(node_name=name if name in (BEFORE, AFTER) else f"eval-{number}", **pod)
        for number, (name, checkpoint) in enumerate(checkpoints.items())
    }
    number = count()
    asked_by_harness = [
        hand_on_benchmark(benchmark=benchmark).with_overrides(node_name=f"in-{index}")
        for index, benchmark in enumerate(evaluation.harness)
    ]
    harnessed = {
        name: [
            evaluate_by_harness(policy=checkpoint, benchmark=benchmark, engine=handed.engine).with_overrides(
                node_name=f"lm-{next(number)}", **pod
            )
            for benchmark in asked_by_harness
        ]
        for name, checkpoint in checkpoints.items()
    }
    of_policy = {
        name: evaluated[evaluation.find_first_name(name, training.model)] for name in evaluation.names_of_policies
    }
    compared = compare_policies(
        policies=list(of_policy),
        rollouts=[done.rollouts for done in of_policy.values()],
        prompts=handed.heldout,
        baseline=evaluation.baseline,
        questions=[*questions, *(done.questions for done in harnessed[BEFORE])],
        benchmarks=evaluation.compared,
        set_aside=[evaluated[BEFORE].set_aside, *(known.set_aside for known in sourced)],
        further=[
            done.rollouts
            for name in evaluation.names_of_policies
            for done in harnessed[evaluation.find_first_name(name, training.model)]
        ],
    ).with_overrides(node_name="compare")
    viewed = empty_view()
    if evaluation.view:
        viewed = bundle_responses(
            evaluation=compared.evaluation, prompts=compared.prompts, rollouts=compared.rollouts
        ).with_overrides(node_name="view")
    return Comparison(
        evaluation=compared.evaluation,
        evaluation_prompts=compared.prompts,
        evaluation_rollouts=compared.rollouts,
        set_aside_evaluation=compared.set_aside,
        view=viewed,
        summaries=[
            *(done.summary for done in evaluated.values()),
            *(done.summary for of_one in harnessed.values() for done in of_one),
            compared.summary,
        ],
    )


@workflow
def evaluation(
    model: Folder,
    policy: Folder,
    heldout: Parquet,
    data: DataFile = FILES[0],
    training: Recipe = FILES[1],
    evaluation: EvaluationFile = FILES[2],
) -> Comparison:
    """Compare the initial checkpoint, a trained policy and any others, without the rest of the pipeline."""
    pinned = pin_evaluation(data=data, training=training, evaluation=evaluation).with_overrides(node_name="pin")
    return compose_evaluation(
        model=model,
        policy=policy,
        heldout=heldout,
        data=pinned.data,
        training=pinned.training,
        evaluation=pinned.evaluation,
    ).with_overrides(node_name="evaluation")


def _checkpoints(model: Any, policy: Any, training: Recipe, evaluation: EvaluationFile) -> dict[str, Any]:
    """Return the model folder of every policy by name. If several names have the same model, one of them suffices."""
    others = {
        name: prepare_model(spec=spec).with_overrides(node_name=f"load-{number}").model
        for number, (name, spec) in enumerate(evaluation.policies.items())
        if name in evaluation.evaluated(training.model)
    }
    return {BEFORE: model, AFTER: policy, **others}
