"""Defines the Flyte task that writes the responses of an evaluation as a folder of static files."""

from __future__ import annotations

from pathlib import Path

from flytekit import Resources

from images import DATA
from tasks.flyte.stages import Folder, Parquet, make_output_folder, make_scratch_path, stage, to_local
from tasks.view.bundle import NOT_WANTED, README


@stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def bundle_responses(evaluation: Parquet, prompts: Parquet, rollouts: Parquet) -> Folder:
    """Write the responses of all policies as a folder of static files. Its failure is a file in it, and no error.

    Args:
        evaluation: results, for the intervals and the pairs of policies that are compared.
        prompts: the questions of all benchmarks.
        rollouts: the responses.
    """
    from tasks.view.bundle import write_bundle

    tables: dict[str, Path] = {
        "evaluation": to_local(evaluation),
        "evaluation_prompts": to_local(prompts),
        "evaluation_rollouts": to_local(rollouts),
    }
    folder = make_scratch_path("view")
    write_bundle(tables, folder)
    return make_output_folder(folder)


def empty_view() -> Folder:
    """Return the folder of a run whose evaluation file does not set `view`."""
    folder = make_scratch_path("view")
    folder.mkdir()
    (folder / README).write_text(NOT_WANTED + "\n")
    return make_output_folder(folder)
