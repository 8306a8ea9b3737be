"""`make bench-learning [RUNS=2]`: held-out pass rate over wall time, ours and that of TRL's `GRPOTrainer`, as a chart.

Both start from the quickstart's model and train for the same time on the same prompts with the same rewards, batch,
limits, type and learning rate, by turns on the same cores, and write their policies down on the way. The clock starts
with the process. Afterwards one engine answers the held-out prompts as some of these policies. Further runs of each
begin with the other side: a processor's speed that falls or rises over the time counts for both alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import psutil
import pyarrow.compute as pc

from tests.bench import inputs

MINUTES = 12
"""Each has so long to train, and to finish the step that it is in."""
MOST = 10_000
"""Steps, of which there is no end but that of the time."""
SHOWN = 3
"""Policies of each run that are answered, beside the initial one; of those that there are, evenly."""
HELD_OUT, SAMPLES = 64, 8
FOLDER = Path("outputs/bench/learning")
CHART = Path("docs/learning.svg")
NAMES = {"ours": "rlvr-flyte", "trl": "TRL GRPOTrainer"}


def prompts() -> Path:
    """The mixture: the quickstart's prompts, but chat, with pass rates under 62.5%; some are kept out of training."""
    from tasks.difficulty.grading import grade, select
    from tasks.inputs.files import load_quickstart
    from tasks.mixing.mix import mix
    from tasks.mixing.spec import MixtureSpec
    from tasks.rollouts.judged_by import JudgedBy
    from tasks.rollouts.rollout_cache import RolloutCache
    from tasks.rollouts.sample_and_score import sample_and_score
    from tasks.rollouts.sampling_loop import Workload
    from tasks.tables.parquet import write_table
    from tasks.tables.schemas import MIXTURE
    from tasks.verifiers.config import DEFAULTS

    path = FOLDER / "mixture.parquet"
    if path.exists():
        return path
    spec, all_prompts = load_quickstart()[0].difficulty, inputs.prompts()
    all_prompts = all_prompts.filter(
        pc.not_equal(all_prompts.column("domain"), "chat")
    )  # a judge would be a third party
    cache = RolloutCache.open(
        fsspec.filesystem("file"), str(FOLDER / "rollouts"), "bench", spec.engine, spec.sampling, JudgedBy(DEFAULTS, "")
    )
    done = sample_and_score(
        [Workload(all_prompts, spec.sampling, cache)],
        inputs.model(FOLDER),
        spec.engine,
        policy="initial",
        stage="difficulty",
    )
    graded, _ = grade(all_prompts, done.table, done.set_aside)
    return write_table(path, mix(select(graded, spec.bounds), MixtureSpec()).train, MIXTURE)


def config() -> Any:
    """The quickstart recipe, without an end, with its policies on the way and prompts kept out."""
    from tasks.inputs.files import load_quickstart

    recipe = load_quickstart()[1].run.model_dump()
    more = {"steps": MOST, "export_every": 1, "checkpoint_every": MOST}
    validation = {"every": MOST, "prompts": HELD_OUT}  # which prompts they are; they are answered afterwards
    return type(load_quickstart()[1].run).model_validate({**recipe, **more, "validation": validation})


def split() -> tuple[list[Any], list[Any]]:
    """Prompts to train on, and those to answer afterwards."""
    from tasks.training.control.validation import split_validation
    from tasks.training.run import load_prompts

    return split_validation(load_prompts(config(), inputs.model(FOLDER), prompts()), config())


class TimeUpError(Exception):
    """Ends a training run."""


def ours(seconds: float, turn: int) -> dict[str, float]:
    """Policies by seconds since the start, of as many steps as `seconds` allow; `turn` is the seed, too."""
    import ray

    from tasks.tables.parquet import read_table, write_table
    from tasks.tables.schemas import MIXTURE
    from tasks.training.run import RunInputs, train

    path, folder = FOLDER / "trained.parquet", FOLDER / f"ours-{turn}"
    shutil.rmtree(folder, ignore_errors=True)
    held_out = {prompt.prompt_id for prompt in split()[1]}
    table = read_table(prompts(), MIXTURE)
    trained = [row for row in table.to_pylist() if row["prompt_id"] not in held_out]
    write_table(path, type(table).from_pylist(trained, schema=table.schema), MIXTURE)
    started = psutil.Process().create_time()

    def policies() -> dict[str, float]:
        written = sorted((folder / "policies").glob("step_*/model.safetensors"))
        return {str(each.parent): each.stat().st_mtime - started for each in written}

    def on_step(_: dict[str, float]) -> None:  # before the policy of this step is written
        if any(after > seconds for after in policies().values()):
            raise TimeUpError

    ray.init(include_dashboard=False)
    with contextlib.suppress(TimeUpError):
        chosen = config().model_copy(update={"validation": None, "seed": turn})
        train(RunInputs(chosen, inputs.model(FOLDER), path, folder, on_step=on_step))
    ray.shutdown()  # prints what its processes printed, which must not follow the result
    return policies()


def trl(seconds: float, turn: int) -> dict[str, float]:
    """Policies by seconds since the start, of as many steps as `seconds` allow; `turn` is the seed, too."""
    started = psutil.Process().create_time()
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from tasks.verifiers import VerifiersConfig, open_pool

    recipe, folder = config(), FOLDER / f"trl-{turn}"
    shutil.rmtree(folder, ignore_errors=True)
    policies: dict[str, float] = {}

    def reward(completions: list[list[dict[str, str]]], verifier: list[str], truth: list[str], **_: object) -> list:
        calls = [
            pool.submit(name, chat[-1]["content"], json.loads(each))
            for chat, name, each in zip(completions, verifier, truth, strict=True)
        ]
        return [call.result().reward for call in calls]

    class Keeper(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: object) -> None:
            path = folder / f"step_{state.global_step:08d}"
            model.save_pretrained(path)
            policies[str(path)] = time.time() - started
            control.should_training_stop = time.time() - started > seconds

    path = inputs.model(FOLDER)
    rows = [
        {"prompt": each.messages, "verifier": each.verifier, "truth": json.dumps(each.ground_truth)}
        for each in split()[0]
    ]
    trainer = GRPOTrainer(
        model=str(path),
        processing_class=AutoTokenizer.from_pretrained(path, padding_side="left"),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows),
        callbacks=[Keeper()],
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=16,
            gradient_accumulation_steps=recipe.groups_per_step * recipe.sampling.samples // 16,
            num_generations=recipe.sampling.samples,
            max_completion_length=recipe.sampling.max_tokens,
            temperature=recipe.sampling.temperature,
            max_steps=MOST,
            seed=turn,
            beta=0.0,
            epsilon=recipe.objective.clip_low,
            epsilon_high=recipe.objective.clip_high,
            scale_rewards="none",
            loss_type="dapo",
            learning_rate=recipe.optimizer.learning_rate,
            lr_scheduler_type="constant",
            max_grad_norm=recipe.optimizer.max_grad_norm,
            **inputs.peer_type(),
            use_cpu=True,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
    )
    with open_pool(recipe.rewards.workers or 1, VerifiersConfig(), sorted({row["verifier"] for row in rows})) as pool:
        trainer.train()
    return policies


def answered(policies: Sequence[str]) -> dict[str, list[float]]:
    """Pass rates of the held-out prompts, by policy; the same seeds for all of them."""
    from tasks.generation.config import EngineConfig, SamplingConfig
    from tasks.generation.engine import run_engine
    from tasks.generation.interface import sample_seed
    from tasks.training.groups.group import Prompt
    from tasks.verifiers import VerifiersConfig, open_pool

    sampling = SamplingConfig(max_tokens=config().sampling.max_tokens)
    held_out = split()[1]

    async def run() -> dict[str, list[float]]:
        found = {}
        names = sorted({prompt.verifier for prompt in held_out})
        with open_pool(1, VerifiersConfig(), names) as pool:
            async with run_engine(inputs.model(FOLDER), EngineConfig(max_model_len=512), updatable=True) as engine:

                async def one(prompt: Prompt, sample: int) -> bool:
                    seed = sample_seed(0, prompt.prompt_id, sample)
                    done = await engine.generate(prompt.token_ids, sampling, seed=seed, with_logprobs=False)
                    score = await pool.score(prompt.verifier, done.text, prompt.ground_truth, prompt.messages)
                    assert score.error is None, score.error
                    return score.passed

                for version, policy in enumerate(policies):
                    if policy != str(inputs.model(FOLDER)):
                        await engine.update_weights(Path(policy).absolute() / "model.safetensors", version)
                    answers = [asyncio.gather(*(one(each, i) for i in range(SAMPLES))) for each in held_out]
                    found[policy] = [statistics.fmean(passed) for passed in await asyncio.gather(*answers)]
        return found

    return asyncio.run(run())


def shown(policies: Mapping[str, float]) -> dict[str, float]:
    """Some of them, evenly, and the last."""
    every = max(1, round(len(policies) / SHOWN))
    return dict([*policies.items()][::-1][::every][:SHOWN][::-1])


def draw(runs: Sequence[tuple[str, list[tuple[float, float, float]]]], path: Path) -> None:
    """Each run's (minutes, pass rate, its standard error) as a line with a band, in the color of its side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.6), layout="constrained", facecolor="white")
    axes = figure.subplots()
    last = max(points[-1][0] for _, points in runs)
    for side, color in (("ours", "#179b8b"), ("trl", "#8a8f9c")):
        curves = [np.array(points) * (1, 100, 100) for name, points in runs if name == side]
        for minutes, rates, errors in (points.T for points in curves):
            axes.plot(minutes, rates, "o-", color=color, linewidth=2, markersize=4)
            axes.fill_between(minutes, rates - errors, rates + errors, color=color, alpha=0.12, linewidth=0)
        end = float(np.mean([points[-1, 1] for points in curves]))
        axes.annotate(NAMES[side], (last, end), (8, 0), textcoords="offset points", color=color, va="center")
    axes.set_xlabel("minutes since the start, all loading included")
    axes.set_ylabel(f"held-out pass rate, %\n({HELD_OUT} prompts, {SAMPLES} samples, ± standard error)")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.02)
    axes.set_xlim(right=axes.get_xlim()[1] * 1.22)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#9da3b0", alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


def measure(*what: str) -> Any:
    """What this module prints as its last line, in a process of its own, when asked for `what`."""
    print(f"{what[0]} ...", flush=True)
    command = [sys.executable, "-m", "tests.bench.learning", *what]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{what[0]} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(repeats: int) -> None:
    """Train by turns, `repeats` times each, answer, print the table, draw."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    measure("prompts")
    initial = str(inputs.model(FOLDER))
    runs = []
    turns = [side for repeat in range(repeats) for side in (("trl", "ours") if repeat % 2 else ("ours", "trl"))]
    for turn, side in enumerate(turns, start=1):
        policies = measure(side, str(60 * MINUTES), str(turn))
        print(f"  {len(policies)} steps in {max(policies.values()) / 60:.1f} min", flush=True)
        runs.append((side, {initial: 0.0, **shown(policies)}))
    rates = measure("answered", *{policy: None for _, policies in runs for policy in policies})
    curves = [
        (side, [(seconds / 60, *with_error(rates[policy])) for policy, seconds in policies.items()])
        for side, policies in runs
    ]
    for side, points in curves:
        for minutes, rate, error in points:
            print(f"{NAMES[side]:16} {minutes:6.1f} min   {100 * rate:5.1f}% +- {100 * error:.1f}")
    last = {name: np.mean([rates[list(found)[-1]] for side, found in runs if side == name], axis=0) for name in NAMES}
    ahead, error = with_error(last["ours"] - last["trl"])
    print(f"at the end, ours over {NAMES['trl']}, prompt by prompt: {100 * ahead:+.1f} points +- {100 * error:.1f}")
    (FOLDER / "curves.json").write_text(json.dumps(curves, indent=1))
    draw(curves, CHART)


def with_error(rates: Sequence[float]) -> tuple[float, float]:
    """Their mean, and its standard error."""
    return statistics.fmean(rates), statistics.stdev(rates) / math.sqrt(len(rates))


if __name__ == "__main__":
    match sys.argv[1:] or ["1"]:
        case [repeats] if repeats.isdecimal():
            main(int(repeats))
        case ["prompts"]:
            print(json.dumps(str(prompts())))
        case ["ours", seconds, turn]:
            print(json.dumps(ours(float(seconds), int(turn))))
        case ["trl", seconds, turn]:
            print(json.dumps(trl(float(seconds), int(turn))))
        case ["answered", *policies]:
            print(json.dumps(answered(policies)))
