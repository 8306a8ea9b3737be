"""A run that never happened, in the tables of one that did: what the report's tests render."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.reporting import lineage
from tasks.reporting.page import ReportInputs
from tasks.tables.parquet import build_table
from tasks.tables.schemas import (
    EVALUATION,
    GRADED,
    LEDGER,
    MIXTURE,
    ROLLOUTS,
    SET_ASIDE,
    StageSummary,
    canonical_json,
    prompt_id,
    set_aside_row,
)

STARTED = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
THRESHOLD = 0.625
SOURCES = {"products": "math", "sums": "math", "constraints": "precise_if"}


def graded_rows(per_source: int, generator: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    for source, domain in SOURCES.items():
        for number in range(per_source):
            messages = [{"role": "user", "content": f"{source} question {number}: what is {number} times 7?"}]
            truth = canonical_json(str(7 * number))
            rows.append(
                {
                    "prompt_id": prompt_id(messages, domain, truth),
                    "domain": domain,
                    "source": source,
                    "messages": messages,
                    "verifier": domain,
                    "ground_truth": truth,
                    "metadata": "{}",
                    "cluster": None,
                    "row": number,
                    "pass_rate": (rate := int(generator.binomial(8, generator.beta(0.5, 1.2))) / 8),
                    "mean_score": rate,
                    "num_rollouts": 8,
                    "mean_tokens": float(generator.uniform(12, 60)),
                }
            )
    return rows


def rollouts(prompts: list[dict[str, Any]], policy: str, skill: float, generator: np.random.Generator) -> pa.Table:
    rows = []
    for prompt in prompts:
        chance = generator.beta(4 * skill, 4 * (1 - skill))
        for sample in range(4):
            passed = float(generator.random() < chance)
            rows.append(
                {
                    "prompt_id": prompt["prompt_id"],
                    "sample": sample,
                    "response": f"The answer is {'right' if passed else 'wrong'} & <b>sure</b>.\nSays {policy}.",
                    "num_tokens": int(generator.integers(8, 64)),
                    "finish_reason": "stop" if generator.random() < 0.8 else "length",
                    "score": passed,
                    "passed": bool(passed),
                    "rewards": [{"name": "math", "value": passed}, {"name": "rewards.in_tags", "value": 1.0}],
                    "error": None,
                    "policy": policy,
                }
            )
    return build_table(rows, ROLLOUTS, policy)


def evaluation(benchmarks: tuple[str, ...] = ("all", "math", "precise_if")) -> pa.Table:
    figures = {
        "pass_rate": ((0.234, 0.17, 0.31), (0.445, 0.36, 0.53), (0.211, 0.12, 0.30)),
        "mean_score": ((0.301, 0.24, 0.37), (0.498, 0.42, 0.58), (0.197, 0.11, 0.28)),
        "pass@4": ((0.51, 0.39, 0.63), (0.72, 0.6, 0.82), (0.21, 0.08, 0.34)),
        "truncated": ((0.22, 0.17, 0.28), (0.08, 0.05, 0.12), (-0.14, -0.2, -0.08)),
        "mean_tokens": ((38.4, 35.0, 41.8), (29.1, 26.5, 31.7), (-9.3, -12.0, -6.6)),
    }
    rows = [
        {
            "benchmark": benchmark,
            "metric": metric,
            "policy": policy,
            "baseline": baseline,
            "value": v,
            "low": low,
            "high": high,
            "n": 64,
            "p_value": None if baseline is None else 0.0002,
            "detectable": None if baseline is None else 1.4 * (high - low) / 2,
        }
        for benchmark in benchmarks
        for metric, estimates in figures.items()
        for (policy, baseline), (v, low, high) in zip(
            (("before", None), ("after", None), ("after", "before")), estimates, strict=True
        )
    ]
    return build_table(rows, EVALUATION, "evaluation")


def metrics(steps: int, generator: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    for step in range(1, steps + 1):
        reward = 0.24 + 0.22 * step / steps + generator.normal(0, 0.03)
        rows.append(
            {
                "step": step,
                "seconds": 24.0 * step,
                "reward": reward,
                "reward/math": reward - 0.06,
                "reward/precise_if": reward + 0.05 if step != 3 else None,
                "response_length": 40 - 10 * step / steps + generator.normal(0, 1.5),
                "truncated": max(0.0, 0.25 - 0.15 * step / steps),
                "entropy": 1.3 - 0.4 * step / steps,
                "loss": generator.normal(0, 0.02),
                "grad_norm": 1.1 + generator.normal(0, 0.2),
                "learning_rate": 1e-5,
                "mismatch": 0.044 + generator.normal(0, 0.003),
                "importance_weight": 1 + generator.normal(0, 0.01),
                "clip_low": 0.01,
                "clip_high": 0.02,
                "staleness": 0.8 + generator.normal(0, 0.1),
                "staleness_max": float(generator.integers(1, 4)),
                "trained_tokens": 2300 + 10 * step,
                "generated_tokens": 3100,
                "generated_tokens_per_second": 310 + generator.normal(0, 15),
                "trained_tokens_per_second": 280 + generator.normal(0, 15),
                "zero_variance": 0.35 + generator.normal(0, 0.05),
                "update_pause_seconds": 0.08,
                "update_seconds": 0.35,
                "learn_seconds": 14.0 + generator.normal(0, 1),
                "wait_seconds": 3.0 + generator.normal(0, 1),
            }
        )
    return rows


def ledger(prompts: list[dict[str, Any]], generator: np.random.Generator) -> pa.Table:
    fates = generator.choice(
        ["trained", "zero_variance", "stale", "failed", "unused"], len(prompts), p=[0.55, 0.32, 0.05, 0.03, 0.05]
    )
    rows = [
        {
            "group": number,
            "prompt_id": prompt["prompt_id"],
            "domain": prompt["domain"],
            "actors": [number % 2],
            "sampled_at": float(number),
            "finished_at": None if fate == "unused" else number + 8.0,
            "first_version": number // 8,
            "last_version": number // 8 + 1,
            "scores": [] if fate in ("unused", "failed") else [1.0, 0.0, 0.0, 1.0],
            "num_tokens": [] if fate in ("unused", "failed") else [31, 28, 40, 22],
            "advantage_spread": 0.5 if fate == "trained" else None,
            "fate": str(fate),
            "step": number // 8 if fate == "trained" else None,
            "detail": "actor 1 died twice" if fate == "failed" else None,
        }
        for number, (prompt, fate) in enumerate(zip(prompts, fates, strict=True))
    ]
    return build_table(rows, LEDGER, "ledger")


def summaries() -> list[StageSummary]:
    stages = [
        ("sourcing: products", 1.4, "400 prompts from reasoning-gym products"),
        ("sourcing: sums", 0.9, "400 prompts from reasoning-gym sums"),
        ("sourcing: constraints", 2.2, "400 prompts from 40 topics with 1 to 3 constraints"),
        ("difficulty", 148.0, "9,600 rollouts at 402 tokens/s; 71% of prompts kept"),
        ("mixing", 0.3, "400 training and 64 held-out prompts, disjoint"),
        ("training", 412.6, "14 steps, 33,100 tokens trained, no group lost"),
        ("evaluation", 71.2, "23.4% before, 44.5% after on 64 prompts"),
    ]
    pair = {"policy": "after", "baseline": "before"}
    p_values = {"all": 0.0002, "math": 0.013}
    facts = {"comparisons": [{**pair, "benchmark": name, "p_value": value} for name, value in p_values.items()]}
    return [
        StageSummary(
            name,
            STARTED + timedelta(minutes=i),
            seconds,
            headline,
            facts if name == "evaluation" else {},
            run="earlier" if i < 5 else "this",
            image="registry.example/team/rlvr-data:v1" if i < 3 else "registry.example/team/rlvr-generation:v1",
            cores=2.0,
            gpus=0.0 if name.startswith(("sourcing", "mixing")) else 4.0,
        )
        for i, (name, seconds, headline) in enumerate(stages)
    ]


def outputs() -> list[lineage.Output]:
    def digest(name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()

    def made(name: str, of: tuple[str, ...], image: str = "data") -> lineage.Output:
        provenance = {
            "inputs": {each: digest(each) for each in of},
            "spec_digest": digest(f"spec of {name}"),
            "seed": 17 if name in ("mixture", "heldout", "policy") else None,
            "code_version": digest(f"code of {name}"),
            "image": f"registry.example/team/rlvr-{image}:v1",
        }
        return lineage.Output(name, digest(name), provenance)

    return [
        lineage.Output("model", digest("model"), {}),
        made("prompts", ("prompts 1",)),
        made("rollouts", ("prompts", "model"), "generation"),
        made("selected", ("prompts", "rollouts")),
        made("mixture", ("selected",)),
        made("heldout", ("selected",)),
        made("policy", ("model", "mixture"), "training"),
        made("evaluation_rollouts", ("heldout", "policy"), "generation"),
    ]


def report_inputs(*, per_source: int = 60, steps: int = 14) -> ReportInputs:
    generator = np.random.default_rng(5)
    rows = graded_rows(per_source, generator)
    kept = [row for row in rows if row["mean_score"] < THRESHOLD]
    generator.shuffle(kept)
    heldout, train = kept[:24], kept[24:-10]
    set_aside = [
        set_aside_row(
            "sourcing", "duplicate", "products", 7, "exact duplicate of an earlier row", "What is 3 times 4?"
        ),
        set_aside_row(
            "sourcing", "duplicate", "products", 3, "exact duplicate of an earlier row", "What is 2 times 4?"
        ),
        set_aside_row("sourcing", "unusable", "sums", 12, "'question' is null", "null"),
    ]
    return ReportInputs(
        title="RLVR quickstart",
        spec_yaml="sources:\n  - name: products\n    domain: math\n    limit: 400\n",
        evaluation_yaml="sampling:\n  samples: 4\n",
        training_yaml="steps: 14\nlearning_rate: 1.0e-5\ngroups_per_step: 8\n",
        set_aside=build_table(set_aside, SET_ASIDE, "set_aside"),
        graded=build_table(rows, GRADED, "graded"),
        max_mean_score=THRESHOLD,
        mixture=build_table([row | {"repeat": 0, "order": i} for i, row in enumerate(train)], MIXTURE, "mixture"),
        heldout=build_table(heldout, GRADED, "heldout"),
        metrics=metrics(steps, generator),
        ledger=ledger(train, generator),
        evaluation=evaluation(),
        before=rollouts(heldout, "base", 0.23, generator),
        after=rollouts(heldout, "step-14", 0.45, generator),
        summaries=summaries(),
        run="this",
        outputs=lineage.rows(outputs()),
        lineage={
            "model": "SmolLM2-135M-Instruct",
            "image": lineage.images(summaries()),
            "seeds": "data 0, mixture 0, training 17",
            "run": "this",
        },
    )
