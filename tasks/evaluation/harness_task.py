"""Defines the Flyte task that runs a benchmark of lm-evaluation-harness on one policy."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from flytekit import Resources

from images import GENERATION
from tasks.evaluation.harness_spec import HarnessBenchmark, check_installed
from tasks.flyte.stages import RESULT, Folder, Parquet, Stopwatch, content_digest, shown_stage, to_local, write_output
from tasks.generation.config import EngineConfig
from tasks.lineage.provenance import made_from
from tasks.machine.image import check_image_of_pod
from tasks.tables.schemas import EVALUATION_ROLLOUTS, PROMPTS, StageSummary


class Harnessed(NamedTuple):
    rollouts: Parquet
    questions: Parquet
    summary: StageSummary


@shown_stage(container_image=GENERATION, requests=Resources(cpu="2", mem="8Gi"))
def evaluate_by_harness(
    policy: Folder, benchmark: Annotated[HarnessBenchmark, RESULT], engine: Annotated[EngineConfig, RESULT]
) -> Harnessed:
    """Run lm-evaluation-harness on one policy, for one benchmark.

    The inputs do not contain the policy's name, so that the same weights are evaluated once. An additional benchmark
    only costs its own documents and an engine start.

    Args:
        policy: the model folder.
        benchmark: the options of the benchmark.
        engine: the options of the evaluation's engine.
    """
    from tasks.evaluation.harness import ask, build_request, questions, rollouts
    from tasks.machine.resources import has_gpu, process_resources

    check_installed()
    check_image_of_pod()
    watch = Stopwatch(f"harness: {benchmark.name}")
    documents, warnings = ask(build_request(benchmark, engine, to_local(policy), gpu=has_gpu()))
    digest = content_digest(policy)
    lineage = made_from(__name__, inputs={"policy": digest}, benchmark=benchmark, engine=engine)
    passed = sum(document["value"] == 1 for document in documents)
    return Harnessed(
        write_output("rollouts.parquet", rollouts(documents, benchmark, digest), EVALUATION_ROLLOUTS, lineage),
        write_output("questions.parquet", questions(documents, benchmark), PROMPTS, lineage),
        watch.summary(
            f"{len(documents):,} documents of {', '.join(benchmark.tasks)}, {passed / len(documents):.1%} pass",
            on=process_resources(),
            documents=len(documents),
            warnings=warnings,
        ),
    )
