"""Simulates training in virtual time: the real controller, window and fleet, with simulated actors and learner."""

from __future__ import annotations

import contextlib
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.planning.simulated_actors import ChanceJudge, ClockActor, ClockLearner, EngineClock
from tasks.planning.virtual_clock import run_in_virtual_time
from tasks.recipe.run import TrainingConfig
from tasks.training.actors.process import Actor
from tasks.training.actors.rewards import RewardClient
from tasks.training.actors.weights import WeightStore
from tasks.training.control.batch import Advantage
from tasks.training.control.collaborators import Collaborators
from tasks.training.control.controller import Controller
from tasks.training.control.prompt_stream import PromptStream
from tasks.training.control.validation import split_validation
from tasks.training.groups.group import JudgedGroup, Prompt
from tasks.training.learner.client import Learner
from tasks.training.learner.restartable import RestartingLearner
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.journal import Metrics
from tasks.training.records.ledger import Ledger
from tasks.training.records.response_files import RolloutFiles
from tasks.training.runtime.gpu_time_sharing import Turns


@dataclass(frozen=True)
class Workload:
    """The prompts and responses of a simulated run.

    Attributes:
        draw_tokens: function that returns the length of the next response, tokens.
        prompt_tokens: length of every prompt.
        zero_variance: share of prompts for which no response passes.
        prompts: number of prompts.
    """

    draw_tokens: Callable[[], int]
    prompt_tokens: int = 256
    zero_variance: float = 0.0
    prompts: int = 20_000


@dataclass(frozen=True)
class Simulated:
    """The measurements of a simulated run over its second half, without its beginning.

    Attributes:
        tokens_per_second: tokens/s of finished responses, of all engines together.
        trained_tokens_per_second: tokens/s of responses that the learner trained on.
        learner_idle: share of the time during which the learner did not compute.
        actors_idle: share of the time during which an engine had nothing to generate, or paused, averaged over engines.
        staleness: mean age of the tokens trained on, in versions.
        staleness_max: maximum age.
        stale: share of the scored groups that were dropped because they were older than `max_staleness`.
        step_seconds: mean duration of a step.
    """

    tokens_per_second: float
    trained_tokens_per_second: float
    learner_idle: float
    actors_idle: float
    staleness: float
    staleness_max: float
    stale: float
    step_seconds: float


class EnoughError(Exception):
    """Enough steps are measured, so the simulated run ends."""


class _Metrics:
    """Collects the metrics of a run of `steps` steps, and the busy seconds of learner and actors up to each step."""

    def __init__(self, steps: int, at_step: Callable[[], tuple[float, float]]) -> None:
        self._steps = steps
        self.rows: list[dict[str, float]] = []
        self.busy: list[tuple[float, float]] = []
        self._at_step = at_step

    def record(self, metrics: dict[str, float]) -> None:
        self.rows.append(metrics)
        self.busy.append(self._at_step())
        if len(self.rows) == self._steps:
            raise EnoughError

    def add_validation(self, figures: dict[str, float]) -> None:
        """Ignore the metrics: no plan begins at its last step."""

    def sync(self) -> int:
        return 0


def compute_centred_scores(
    batch: Sequence[JudgedGroup], _: list[float], config: TrainingConfig
) -> list[list[Advantage]]:
    """Return the scores minus their mean, by group: they are 0 for the same responses as the advantages.

    A step's duration depends on nothing else, and this needs no torch. The mean is over the group or, for
    `reinforce_pp`, over the batch.
    """
    groups = [group.scores for group in batch]
    overall = statistics.fmean(score for scores in groups for score in scores)
    by_batch = config.objective.advantage == "reinforce_pp"
    return [[score - (overall if by_batch else statistics.fmean(scores)) for score in scores] for scores in groups]


def play(
    config: TrainingConfig,
    prompts: Sequence[Prompt],
    make_actor: Callable[[int, int], Actor],
    judge: RewardClient,
    learner: Learner,
    metrics: Metrics,
    *,
    seed: int = 0,
    keep_rollouts: bool = False,
) -> None:
    """Run `config` in virtual time and in a temporary folder, to its end or until `metrics` raises `EnoughError`."""
    trained, validated = split_validation(prompts, config)

    async def run(folder: Path) -> None:
        ledger = Ledger(folder / "ledger.jsonl", RolloutFiles(folder / "rollouts", keep=keep_rollouts))
        turns = Turns(taken=config.takes_turns)
        collaborators = Collaborators(
            make_actor,
            judge,
            WeightStore(folder / "weights"),
            RestartingLearner(learner, config, turns),
            ledger,
            metrics,
            Checkpoints(folder / "checkpoints"),
            folder / "policies",
            validation_prompts=validated,
            advantages=compute_centred_scores,
            turns=turns,
        )
        with contextlib.suppress(EnoughError):
            await Controller(config, PromptStream(trained, seed), collaborators).run()
        ledger.close()

    with tempfile.TemporaryDirectory() as folder:
        run_in_virtual_time(run(Path(folder)))


def simulate(
    config: TrainingConfig,
    engine: EngineClock | Callable[[int], EngineClock | ClockActor],
    learner: ClockLearner,
    workload: Workload,
    seed: int = 0,
) -> Simulated:
    """Run `config` in virtual time, and return what was measured over the second half.

    Args:
        config: the run's options; `steps` steps are simulated.
        engine: speed of every engine, or a function from an engine's index to its speed or to the simulated engine.
        learner: the simulated learner.
        workload: prompts and response lengths.
        seed: seed of prompts and scores.
    """
    chance = random.Random(seed)
    actors: list[ClockActor] = []

    def make_actor(index: int, _: int) -> ClockActor:
        made = engine if isinstance(engine, EngineClock) else engine(index)
        actors.append(made if isinstance(made, ClockActor) else ClockActor(made, workload.draw_tokens))
        return actors[-1]

    def measure_busy() -> tuple[float, float]:
        for actor in actors:
            actor.advance()
        return learner.busy_seconds, sum(actor.busy_seconds for actor in actors)

    metrics = _Metrics(config.steps, measure_busy)
    prompt = [0] * workload.prompt_tokens
    prompts = [
        Prompt(str(number), "math", [], "math", None if chance.random() < workload.zero_variance else "1", prompt)
        for number in range(workload.prompts)
    ]

    # At its end a run waits for its last validation, which is not part of a step.
    endless = config.model_copy(update={"steps": 1_000_000, "log_completions": 0, "keep_tokens": 0})  # no output
    play(endless, prompts, make_actor, ChanceJudge(chance), learner, metrics, seed=seed)
    half = len(metrics.rows) // 2
    rows = metrics.rows[half:]
    seconds = sum(row["step_seconds"] for row in rows)
    ends = zip(metrics.busy[half - 1], metrics.busy[-1], strict=True)
    learner_busy, actors_busy = (after - before for before, after in ends)
    return Simulated(
        tokens_per_second=sum(row["generated_tokens"] for row in rows) / seconds,
        trained_tokens_per_second=sum(row["trained_tokens"] for row in rows) / seconds,
        learner_idle=1 - learner_busy / seconds,
        actors_idle=1 - actors_busy / seconds / len(actors),
        staleness=statistics.fmean(row["staleness"] for row in rows),
        staleness_max=max(row["staleness_max"] for row in rows),
        stale=sum(row["stale_groups"] for row in rows) / max(sum(row["groups"] for row in rows), 1),
        step_seconds=seconds / len(rows),
    )
