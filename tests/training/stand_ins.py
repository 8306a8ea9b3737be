"""In-process stand-ins for actor, learner and judge, so that the controller's decisions can be tested by themselves.

A response's text decides everything about it: `right` has the tokens of its five letters, and the judge looks its score
up in a table.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tasks.environments.episode import EpisodePlayer
from tasks.generation.config import SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.generation.interface import Completion, EngineStatistics, VersionSpan, WeightUpdate
from tasks.planning.virtual_clock import run_in_virtual_time
from tasks.recipe.objective import ShapingConfig
from tasks.recipe.run import TrainingConfig
from tasks.storage.tensor_digest import Contents
from tasks.tables.parquet import read_table
from tasks.training.actors.rewards import JudgementError
from tasks.training.actors.weights import WeightStore
from tasks.training.control.collaborators import Collaborators
from tasks.training.control.controller import Controller
from tasks.training.control.own_advantages import resolve_advantages
from tasks.training.control.prompt_stream import PromptStream
from tasks.training.control.validation import split_validation
from tasks.training.control.validation_figures import Question
from tasks.training.groups.group import Prompt
from tasks.training.learner.client import StepReport, WrittenWeights
from tasks.training.learner.packing import Sequence
from tasks.training.learner.restartable import RestartingLearner
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.identity import run_setup
from tasks.training.records.journal import Journal, cut_back_records
from tasks.training.records.ledger import Ledger
from tasks.training.records.response_files import TRAINING_ROLLOUTS, RolloutFiles
from tasks.training.records.run_state import RunState
from tasks.training.records.saved_groups import load_groups
from tasks.training.runtime.gpu_time_sharing import Turns
from tasks.verifiers import Score

SCORES = {"right": 1.0, "half": 0.5, "wrong": 0.0}
CUT = {"half"}
"""Responses that the length limit cut."""
LOGPROB, OLD_LOGPROB, REF_LOGPROB = -0.25, -0.5, -1.5
HUNG_SECONDS = 1e6
"""Of the clock in which stand-ins live: a run that takes longer has hung, and fails with a traceback."""


def prompts(
    count: int, domain: Callable[[int], str] = lambda _: "math", environment: EnvironmentSpec | None = None
) -> list[Prompt]:
    """Prompts 1, 2, ..: number i has the id `p<i>` and the tokens [i, 1000]."""
    return [
        Prompt(
            f"p{i}",
            domain(i),
            [{"role": "user", "content": f"question {i}"}],
            "math",
            "1",
            [i, 1000],
            environment=environment,
        )
        for i in range(1, count + 1)
    ]


def config(**options) -> TrainingConfig:
    """Two groups of two samples a step, one batch ahead of the learner, unless `options` say otherwise."""
    defaults = {
        "steps": 3,
        "groups_per_step": 2,
        "sampling": SamplingConfig(samples=2, max_tokens=8),
        "async_steps": 1,
        "checkpoint_every": 100,
        "recover_every": None,
        "stall_seconds": 30,
    }
    return TrainingConfig(**{**defaults, **options})


Answer = Callable[["ScriptedActor", int], Awaitable[list[str]]]


def always(*texts: str) -> Answer:
    """Every prompt is answered by these responses, at once."""

    async def answer(_actor, _prompt):
        return list(texts)

    return answer


class ScriptedActor:
    """Generates what `answer(actor, prompt number)` returns; keeps a diary of what it was asked to do.

    A response's first token is stamped with the version held when generation began, the others with that at its end.
    """

    def __init__(self, answer: Answer, *, on_update=None):
        self.answer = answer
        self.on_update = on_update
        self.version = 0
        self.diary: list[tuple] = []
        self.killed = False
        self.kept_cache = None
        self.unanswered: dict[int, list] = {}

    async def placed(self):
        """There is room for it."""

    async def start(self):
        self.diary.append(("start",))

    async def generate(self, prompt_ids, sampling, seed):
        """The samples of a prompt are asked for one after the other, and answered together."""
        number, began = prompt_ids[0], self.version
        if not self.unanswered.get(number):
            self.diary.append(("generate", number, began))
            answer = asyncio.ensure_future(self.answer(self, number))
            self.unanswered[number] = [(answer, index) for index in range(sampling.samples)]
        answer, index = self.unanswered[number].pop(0)
        try:
            texts = await answer
        except asyncio.CancelledError:  # the group is given up: what waits of its answer is no other group's
            self.unanswered.pop(number, None)
            raise
        assert len(texts) == sampling.samples
        return self.completion(texts[index], began)

    def completion(self, text, began):
        tokens = list(text.encode(errors="surrogatepass"))
        spans = [VersionSpan(began, 0, 1), VersionSpan(self.version, 1, len(tokens))]
        if began == self.version:
            spans = [VersionSpan(began, 0, len(tokens))]
        return Completion(text, tokens, [LOGPROB] * len(tokens), "length" if text in CUT else "stop", spans)

    async def statistics(self):
        return EngineStatistics(generated_tokens=len(self.diary))

    async def update(self, path, version, *, keep_cache):
        self.diary.append(("update", version))
        self.kept_cache = keep_cache
        if self.on_update:
            await self.on_update(self, version)
        assert Path(path).read_text() == f"weights {version}"
        self.version = version
        return WeightUpdate(0.01, 0.02, self.arrived(Path(path).read_text()))

    def arrived(self, weights):
        return Contents(1, weights)

    async def sleep(self):
        self.diary.append(("sleep",))

    async def wake(self):
        self.diary.append(("wake",))

    async def kill(self):
        self.killed = True

    @property
    def sampled(self) -> list[int]:
        """Numbers of the prompts that it was asked to answer."""
        return [entry[1] for entry in self.diary if entry[0] == "generate"]

    @property
    def updates(self) -> list[int]:
        """Versions that it was given."""
        return [entry[1] for entry in self.diary if entry[0] == "update"]


class TableJudge:
    """Scores a response by `SCORES`; one that is not in the table cannot be scored."""

    def __init__(self):
        self.judged = 0

    async def figures(self):
        return {"math/calls": self.judged}

    async def score(self, _verifier, response, _ground_truth, _messages):
        await asyncio.sleep(0)
        self.judged += 1
        if response not in SCORES:
            raise JudgementError(f"no verdict on {response!r}")
        return Score(SCORES[response], SCORES[response] == 1.0, "")


@dataclass
class Step:
    """One call of `Learner.step`."""

    sequences: list[Sequence]
    denominator: float
    learning_rate: float

    @property
    def prompts(self) -> list[int]:
        """Numbers of the prompts in the batch, one for each group."""
        return sorted({sequence.prompt_ids[0] for sequence in self.sequences})


@dataclass
class RecordingLearner:
    """Records its batches; `on_step(number of steps before)` may wait or raise. Its weights are a count of batches."""

    on_step: Callable[[int], Awaitable[None]] | None = None
    steps_per_batch: int = 1
    steps: list[Step] = field(default_factory=list)
    version: int = 0

    async def start(self):
        pass

    async def step(self, sequences, denominator, learning_rate):
        self.steps.append(Step(sequences, denominator, learning_rate))
        if self.on_step:
            await self.on_step(self.version)
        await asyncio.sleep(0)
        self.version += 1
        metrics = {"num_tokens": float(sum(s.num_trained for s in sequences)), "loss": 0.0}
        returned = {s.kept_as: np.full(len(s.response_ids), OLD_LOGPROB) for s in sequences if s.is_returned}
        return StepReport(metrics, returned)

    async def logprobs(self, sequences):
        return [[OLD_LOGPROB] * len(s.response_ids) for s in sequences]

    async def reference_logprobs(self, sequences):
        return [[REF_LOGPROB] * len(s.response_ids) for s in sequences]

    async def write_weights(self, path):
        weights = f"weights {self.version // self.steps_per_batch}"
        path.write_text(weights)
        return WrittenWeights("", Contents(1, weights))

    async def export(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model").write_text(f"weights {self.version // self.steps_per_batch}")

    async def save(self, folder):
        folder.mkdir()
        (folder / "learner.json").write_text(json.dumps(self.version))

    async def wait_until_written(self):
        return True

    async def wait_until_uploaded(self):
        return True

    async def load(self, folder):
        self.version = json.loads((folder / "learner.json").read_text())

    async def restart(self):
        self.version = 0

    async def offload_states(self):
        pass

    async def reload_states(self):
        pass


@dataclass
class Run:
    """A controller with its collaborators in a run folder, resumed from the newest checkpoint where there is one."""

    folder: Path
    config: TrainingConfig
    prompts: list[Prompt]
    answer: Answer = field(default_factory=lambda: always("right", "wrong"))
    learner: RecordingLearner = field(default_factory=RecordingLearner)
    judge: object = field(default_factory=TableJudge)
    make_actor: Callable[[int], ScriptedActor] | None = None
    questions: list[Question] = field(default_factory=list)
    episodes: EpisodePlayer | None = None
    on_saved: Callable[[Path], None] = lambda _: None
    phases: list[str] = field(default_factory=list)
    attempts: list[tuple[int, int]] = field(default_factory=list)
    actors: list[ScriptedActor] = field(default_factory=list)

    def play(self) -> "Run":
        """Run to the end in an event loop of its own."""
        run_in_virtual_time(asyncio.wait_for(self.run(), HUNG_SECONDS))
        return self

    async def run(self) -> None:
        self.checkpoints = Checkpoints(self.folder / "checkpoints", self.on_saved, every=self.config.checkpoint_every)
        checkpoint = self.checkpoints.find_newest()
        state = RunState.read(checkpoint) if checkpoint else RunState.begin(run_setup(self.config))
        cut_back_records(self.folder, state)
        self.weights = WeightStore(self.folder / "weights")
        rollouts = RolloutFiles(self.folder / "rollouts", state.rollout_files, keep_tokens=self.config.keep_tokens)
        self.ledger = Ledger(self.folder / "ledger.jsonl", rollouts)
        self.journal = Journal(self.folder)
        turns = Turns(taken=self.config.takes_turns)
        learner = RestartingLearner(self.learner, self.config, turns)
        trained, validated = split_validation(self.prompts, self.config)
        collaborators = Collaborators(
            self._new_actor,
            self.judge,
            self.weights,
            learner,
            self.ledger,
            self.journal,
            self.checkpoints,
            self.folder / "policies",
            on_phase=self.phases.append,
            advantages=resolve_advantages(self.config.objective),
            validation_prompts=validated,
            questions=self.questions,
            turns=turns,
            episodes=self.episodes,
        )
        try:
            stream = PromptStream(trained, self.config.seed, self.config.prompts, self.config.steps)
            self.controller = Controller(self.config, stream, collaborators)
            if checkpoint:
                await self.controller.resume(checkpoint, self.journal.rows())
            await self.controller.run()
        finally:
            self.ledger.close()
            self.journal.close()

    def _new_actor(self, index, attempt):
        self.attempts.append((index, attempt))
        actor = self.make_actor(index) if self.make_actor else ScriptedActor(self.answer)
        self.actors.append(actor)
        return actor

    def rows(self, *fates: str) -> list[dict]:
        """The ledger's rows of these fates, or of all, by group number."""
        rows = [json.loads(line) for line in (self.folder / "ledger.jsonl").read_text().splitlines()]
        return sorted((row for row in rows if not fates or row["fate"] in fates), key=lambda row: row["group"])

    def rollouts(self) -> list[dict]:
        """The rows of all files of responses, in their order."""
        files = sorted((self.folder / "rollouts").glob("*.parquet"))
        return [row for file in files for row in read_table(file, TRAINING_ROLLOUTS).to_pylist()]

    def metrics(self) -> list[dict]:
        """The journal's rows."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition()` holds."""
    while not condition():
        await asyncio.sleep(0)


async def settle() -> None:
    """Let everything happen that can happen while the caller waits."""
    for _ in range(200):
        await asyncio.sleep(0)


def saved_groups(checkpoint, prompts):
    """The groups of a checkpoint: those that were ready, and those in flight."""
    by_id = {prompt.prompt_id: prompt for prompt in prompts}
    return load_groups(Checkpoints.find_groups_file(checkpoint), by_id, ShapingConfig())


def tasks_left_by_cancelling(run, ready_to_cancel):
    """Cancel a run when it is ready for that; what still runs then."""

    async def main():
        running = asyncio.create_task(run.run())
        await asyncio.wait_for(until(ready_to_cancel), HUNG_SECONDS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return asyncio.all_tasks() - {asyncio.current_task()}

    return run_in_virtual_time(main())


async def never():
    """Wait for ever."""
    await asyncio.Event().wait()


def numbers(rows):
    """Group numbers of ledger rows."""
    return [row["group"] for row in rows]


def ids(rows):
    """Prompt numbers of ledger rows."""
    return [int(row["prompt_id"][1:]) for row in rows]
