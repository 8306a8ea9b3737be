"""Evaluation as Flyte tasks: each policy by itself, then the comparison of two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import pyarrow as pa
from flytekit import Resources

from images import DATA, GENERATION
from tasks.evaluation.spec import EvaluationSpec
from tasks.flyte.stages import (
    RESULT,
    Folder,
    Parquet,
    Stopwatch,
    content_digest,
    local,
    read_input,
    sampling_progress,
    show,
    shown_stage,
    storage_location,
    write_output,
)
from tasks.lineage.provenance import made_from
from tasks.machine.resources import process_resources
from tasks.tables.schemas import EVALUATION, GRADED, PROMPTS, ROLLOUTS, SET_ASIDE, StageSummary
from tasks.verifiers.config import DEFAULTS, VerifiersConfig

if TYPE_CHECKING:
    from tasks.evaluation.paired_gain import Evaluation
    from tasks.generation.sample_and_score import Rollouts


class Evaluated(NamedTuple):
    rollouts: Parquet
    set_aside: Parquet
    summary: StageSummary


class Compared(NamedTuple):
    evaluation: Parquet
    summary: StageSummary


@shown_stage(container_image=GENERATION, requests=Resources(cpu="2", mem="8Gi"))
def evaluate_policy(
    policy: Folder,
    prompts: Parquet,
    config: Annotated[EvaluationSpec, RESULT],
    initial: Folder,
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
) -> Evaluated:
    """Sample and score responses to the held-out prompts from one policy, with one version of its weights throughout.

    The inputs do not name the policy, so that the same weights are evaluated once; the column `policy` has its digest.

    Args:
        policy: the model folder.
        prompts: the held-out prompts.
        config: the options of the evaluation.
        initial: the checkpoint that training began with; it judges every policy where `verifiers` says so.
        verifiers: the options of the verifiers.
    """
    from tasks.charts import decks

    watch = Stopwatch("evaluation")
    table = read_input(prompts, PROMPTS)
    digest = content_digest(policy)
    rollouts = _rollouts(table, policy, digest, config, initial, verifiers)
    lineage = made_from(
        __name__,
        inputs={"heldout": content_digest(prompts), "policy": digest},
        seed=config.sampling.seed,
        evaluation=config,
        verifiers=verifiers,
    )
    sampled, unjudged = rollouts.sampled, rollouts.table.column("score").null_count
    show("evaluation", decks.evaluation(table, rollouts.table, sampled.tokens_per_second))
    return Evaluated(
        write_output("rollouts.parquet", rollouts.table, ROLLOUTS, lineage),
        write_output("set_aside.parquet", rollouts.set_aside, SET_ASIDE, lineage),
        watch.summary(
            f"{rollouts.table.num_rows:,} responses at {sampled.tokens_per_second:,.0f} tokens/s"
            + (f"; {unjudged:,} could not be judged" if unjudged else ""),
            on=process_resources(),
            output_tokens=sampled.output_tokens,
            tokens_per_second=sampled.tokens_per_second,
            engine_start_seconds=sampled.start_seconds,
            unjudged=unjudged,
            verifiers=sampled.verifiers,
            too_long=rollouts.set_aside.num_rows,
        ),
    )


def _rollouts(
    prompts: pa.Table,
    policy: Folder,
    digest: str,
    config: EvaluationSpec,
    initial: Folder,
    verifiers: VerifiersConfig,
) -> Rollouts:
    from tasks.generation.rollout_cache import RolloutCache, judging_digest
    from tasks.generation.sample_and_score import sample_and_score

    judging = judging_digest(verifiers, content_digest(initial))
    with sampling_progress("evaluation", prompts, config.sampling.samples) as judged:
        return sample_and_score(
            prompts,
            local(policy),
            config.engine,
            config.sampling,
            policy=digest,
            stage="evaluation",
            cache=RolloutCache.at(*storage_location("rollouts"), digest, config.engine, config.sampling, judging),
            verifiers=verifiers.with_initial(local(initial)),
            verifier_workers=config.verifier_workers,
            max_unjudged=config.max_unjudged,
            on_judged=judged,
        )


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def compare_policies(before: Parquet, after: Parquet, prompts: Parquet) -> Compared:
    """Compare two policies: pass rates with intervals, the paired gain and a test of it, by domain and in all.

    Args:
        before: rollouts of the first policy.
        after: rollouts of the second policy.
        prompts: the held-out prompts that both answered.
    """
    from tasks.charts import decks
    from tasks.evaluation.paired_gain import FLIP_SEED, compare

    watch = Stopwatch("comparison")
    evaluation = compare(read_input(before, ROLLOUTS), read_input(after, ROLLOUTS), read_input(prompts, GRADED))
    inputs = {"before": content_digest(before), "after": content_digest(after), "heldout": content_digest(prompts)}
    lineage = made_from(__name__, inputs=inputs, seed=FLIP_SEED)
    overall = evaluation.comparisons["all"]
    gain = (overall.gain, overall.gain_low, overall.gain_high)
    show("before and after", decks.comparison(evaluation.table, overall.before, overall.after, gain))
    return Compared(
        write_output("evaluation.parquet", evaluation.table, EVALUATION, lineage),
        watch.summary(
            f"held-out pass rate {overall.before:.1%} to {overall.after:.1%}, gain {100 * overall.gain:+.1f} points "
            f"[{100 * overall.gain_low:+.1f}, {100 * overall.gain_high:+.1f}]" + _unjudged(evaluation),
            **evaluation.facts(),
        ),
    )


def _unjudged(evaluation: Evaluation) -> str:
    counts = (evaluation.unjudged_before, evaluation.unjudged_after)
    return f"; {counts[0]:,} and {counts[1]:,} responses could not be judged" if any(counts) else ""
