"""Tokens trained per second, rollouts included: a step of 64 completions of up to 64 tokens, ours against TRL."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from tests.bench import inputs

STEPS = 6
WARM_UP = 2
TOKENS = 64


def ours(folder: Path) -> dict[str, float]:
    """Trained and generated tokens/s of the quickstart recipe in its steady state."""
    import ray

    from tasks.generation.config import SamplingConfig
    from tasks.inputs.files import load_quickstart
    from tasks.training.run import RunInputs, train

    more = {"steps": STEPS, "groups_per_step": 8, "checkpoint_every": STEPS}
    config = load_quickstart()[1].run.model_copy(
        update={**more, "sampling": SamplingConfig(samples=8, max_tokens=TOKENS)}
    )
    ray.init(include_dashboard=False)
    rows: list[dict[str, float]] = []
    run_folder = folder / f"run-{time.time():.0f}"
    train(RunInputs(config, inputs.model(folder), inputs.mixture(folder), run_folder, on_step=rows.append))
    steady = rows[WARM_UP:]
    seconds = sum(row["step_seconds"] for row in steady)
    return {
        "trained": sum(row["trained_tokens_per_second"] * row["step_seconds"] for row in steady) / seconds,
        "generated": sum(row["generated_tokens"] for row in steady) / seconds,
        "step_seconds": statistics.median(row["step_seconds"] for row in steady),
        "update_pause_seconds": _median(steady, "update_pause_seconds"),
        "update_seconds": _median(steady, "update_seconds"),
    }


def _median(rows: list[dict[str, float]], name: str) -> float:
    """Over the steps that have it: an update may finish in the next step."""
    return statistics.median(row[name] for row in rows if name in row)


def trl(folder: Path) -> dict[str, float]:
    """Completion tokens/s of TRL's GRPOTrainer on the same prompts, model, batch and length limit."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokens: list[int] = []
    times: list[float] = []

    def reward(completions: list, completion_ids: list[list[int]], **_: object) -> list[float]:
        tokens.append(sum(map(len, completion_ids)))
        return [float(len(ids) % 7) for ids in completion_ids]

    class Clock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            times.append(time.perf_counter())

    path = inputs.model(folder)
    chats = inputs.prompts()["messages"].to_pylist()
    trainer = GRPOTrainer(
        model=str(path),
        processing_class=AutoTokenizer.from_pretrained(path, padding_side="left"),
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": chat} for chat in chats]),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=16,
            gradient_accumulation_steps=4,
            num_generations=8,
            max_completion_length=TOKENS,
            max_steps=3,
            beta=0.0,
            **inputs.peer_type(),
            use_cpu=True,
            learning_rate=1e-5,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    return {
        "trained": sum(tokens[1:]) / (times[-1] - times[0]),
        "step_seconds": (times[-1] - times[0]) / (len(times) - 1),
    }


if __name__ == "__main__":
    print(json.dumps({"ours": ours, "trl": trl}[sys.argv[1]](Path(sys.argv[2]))))
