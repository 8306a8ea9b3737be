"""The learner is lost: it goes back to its newest checkpoint and takes the steps since then again, unseen by others."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from tasks.planning.virtual_clock import run_in_virtual_time
from tasks.recipe.run import TrainingConfig
from tasks.storage.tensor_digest import Contents
from tasks.training.learner.client import LearnerLostError, StepReport, WrittenWeights
from tasks.training.learner.packing import Sequence
from tasks.training.learner.restartable import DivergedError, NotFiniteError, RestartingLearner
from tasks.training.runtime.timeouts import StalledError
from tests.training.stand_ins import Run, config, never, prompts


@dataclass
class FoldingLearner:
    """Its weights are a fold of all steps, so that a step more, less, or in another order is another policy.

    `fault(call, number)` may raise, wait, or return metrics for a step; `number` counts the calls of that name.
    """

    fault: object = lambda _call, _number: None
    weights: list = field(default_factory=list)
    calls: list = field(default_factory=list)

    async def _called(self, name):
        self.calls.append(name)
        wrong = self.fault(name, self.calls.count(name))
        return await wrong if asyncio.iscoroutine(wrong) else wrong

    async def start(self):
        await self._called("start")

    async def restart(self):
        self.weights = []
        await self._called("restart")

    async def step(self, sequences, denominator, learning_rate):
        wrong = await self._called("step")
        self.weights.append([sequences[0].response_ids[0], denominator, learning_rate])
        return StepReport({"loss": 0.0, "num_tokens": 1.0, **(wrong or {})})

    async def logprobs(self, sequences):
        await self._called("logprobs")
        return [list(self.weights)]

    async def write_weights(self, path):
        await self._called("write_weights")
        path.write_text(weights := f"weights {len(self.weights)}")
        return WrittenWeights("", Contents(1, weights))

    async def save(self, folder):
        folder.mkdir()
        await self._called("save")
        (folder / "weights.json").write_text(json.dumps(self.weights))

    async def wait_until_written(self):
        await self._called("written")
        return True

    async def wait_until_uploaded(self):
        return True

    async def load(self, folder):
        await self._called("load")
        self.weights = json.loads((folder / "weights.json").read_text())


def lost(*when):
    """A fault: ranks are lost in these calls, given as (name, number)."""

    def fault(name, number):
        if (name, number) in when:
            raise LearnerLostError("a learner rank was lost")

    return fault


def sequence(token):
    return Sequence([1], [token], [-0.5], 1.0)


def after(folder, fault, **options):
    """Steps 1 to 3, a checkpoint, and steps 4 and 5: what the weights are, and the learner."""
    folder.mkdir(exist_ok=True)
    learner = FoldingLearner(fault)

    async def main():
        lasting = RestartingLearner(learner, TrainingConfig.model_validate({"learner": options, "stall_seconds": 100}))
        await lasting.start()
        for token in (1, 2, 3):
            await lasting.step([sequence(token)], 1.0, 0.1)
        await lasting.save(folder / "saved")
        if await lasting.wait_until_written():
            lasting.saved(folder / "saved")
        for token in (4, 5):
            await lasting.step([sequence(token)], 1.0, 0.1 * token)
        await lasting.write_weights(folder / "weights")
        return lasting, await lasting.logprobs([sequence(6)])

    lasting, [seen] = run_in_virtual_time(main())
    assert seen == learner.weights
    return learner, lasting


FAULTS = {
    "before the first checkpoint": lost(("step", 2)),
    "while it saves": lost(("save", 1)),
    "after the checkpoint": lost(("step", 5)),
    "before its checkpoint is written": lost(("written", 1), ("step", 5)),
    "while it writes its weights": lost(("write_weights", 1)),
    "while it is asked for log-probabilities": lost(("logprobs", 1)),
    "again, while it starts": lost(("step", 5), ("restart", 1)),
    "again, while it takes a step again": lost(("step", 5), ("step", 6)),
    "and its checkpoint is read twice": lost(("step", 4), ("load", 1)),
    "without a word": lambda name, number: never() if (name, number) == ("step", 5) else None,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_learner_that_is_lost_holds_the_same_policy_afterwards(tmp_path, fault):
    expected, _ = after(tmp_path / "expected", lost())
    learner, lasting = after(tmp_path / "found", fault)
    assert learner.weights == expected.weights
    assert lasting.take_figures(1.0)["learner_restarts"] in (1, 2)


def test_only_the_steps_since_the_newest_checkpoint_are_taken_again(tmp_path):
    learner, _ = after(tmp_path, lost(("write_weights", 1)))
    assert learner.calls[-6:] == ["restart", "load", "step", "step", "write_weights", "logprobs"]


def test_a_learner_that_is_lost_too_often_ends_the_run_with_the_option_that_says_so(tmp_path):
    always = [("step", number) for number in range(5, 20)]
    with pytest.raises(LearnerLostError, match=r"was lost, after learner\.max_restarts = 2 in 3600 s"):
        after(tmp_path, lost(*always), max_restarts=2)


def test_losses_that_are_found_late_end_the_run_as_well(tmp_path):
    """Each hangs for half an hour: within the window there never are enough of them."""
    hangs = lambda name, number: never() if name == "step" and number > 4 else None  # noqa: E731
    with pytest.raises(LearnerLostError, match=r"learner\.max_restarts = 2 without a new step between them"):
        after(tmp_path, hangs, max_restarts=2, restart_window_seconds=50)


def test_a_checkpoint_that_is_not_written_in_time_ends_the_run(tmp_path):
    with pytest.raises(StalledError, match=r"the learner writes its checkpoint; .* stall_seconds = 100"):
        after(tmp_path, lambda name, _number: never() if name == "written" else None)


def test_computing_is_all_but_publishing_saving_and_waiting(tmp_path):
    seconds = {"step": 10, "logprobs": 6, "write_weights": 5, "save": 3}
    _, lasting = after(tmp_path, lambda name, _number: asyncio.sleep(seconds.get(name, 0)))
    assert lasting.take_figures(100.0)["learner_idle"] == pytest.approx(1 - (5 * 10 + 6) / 100)


@pytest.mark.parametrize("metric", ["loss", "grad_norm"])
def test_a_step_that_is_not_finite_leaves_no_trace_in_the_learner(metric):
    learner = FoldingLearner(lambda name, number: {metric: float("nan")} if (name, number) == ("step", 2) else None)

    async def main():
        lasting = RestartingLearner(learner, TrainingConfig())
        await lasting.step([sequence(1)], 1.0, 0.1)
        with pytest.raises(NotFiniteError, match=f"the learner's step is not finite: {metric} = nan"):
            await lasting.step([sequence(2)], 1.0, 0.1)
        await lasting.step([sequence(3)], 1.0, 0.1)

    run_in_virtual_time(main())
    assert [token for token, *_ in learner.weights] == [1, 3]


# In a whole run


def run_with(folder, fault):
    """A run of 8 steps whose learner has this fault."""
    learner = FoldingLearner(fault)
    return Run(folder, config(steps=8, checkpoint_every=3), prompts(40), learner=learner)


def test_a_run_whose_learner_is_lost_trains_every_group_once_and_its_actors_see_nothing(tmp_path):
    run = run_with(tmp_path, lost(("step", 5), ("step", 9))).play()
    assert [row["step"] for row in run.metrics()] == list(range(8))
    trained = run.rows("trained")
    assert sorted({row["step"] for row in trained}) == list(range(8))
    assert len({row["group"] for row in trained}) == len(trained)
    assert len(run.actors) == run.config.actors.count
    for actor in run.actors:
        assert actor.updates == sorted(set(actor.updates))
    assert sum(row["learner_restarts"] for row in run.metrics()) == 2


def test_a_batch_whose_step_is_not_finite_is_left_out_and_named_in_the_ledger(tmp_path):
    fault = lambda name, number: {"loss": float("inf")} if (name, number) == ("step", 4) else None  # noqa: E731
    run = run_with(tmp_path, fault).play()
    failed = run.rows("failed")
    assert len(failed) == run.config.groups_per_step
    assert {row["detail"] for row in failed} == {"the learner's step is not finite: loss = inf"}
    assert len(run.rows("trained")) == 8 * run.config.groups_per_step
    assert len(run.learner.weights) == 8


def test_a_run_that_diverges_ends_at_its_newest_checkpoint(tmp_path):
    fault = lambda name, number: {"loss": float("nan")} if name == "step" and number > 4 else None  # noqa: E731
    with pytest.raises(DivergedError, match=r"The newest checkpoint is intact; a lower optimizer\.learning_rate"):
        run_with(tmp_path, fault).play()
    [checkpoint] = (tmp_path / "checkpoints").glob("step_*")
    assert checkpoint.name == "step_00000003"
