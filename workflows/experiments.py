"""Runs an experiment: the whole pipeline for each variant of a recipe and each seed, and one page that compares them.

rlvr run experiment [--experiment FILE]

The variants are launched with the pipeline's launch plan, so that each is a separate execution on a cluster. Stages
that they share, such as the difficulty of the same prompts, come from the cache.
"""

from typing import NamedTuple

from flytekit import LaunchPlan, Resources, workflow

from images import DATA
from tasks.evaluation.runs_task import compare_trained
from tasks.flyte.stages import Html, Parquet, uncached_composed
from tasks.inputs.experiments import INITIAL, Experiment, load_quickstart_experiment
from tasks.inputs.preflight import check_variants
from tasks.reporting.task import report_experiment
from workflows.rlvr import rlvr

PIPELINE = LaunchPlan.get_or_create(rlvr)
"""The launch plan of the pipeline, with the same name."""
QUICKSTART = load_quickstart_experiment()


class Experimented(NamedTuple):
    """The outputs of an experiment: the page, and the results of the policies, which are named after their variants."""

    report: Html
    evaluation: Parquet


@uncached_composed(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"), node_dependency_hints=[PIPELINE])
def run_variants(experiment: Experiment) -> Experimented:
    """Run the pipeline with the files of every variant and seed, and compare the trained policies.

    Args:
        experiment: the experiment, whose files have been checked.
    """
    # Nodes have numbers, and not the variants' names, which may be too long: see `workflows.data`.
    results = [
        PIPELINE(data=files.data, training=files.training, evaluation=files.evaluation).with_overrides(
            node_name=f"run-{number}"
        )
        for number, (_, files) in enumerate(experiment.runs)
    ]
    compared = compare_trained(
        runs=[name for name, _ in experiment.runs],
        rollouts=[run.evaluation_rollouts for run in results],
        prompts=results[0].evaluation_prompts,
        baseline=experiment.baseline,
        benchmarks=experiment.variants[experiment.baseline].evaluation.compared,
        initial=INITIAL,
    ).with_overrides(node_name="compare")
    reported = report_experiment(
        experiment=experiment,
        evaluation=compared.evaluation,
        comparison=compared.summary,
        metrics=[run.metrics for run in results],
        summaries=[run.summary for run in results],
    ).with_overrides(node_name="report")
    return Experimented(reported, compared.evaluation)


@workflow
def experiment(experiment: Experiment = QUICKSTART) -> Experimented:
    """Train the variants of an experiment and compare them. The default is the quickstart experiment."""
    checked = check_variants(experiment=experiment).with_overrides(node_name="check")
    return run_variants(experiment=checked).with_overrides(node_name="variants")
