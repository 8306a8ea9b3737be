"""From sources to a mixture: read, merge, roll out, select, mix.

pyflyte run workflows/data.py data --model FOLDER [--data FILE] [--training FILE]
"""

from typing import NamedTuple

from flytekit import Resources

from images import DATA
from tasks.difficulty.task import roll_out, select_prompts
from tasks.mixing.task import merge_sources, mix_prompts
from tasks.platform import Folder, Parquet, composed
from tasks.pods import overrides
from tasks.preflight import fingerprinted
from tasks.schemas import StageSummary
from tasks.sourcing.loaders import batches
from tasks.sourcing.task import source_prompts
from tasks.spec import DataFile, Recipe, quickstart

FILES = quickstart()


class Curated(NamedTuple):
    """Tables have the columns of `tasks.schemas`."""

    prompts: Parquet
    rollouts: Parquet
    graded: Parquet
    kept: Parquet
    mixture: Parquet
    heldout: Parquet
    rejected_sourcing: Parquet
    rejected_rollouts: Parquet
    rejected_difficulty: Parquet
    sourcing: StageSummary
    rolling_out: StageSummary
    selecting: StageSummary
    mixing: StageSummary


@composed(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def data(model: Folder, data: DataFile = FILES[0], training: Recipe = FILES[1]) -> Curated:
    """The training mixture and the held-out prompts, with everything on the way; each stage is cached on its own.

    Args:
        model: the initial checkpoint, which difficulty is measured with.
        data: what to read and how to choose of it.
        training: the recipe, whose machines say whether there are GPUs.
    """
    pod = overrides(data.pod)
    sampling_pod = data.difficulty.pod.with_gpus(training.cluster.gpus_of(data.difficulty.engine))
    sourced = [
        source_prompts(batch=batch, max_prompt_chars=data.max_prompt_chars).with_overrides(
            node_name=f"source-{batch.name}", **pod
        )
        for batch in batches(data.sources)
    ]
    merged = merge_sources(
        prompts=[each.prompts for each in sourced],
        rejected=[each.rejected for each in sourced],
        sources=[source.name for source in data.sources],
        spec=data.mixture,
    ).with_overrides(node_name="merge", **pod)
    sampled = roll_out(
        prompts=merged.prompts, model=model, spec=data.difficulty.rollouts, verifiers=fingerprinted(data.verifiers)
    ).with_overrides(node_name="roll-out", **overrides(sampling_pod))
    graded = select_prompts(
        prompts=merged.prompts, rollouts=sampled.rollouts, max_pass_rate=data.difficulty.max_pass_rate
    ).with_overrides(node_name="select", **pod)
    mixed = mix_prompts(graded=graded.kept, spec=data.mixture).with_overrides(node_name="mix", **pod)
    return Curated(
        prompts=merged.prompts,
        rollouts=sampled.rollouts,
        graded=graded.graded,
        kept=graded.kept,
        mixture=mixed.mixture,
        heldout=mixed.heldout,
        rejected_sourcing=merged.rejected,
        rejected_rollouts=sampled.rejected,
        rejected_difficulty=graded.rejected,
        sourcing=merged.summary,
        rolling_out=sampled.summary,
        selecting=graded.summary,
        mixing=mixed.summary,
    )
