"""Defines the Flyte tasks that check a cluster in the training pods and a data pod, and combine the results."""

from __future__ import annotations

from typing import Any

from flytekit import FlyteContextManager, Resources

from images import DATA, TRAINING
from tasks.cluster_check import checks
from tasks.flyte.stages import Stopwatch, find_storage_location, show, uncached_stage
from tasks.gpu_check.results import format_table
from tasks.inputs.files import DataFile, Recipe
from tasks.tables.schemas import StageSummary
from tasks.training.task import CLUSTER

STAGE = "cluster check"
"""Name of the stage."""

FOLDER = "cluster-check"
"""Name of the folder, next to the folders of runs, that is used to check storage."""


@uncached_stage(container_image=TRAINING, task_config=CLUSTER, requests=Resources(cpu="4", mem="32Gi"))
def check_machines(data: DataFile, training: Recipe) -> str:
    """Check the machines that training would use and the services they reach, and return the results as JSON.

    A failed check is a result and not an error, so that `conclude` gets the results of all pods.

    Args:
        data: the data file, for the verifiers and the judge.
        training: the recipe that requests these machines.
    """
    state = FlyteContextManager.current_context().execution_state
    is_local = state is not None and state.is_local_execution()
    machines = checks.collect_node_facts(sandbox=checks.needs_sandbox(data))
    storage = find_storage_location(FOLDER)
    return checks.run_checks(checks.make_machine_checks(data, training, machines, storage, on_this_machine=is_local))


@uncached_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def check_pod(data: DataFile, training: Recipe) -> str:
    """Check the pod of a data stage and the services it reaches, and return the results as JSON.

    Args:
        data: the data file, for its sources and judges.
        training: the recipe, for its model and trackers.
    """
    from tasks.cluster_check.nodes import facts

    return checks.run_checks(checks.make_pod_checks(data, training, facts()))


@uncached_stage(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"), enable_deck=True, deck_fields=())
def conclude(results: list[str]) -> StageSummary:
    """Show and print the table of all checks.

    Args:
        results: what the checking tasks returned.

    Raises:
        ClusterCheckError: a check failed. The message contains the messages of the failed checks.
    """
    from tasks import charts

    watch = Stopwatch(STAGE)
    all_results = checks.parse_results(results)
    counts: dict[str, Any] = {
        status: sum(result.status == status for result in all_results) for status in ("passed", "failed", "skipped")
    }
    show(
        STAGE,
        charts.page(
            {name: str(count) for name, count in counts.items()},
            charts.render_table(checks.make_deck_rows(all_results), "Checks"),
        ),
    )
    print(format_table(all_results), flush=True)
    checks.require_all(all_results)
    return watch.summary(f"{counts['passed']} checks passed, {counts['skipped']} were skipped", **counts)
