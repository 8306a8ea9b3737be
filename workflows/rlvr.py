"""The whole pipeline: source, difficulty, mix, train, evaluate, report.

pyflyte run workflows/rlvr.py rlvr [--data FILE] [--training FILE] [--evaluation FILE]
"""

from typing import NamedTuple

from flytekit import workflow
from flytekit.types.file import FlyteFile

from tasks.difficulty.task import roll_out, select_prompts
from tasks.evaluation.spec import EvaluationConfig
from tasks.evaluation.task import compare_policies, evaluate_policy
from tasks.generation.task import prepare_model
from tasks.mixing.task import check_mixture, mix_prompts
from tasks.platform import Folder, Html, JsonLines, Parquet
from tasks.preflight import plan
from tasks.reporting.task import build_report, publish
from tasks.sourcing.task import source_all
from tasks.spec import DataFile, Recipe, quickstart
from tasks.training.task import train_policy

DATA, TRAINING, EVALUATION = quickstart()


class Results(NamedTuple):
    """What a run leaves behind; tables have the columns of `tasks.schemas`."""

    report: Html
    summary: FlyteFile
    policy: Folder
    model: Folder
    prompts: Parquet
    rollouts: Parquet
    graded: Parquet
    kept: Parquet
    mixture: Parquet
    heldout: Parquet
    ledger: Parquet
    metrics: JsonLines
    tensorboard: Folder
    before: Parquet
    after: Parquet
    evaluation: Parquet
    rejected_sourcing: Parquet
    rejected_rollouts: Parquet
    rejected_difficulty: Parquet
    rejected_evaluation: Parquet


@workflow
def rlvr(
    data: DataFile = DATA,
    training: Recipe = TRAINING,
    evaluation: EvaluationConfig = EVALUATION,
) -> Results:
    """Train a model with verifiable rewards and say what it gained. Without arguments: the quickstart."""
    planned = plan(data=data, training=training, evaluation=evaluation)
    initial = prepare_model(spec=planned.model)

    sourced = source_all(spec=planned.sources)
    checked = check_mixture(prompts=sourced.prompts, spec=planned.mixture)
    sampled = roll_out(prompts=checked, model=initial.model, spec=planned.rollouts, verifiers=planned.verifiers)
    graded = select_prompts(prompts=sourced.prompts, rollouts=sampled.rollouts, max_pass_rate=planned.max_pass_rate)
    mixed = mix_prompts(graded=graded.kept, spec=planned.mixture)

    trained = train_policy(
        model=initial.model, mixture=mixed.mixture, config=planned.training, verifiers=planned.verifiers
    )

    before = evaluate_policy(
        policy=initial.model,
        prompts=mixed.heldout,
        config=planned.evaluation,
        initial=initial.model,
        verifiers=planned.verifiers,
    )
    after = evaluate_policy(
        policy=trained.policy,
        prompts=mixed.heldout,
        config=planned.evaluation,
        initial=initial.model,
        verifiers=planned.verifiers,
    )
    compared = compare_policies(before=before.rollouts, after=after.rollouts, prompts=mixed.heldout)

    summaries = [
        initial.summary,
        sourced.summary,
        sampled.summary,
        graded.summary,
        mixed.summary,
        trained.summary,
        before.summary,
        after.summary,
        compared.summary,
    ]
    report = build_report(
        title=planned.title,
        model=planned.model_name,
        data=planned.data_shown,
        training=planned.training_shown,
        max_pass_rate=planned.max_pass_rate,
        rejected=[sourced.rejected, sampled.rejected, graded.rejected],
        graded=graded.graded,
        mixture=mixed.mixture,
        heldout=mixed.heldout,
        ledger=trained.ledger,
        metrics=trained.metrics,
        before=before.rollouts,
        after=after.rollouts,
        evaluation=compared.evaluation,
        summaries=summaries,
    )
    summary = publish(
        page=report.page,
        tables={
            "prompts": sourced.prompts,
            "rollouts": sampled.rollouts,
            "graded": graded.graded,
            "kept": graded.kept,
            "mixture": mixed.mixture,
            "heldout": mixed.heldout,
            "ledger": trained.ledger,
            "before": before.rollouts,
            "after": after.rollouts,
            "evaluation": compared.evaluation,
            "rejected_sourcing": sourced.rejected,
            "rejected_rollouts": sampled.rejected,
            "rejected_difficulty": graded.rejected,
            "rejected_evaluation": before.rejected,
        },
        folders={"model": initial.model, "policy": trained.policy},
        metrics=trained.metrics,
        summaries=[*summaries, report.summary],
    )
    return Results(
        report=report.page,
        summary=summary,
        policy=trained.policy,
        model=initial.model,
        prompts=sourced.prompts,
        rollouts=sampled.rollouts,
        graded=graded.graded,
        kept=graded.kept,
        mixture=mixed.mixture,
        heldout=mixed.heldout,
        ledger=trained.ledger,
        metrics=trained.metrics,
        tensorboard=trained.tensorboard,
        before=before.rollouts,
        after=after.rollouts,
        evaluation=compared.evaluation,
        rejected_sourcing=sourced.rejected,
        rejected_rollouts=sampled.rejected,
        rejected_difficulty=graded.rejected,
        rejected_evaluation=before.rejected,
    )
