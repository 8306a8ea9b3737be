"""Runs the whole pipeline: preflight, model, model check, data, train, evaluation, report.

rlvr run [--data FILE] [--training FILE] [--evaluation FILE]
"""

from typing import NamedTuple

from flytekit import workflow
from flytekit.types.file import FlyteFile

from tasks.flyte.stages import Folder, Html, JsonLines, Parquet
from tasks.generation.task import prepare_model
from tasks.inputs.files import DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.inputs.preflight import preflight
from tasks.reporting.task import report
from workflows.checking import checking
from workflows.data import compose_data
from workflows.evaluation import compose_evaluation
from workflows.training import compose_training

DATA, TRAINING, EVALUATION = load_quickstart()


class Results(NamedTuple):
    """The outputs of a run. Tables have the columns of `tasks.tables.schemas`."""

    report: Html
    summary: FlyteFile
    policy: Folder
    model: Folder
    prompts: Parquet
    rollouts: Parquet
    graded: Parquet
    selected: Parquet
    compared: Parquet
    mixture: Parquet
    heldout: Parquet
    ledger: Parquet
    metrics: JsonLines
    tensorboard: Folder
    evaluation: Parquet
    evaluation_prompts: Parquet
    evaluation_rollouts: Parquet
    set_aside: Parquet
    set_aside_evaluation: Parquet
    view: Folder


@workflow
def rlvr(
    data: DataFile = DATA,
    training: Recipe = TRAINING,
    evaluation: EvaluationFile = EVALUATION,
) -> Results:
    """Train a model with verifiable rewards and report its gain. The default is the quickstart."""
    checked = preflight(data=data, training=training, evaluation=evaluation).with_overrides(node_name="preflight")
    files = {"data": checked.data, "training": checked.training}
    initial = prepare_model(spec=checked.model).with_overrides(node_name="model")
    verified = checking(model=initial.model, training=checked.training).with_overrides(node_name="model-check")
    curated = compose_data(**files, evaluation=checked.evaluation, model=initial.model).with_overrides(node_name="data")
    verified >> curated.mixture
    trained = compose_training(**files, model=initial.model, mixture=curated.mixture).with_overrides(node_name="train")
    evaluated = compose_evaluation(
        **files, evaluation=checked.evaluation, model=initial.model, policy=trained.policy, heldout=curated.heldout
    ).with_overrides(node_name="evaluation")
    tables = {
        "prompts": curated.prompts,
        "rollouts": curated.rollouts,
        "graded": curated.graded,
        "selected": curated.selected,
        "compared": curated.compared,
        "mixture": curated.mixture,
        "heldout": curated.heldout,
        "ledger": trained.ledger,
        "evaluation": evaluated.evaluation,
        "evaluation_prompts": evaluated.evaluation_prompts,
        "evaluation_rollouts": evaluated.evaluation_rollouts,
        "set_aside": curated.set_aside,
        "set_aside_evaluation": evaluated.set_aside_evaluation,
    }
    reported = report(
        **files,
        written=checked.written,
        tables=tables,
        folders={"model": initial.model, "policy": trained.policy, "view": evaluated.view},
        metrics=trained.metrics,
        summaries=[
            initial.summary,
            verified,
            curated.cleaning,
            curated.rolling_out,
            curated.judging,
            curated.selecting,
            curated.mixing,
            trained.summary,
        ],
        evaluating=evaluated.summaries,
    ).with_overrides(node_name="report")
    return Results(
        report=reported.page,
        summary=reported.summary,
        policy=trained.policy,
        model=initial.model,
        metrics=trained.metrics,
        tensorboard=trained.tensorboard,
        view=evaluated.view,
        **tables,
    )
