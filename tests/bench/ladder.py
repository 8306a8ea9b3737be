"""OlmoRL's ladder with real engines: `python -m tests.bench.ladder rungs FOLDER`.

The controller, the fleet, Ray, vLLM and its weight updates are the real ones. The model is so small that a decoding
step costs about the same for any batch, as on a GPU that reads its weights; response lengths are drawn, a 16th of the
paper's; the learner is a clock, and writes the initial weights again. Each rung is also simulated, with clocks of the
measured times of an update and of a step whose sequences attend to as much as those of a run do, so that the simulation
that plans runs is compared with runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from tasks.generation.config import SamplingConfig
from tasks.generation.interface import Completion
from tasks.planning.simulated_actors import (
    ChanceJudge,
    ClockLearner,
    EngineClock,
    estimate_mean_context,
    make_length_sampler,
)
from tasks.planning.simulated_run import Workload, simulate
from tasks.recipe.run import TrainingConfig
from tasks.storage.tensor_digest import compute_contents
from tasks.training.actors.process import ActorProcess, RayActor
from tasks.training.actors.weights import WeightStore
from tasks.training.control.collaborators import Collaborators
from tasks.training.control.controller import Controller
from tasks.training.control.prompt_stream import PromptStream
from tasks.training.groups.group import Prompt
from tasks.training.learner.client import WrittenWeights
from tasks.training.learner.restartable import RestartingLearner
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.ledger import Ledger
from tests.bench.rungs import LONGEST, MEAN_TOKENS, build_rung_options
from tests.tiny_model import build

SCALE = 16
ENGINES, SEQUENCES = 2, 16
BATCH, WIDE, SAMPLES = 2, 4, 8
"""Groups of a step, steps of a window, and samples of a group: twice as much in flight as the engines run."""
STEPS = 80
LEARNER_TOKENS_PER_SECOND = 48_000.0
PROMPT = list(range(5, 9))
UPDATES = 5
DRAWS = 8
"""Simulations of a rung, whose mean counts: the lengths that one draws move its tokens/s by 2 to 5%."""
CURVE = (1, 2, 4, 8, 16)
"""Sequences of an engine, of which the time of a step is measured."""


class DrawingActor(ActorProcess):
    """An actor whose responses have lengths drawn from `seed`; without one, as long as they are asked to be."""

    def __init__(self, config: TrainingConfig, model: str, seed: int | None) -> None:
        super().__init__(config, model)
        self._draws = seed is not None
        chance = random.Random(seed)
        self._draw = make_length_sampler(chance, MEAN_TOKENS / SCALE, LONGEST // SCALE)

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        """See `ActorProcess`."""
        if self._draws:
            sampling = sampling.model_copy(update={"max_tokens": self._draw()})
        return await super().generate(prompt_ids, sampling, seed)


class WritingLearner(ClockLearner):
    """A clock that hands out weights: always the same."""

    def __init__(self, weights: Path) -> None:
        super().__init__(LEARNER_TOKENS_PER_SECOND)
        self._weights = weights
        self._contents = compute_contents(load_file(weights))

    async def write_weights(self, path: Path) -> WrittenWeights:
        """See `Learner`."""
        await asyncio.to_thread(shutil.copyfile, self._weights, path)
        return WrittenWeights("", self._contents)


class Rows:
    """Keeps the metrics of each step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def record(self, metrics: dict[str, float]) -> None:
        """See `Metrics`."""
        self.rows.append(metrics)

    def sync(self) -> int:
        """See `Metrics`."""
        return 0


def config_of(options: dict[str, Any]) -> TrainingConfig:
    """A rung's, of this benchmark's size."""
    engine = {"max_model_len": 4096, "max_num_seqs": SEQUENCES, "cpu_threads": 1}
    actors = {"count": ENGINES, "engine": engine, **options.get("actors", {})}
    common = {
        "steps": STEPS,
        "groups_per_step": BATCH,
        "sampling": {"samples": SAMPLES, "max_tokens": LONGEST // SCALE},
        "max_staleness": 100,
        "checkpoint_every": 10_000,
        "recover_every": None,
        "keep_rollouts": False,
        "alarms": {"max_truncated": None},
    }
    return TrainingConfig.model_validate({**common, **options, "actors": actors})


def actor_maker(model: Path, config: TrainingConfig, *, draws: bool = True) -> Callable[[int, int], RayActor]:
    """Makes real actors whose responses have drawn lengths, or those that they are asked to have."""
    import ray

    remote = ray.remote(DrawingActor).options(num_cpus=1, max_concurrency=10_000)
    return lambda index, _: RayActor(lambda: remote.remote(config, str(model), index if draws else None), config.actors)


def lengths(seed: int = 0) -> Callable[[], int]:
    """Draws the lengths of a simulated rung."""
    return make_length_sampler(random.Random(seed), MEAN_TOKENS / SCALE, LONGEST // SCALE)


def typical_length() -> int:
    """Tokens of the response that a sequence in flight belongs to, on average: long ones are in flight for longer."""
    return round(2 * estimate_mean_context(lengths()))


async def curve(model: Path) -> tuple[dict[int, float], float]:
    """Seconds of a decoding step by the number of sequences of each engine, and of an update, all engines at work."""
    config = config_of({})
    make = actor_maker(model, config, draws=False)
    actors = [make(index, 0) for index in range(ENGINES)]
    await asyncio.gather(*(actor.start() for actor in actors))
    seconds = {}
    sampling = SamplingConfig(max_tokens=typical_length())
    for count in (CURVE[-1], *CURVE):  # once to warm up
        before = time.perf_counter()
        done = await asyncio.gather(*(actor.generate(PROMPT, sampling, None) for actor in actors for _ in range(count)))
        seconds[count] = (time.perf_counter() - before) / sampling.max_tokens
        assert all(len(each.token_ids) == sampling.max_tokens for each in done)
    busy = [asyncio.create_task(actor.generate(PROMPT, sampling, None)) for actor in actors for _ in range(SEQUENCES)]
    weights = str(model / "model.safetensors")
    pauses = []
    for version in range(1, UPDATES + 1):
        await asyncio.sleep(0.2)
        done = await asyncio.gather(*(actor.update(weights, version, keep_cache=True) for actor in actors))
        pauses += [timing.pause_seconds for timing in done]
    await asyncio.gather(*busy)
    await asyncio.gather(*(actor.kill() for actor in actors))
    return seconds, statistics.median(pauses)


async def measured(config: TrainingConfig, model: Path, folder: Path) -> list[dict[str, float]]:
    """The metrics of each step of a rung with real engines."""
    chance = random.Random(0)
    prompts = [Prompt(str(number), "math", [], "math", "1", [*PROMPT, number % 200 + 9]) for number in range(5000)]
    rows = Rows()
    ledger = Ledger(folder / "ledger.jsonl")
    collaborators = Collaborators(
        actor_maker(model, config),
        ChanceJudge(chance),
        WeightStore(folder / "weights"),
        RestartingLearner(WritingLearner(model / "model.safetensors"), config),
        ledger,
        rows,
        Checkpoints(folder / "checkpoints"),
        folder / "policies",
    )
    await Controller(config, PromptStream(prompts, 0), collaborators).run()
    ledger.close()
    return rows.rows


def of_second_half(rows: list[dict[str, float]]) -> dict[str, float]:
    """As `simulate` has it."""
    rows = rows[len(rows) // 2 :]
    seconds = sum(row["step_seconds"] for row in rows)
    return {
        "trained": sum(row["trained_tokens"] for row in rows) / seconds,
        "idle": statistics.fmean(row["learner_idle"] for row in rows),
        "staleness": statistics.fmean(row["staleness"] for row in rows),
    }


def ladder(folder: Path) -> dict[str, Any]:
    """The curve, and for each rung what was measured and what clocks of that curve make of it."""
    import ray

    model = build(folder / "ladder-model", ends=False, context=4096)
    ray.init(address="local", num_cpus=ENGINES, include_dashboard=False, log_to_driver=False)
    seconds, update = asyncio.run(curve(model))
    each, once = np.polyfit(list(seconds), list(seconds.values()), 1)
    clock = EngineClock(float(once), max(float(each), 0.0), SEQUENCES, update_seconds=update)
    found: dict[str, Any] = {"update": update} | {f"curve/{count}": value for count, value in seconds.items()}
    for name, options in build_rung_options(BATCH, WIDE, STEPS).items():
        config = config_of(options)
        with tempfile.TemporaryDirectory() as run, contextlib.redirect_stdout(sys.stderr):
            real = of_second_half(asyncio.run(measured(config, model, Path(run))))
        found |= {f"{name}/{key}": value for key, value in real.items()}
        found[f"{name}/simulated"] = statistics.fmean(simulated(config, clock, seed) for seed in range(DRAWS))
    ray.shutdown()
    return found


def simulated(config: TrainingConfig, clock: EngineClock, seed: int) -> float:
    """Trained tokens/s of a rung whose engines are clocks."""
    work = Workload(lengths(seed), prompt_tokens=len(PROMPT) + 1)
    return simulate(config, clock, ClockLearner(LEARNER_TOKENS_PER_SECOND), work).trained_tokens_per_second


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(json.dumps({"rungs": ladder}[sys.argv[1]](Path(sys.argv[2]))))
