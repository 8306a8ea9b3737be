"""Evaluation as Flyte tasks: each policy on its own, then the two compared."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from flytekit import Resources
from flytekit.types.file import FlyteFile

from images import DATA, GENERATION
from tasks.evaluation.spec import EvaluationSpec
from tasks.flyte.stages import (
    RESULT,
    Folder,
    Parquet,
    Stopwatch,
    content_digest,
    local,
    sampling,
    scratch,
    show,
    shown_stage,
    storage_location,
)
from tasks.lineage.provenance import made_from
from tasks.machine.resources import process_resources
from tasks.tables.parquet import read_table, write_table
from tasks.tables.schemas import EVALUATION, GRADED, PROMPTS, ROLLOUTS, SET_ASIDE, StageSummary
from tasks.verifiers.config import DEFAULTS, VerifiersConfig


class Evaluated(NamedTuple):
    rollouts: Parquet
    set_aside: Parquet
    summary: StageSummary


class Compared(NamedTuple):
    evaluation: Parquet
    summary: StageSummary


@shown_stage(
    container_image=GENERATION,
    requests=Resources(cpu="2", mem="8Gi"),
)
def evaluate_policy(
    policy: Folder,
    prompts: Parquet,
    config: Annotated[EvaluationSpec, RESULT],
    initial: Folder,
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
) -> Evaluated:
    """Scored samples of the held-out prompts from one policy, with one version of its weights throughout.

    A policy has no name here, so that the same one is evaluated once; the column `policy` has its digest. `initial` is
    the checkpoint that training began with: the judge of every policy, where `verifiers` says so.
    """
    from tasks import charts
    from tasks.generation.rollout_cache import RolloutCache, judging_digest
    from tasks.generation.sample_and_score import sample_and_score

    watch = Stopwatch("evaluation")
    table = read_table(local(prompts), PROMPTS)
    digest = content_digest(policy)
    judging = judging_digest(verifiers, content_digest(initial))
    with sampling("evaluation", table, config.sampling.samples) as judged:
        sampled = sample_and_score(
            table,
            local(policy),
            config.engine,
            config.sampling,
            policy=digest,
            stage="evaluation",
            cache=RolloutCache.at(*storage_location("rollouts"), digest, config.engine, config.sampling, judging),
            verifiers=verifiers.with_initial(local(initial)),
            verifier_workers=config.verifier_workers,
            on_judged=judged,
        )
    lineage = made_from(
        __name__,
        inputs={"heldout": content_digest(prompts), "policy": digest},
        seed=config.sampling.seed,
        evaluation=config,
        verifiers=verifiers,
    )
    speed = sampled.sampled.tokens_per_second
    scores = [score for score in sampled.table.column("score").to_pylist() if score is not None]
    show(
        "evaluation",
        charts.page(
            {
                "held-out prompts": f"{table.num_rows:,}",
                "mean score": f"{sum(scores) / max(len(scores), 1):.1%}",
                "could not be judged": f"{sampled.table.num_rows - len(scores):,}",
                "tokens/s": f"{speed:,.0f}",
            },
            charts.rollout_samples(table, sampled.table),
        ),
    )
    return Evaluated(
        FlyteFile(str(write_table(scratch("rollouts.parquet"), sampled.table, ROLLOUTS, lineage))),
        FlyteFile(str(write_table(scratch("set_aside.parquet"), sampled.set_aside, SET_ASIDE, lineage))),
        watch.summary(
            f"{sampled.table.num_rows:,} responses at {speed:,.0f} tokens/s",
            on=process_resources(),
            output_tokens=sampled.sampled.output_tokens,
            tokens_per_second=speed,
            engine_start_seconds=sampled.sampled.start_seconds,
            unjudged=sampled.table.column("score").null_count,
            verifiers=sampled.sampled.verifiers,
            too_long=sampled.set_aside.num_rows,
        ),
    )


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def compare_policies(before: Parquet, after: Parquet, prompts: Parquet) -> Compared:
    """Pass rates of both policies with intervals, their paired gain, and a test of it, by domain and in all."""
    from tasks import charts
    from tasks.evaluation.paired_gain import FLIP_SEED, compare

    watch = Stopwatch("comparison")
    found = compare(
        read_table(local(before), ROLLOUTS), read_table(local(after), ROLLOUTS), read_table(local(prompts), GRADED)
    )
    overall = found.comparisons["all"]
    show(
        "before and after",
        charts.page(
            {
                "before": f"{overall.before:.1%}",
                "after": f"{overall.after:.1%}",
                "gain, points": f"{100 * overall.gain:+.1f}",
                "95% interval": f"{100 * overall.gain_low:+.1f} to {100 * overall.gain_high:+.1f}",
            },
            charts.deck(charts.before_after(found.table)),
        ),
    )
    tables = {"before": before, "after": after, "heldout": prompts}
    inputs = {name: content_digest(each) for name, each in tables.items()}
    lineage = made_from(__name__, inputs=inputs, seed=FLIP_SEED)
    return Compared(
        FlyteFile(str(write_table(scratch("evaluation.parquet"), found.table, EVALUATION, lineage))),
        watch.summary(
            f"held-out pass rate {overall.before:.1%} to {overall.after:.1%}, gain {100 * overall.gain:+.1f} points "
            f"[{100 * overall.gain_low:+.1f}, {100 * overall.gain_high:+.1f}]",
            **found.facts(),
        ),
    )
