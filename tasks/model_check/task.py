"""Defines the check of a model before the first rollout as a Flyte task."""

from __future__ import annotations

from typing import Annotated

from flytekit import Resources

from images import TRAINING
from tasks.flyte.stages import RESULT, Folder, Stopwatch, show, shown_stage, to_local
from tasks.machine.image import check_image_of_pod
from tasks.machine.memory_limit import return_freed_memory
from tasks.machine.resources import process_resources
from tasks.model_check.options import CheckedOptions
from tasks.tables.schemas import StageSummary

STAGE = "model check"
"""Name of the stage."""


@shown_stage(container_image=TRAINING, requests=Resources(cpu="2", mem="8Gi"))
def check_model(model: Folder, options: Annotated[CheckedOptions, RESULT]) -> StageSummary:
    """Check that learner, the model's own forward pass, export and engine have the same policy.

    Args:
        model: the initial checkpoint.
        options: options of the run's learner and engines.

    Raises:
        ModelCheckError, ModelError, EngineOptionsError, WeightsNotTakenError: the run would not train the policy that
            samples; the message names the likely cause.
        OwnFunctionError: a loss or an advantage function of the user's cannot be used.
    """
    from tasks import charts
    from tasks.model_check.check import check_model as check

    check_image_of_pod()  # before the learner is checked
    watch = Stopwatch(STAGE)
    differences = check(to_local(model), options)
    return_freed_memory()  # locally, the stages after this one run in the same process
    rows = [
        {"between": what.rstrip(","), "nats": f"{apart.nats:.2g}", "rounding": f"{apart.tolerance:.2g}"}
        for what, apart in differences.items()
    ]
    largest = max(differences.values(), key=lambda apart: apart.nats / apart.tolerance)
    figures = {"comparisons": f"{len(rows)}", "largest difference": f"{largest.nats:.2g} nats"}
    show(STAGE, charts.page(figures, charts.render_table(rows, "Differences of log-probabilities")))
    return watch.summary(
        f"learner, engine and export agree: at most {largest.nats:.2g} nats apart; rounding explains up to "
        f"{largest.tolerance:.2g}",
        on=process_resources(),
        differences={what: apart.nats for what, apart in differences.items()},
    )
