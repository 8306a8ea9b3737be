"""What the controller promises, shown with stand-ins for actors, learner and judge."""

import asyncio
import math
from collections import Counter

import pytest

from tasks.recipe.run import ActorsConfig
from tasks.training.control.controller import NoSignalError
from tasks.training.learner.client import StepReport
from tasks.training.runtime.timeouts import StalledError
from tests.training.stand_ins import (
    LOGPROB,
    OLD_LOGPROB,
    RecordingLearner,
    Run,
    ScriptedActor,
    TableJudge,
    config,
    ids,
    never,
    numbers,
    prompts,
    settle,
    tasks_left_by_cancelling,
    until,
)

# Which groups are trained


def test_groups_whose_scores_are_all_equal_are_replaced_and_every_batch_is_full(tmp_path):
    async def odd_prompts_teach(_actor, prompt):
        return ["right", "wrong"] if prompt % 2 else ["right", "right"]

    run = Run(tmp_path, config(steps=3), prompts(50), odd_prompts_teach).play()
    assert [step.prompts for step in run.learner.steps] == [[1, 3], [5, 7], [9, 11]]
    assert all(len(step.sequences) == 4 for step in run.learner.steps)
    assert ids(run.rows("zero_variance"))[:5] == [2, 4, 6, 8, 10]


def test_the_groups_that_are_sampled_are_reported_until_the_first_step(tmp_path):
    run = Run(tmp_path, config(steps=3, groups_per_step=2), prompts(50)).play()
    assert run.phases
    assert all(phase.endswith(" of 2 groups of step 0 are sampled") for phase in run.phases)


def test_every_sampled_group_has_one_fate_and_a_trained_one_the_step_that_took_it(tmp_path):
    async def some_teach(_actor, prompt):
        return {0: ["wrong", "wrong"], 1: ["right", "?"]}.get(prompt % 4, ["right", "wrong"])

    run = Run(tmp_path, config(steps=4, async_steps=2), prompts(50), some_teach).play()
    assert numbers(run.rows()) == list(range(sum(len(actor.sampled) for actor in run.actors)))
    for step, batch in enumerate(run.learner.steps):
        assert sorted(ids(row for row in run.rows("trained") if row["step"] == step)) == batch.prompts
    assert {row["fate"] for row in run.rows()} == {"trained", "zero_variance", "failed", "unused"}
    assert all(row["step"] is None for row in run.rows() if row["fate"] != "trained")


def test_a_stale_group_is_dropped_and_its_prompt_sampled_again(tmp_path):
    learner = RecordingLearner()
    asked = Counter()

    async def first_prompt_takes_two_steps(_actor, prompt):
        asked[prompt] += 1
        if prompt == 1 and asked[prompt] == 1:
            await until(lambda: learner.version == 2)
        return ["right", "wrong"]

    options = config(steps=6, groups_per_step=1, async_steps=2, max_staleness=1)
    run = Run(tmp_path, options, prompts(50), first_prompt_takes_two_steps, learner).play()
    stale, *_ = run.rows("stale")
    assert (stale["prompt_id"], stale["first_version"], stale["detail"]) == ("p1", 0, "2 versions old")
    assert asked[1] == 2
    assert 1 in ids(run.rows("trained"))
    assert all(row["step"] - row["first_version"] <= 1 for row in run.rows("trained"))


@pytest.mark.parametrize("beyond", ["abort", "mask"])
def test_what_becomes_of_tokens_beyond_the_staleness_bound_is_configured(tmp_path, beyond):
    learner = RecordingLearner(lambda _: settle())
    asked = Counter()

    async def first_prompt_is_slow(actor, prompt):
        asked[prompt] += 1
        if prompt == 1 and asked[prompt] == 1:
            await until(lambda: actor.version >= 2)
            if beyond == "abort":
                await never()
        return ["right", "wrong"]

    options = config(steps=6, groups_per_step=1, async_steps=2, max_staleness=1, beyond_staleness=beyond)
    run = Run(tmp_path, options, prompts(50), first_prompt_is_slow, learner).play()
    if beyond == "abort":  # what would never have ended is given up, and its prompt sampled again
        first, *_ = run.rows("stale")
        assert (first["prompt_id"], first["first_version"], first["num_tokens"]) == ("p1", 0, [])
        assert 1 in ids(run.rows("trained"))
    else:  # its first token, of version 0, has no part in a step from version 2 on; the others, of version 2, have
        assert 1 not in ids(run.rows("stale"))
        step = next(row["step"] for row in run.rows("trained") if row["prompt_id"] == "p1")
        assert [s.mask for s in learner.steps[step].sequences] == [[False] + [True] * 4] * 2


def test_policies_leave_the_run_while_it_goes(tmp_path):
    Run(tmp_path, config(steps=5, export_every=2), prompts(50)).play()
    exported = {path.name: (path / "model").read_text() for path in (tmp_path / "policies").iterdir()}
    assert exported == {"step_00000002": "weights 2", "step_00000004": "weights 4"}


def test_the_window_bounds_how_far_sampling_runs_ahead_of_the_learner(tmp_path):
    ahead = []

    async def let_the_actors_work(_):
        await settle()
        taken = run.config.groups_per_step * len(run.learner.steps)
        ahead.append(sum(len(actor.sampled) for actor in run.actors) - taken)

    options = config(steps=3, groups_per_step=2, async_steps=3, actors=ActorsConfig(count=2))
    run = Run(tmp_path, options, prompts(50), learner=RecordingLearner(let_the_actors_work))
    run.play()
    assert ahead == [6, 6, 6]  # groups_per_step * async_steps: full, and never more


# What the learner is given


def test_a_batch_holds_every_trained_token_once_with_the_reward_less_the_groups_mean(tmp_path):
    async def answers(_actor, prompt):
        return {1: ["right", "wrong", "wrong", "wrong"], 2: ["half", "right", "half", "wrong"]}[prompt]

    options = config(steps=1, sampling={"samples": 4, "max_tokens": 8})
    [step] = Run(tmp_path, options, prompts(2), answers).play().learner.steps
    assert sorted((s.prompt_ids[0], bytes(s.response_ids).decode(), s.advantage) for s in step.sequences) == [
        (1, "right", 0.75),
        (1, "wrong", -0.25),
        (1, "wrong", -0.25),
        (1, "wrong", -0.25),
        (2, "half", 0.0),
        (2, "half", 0.0),
        (2, "right", 0.5),
        (2, "wrong", -0.5),
    ]
    assert step.denominator == 6 * 5 + 2 * 4
    assert all(list(s.rollout_logprobs) == [LOGPROB] * len(s.response_ids) for s in step.sequences)
    assert all(s.num_trained == len(s.response_ids) for s in step.sequences)


def test_truncated_responses_leave_the_loss_and_stay_in_their_group(tmp_path):
    async def answers(_actor, _prompt):
        return ["half", "right", "half", "wrong"]

    objective = {"shaping": {"filter_truncated": True}}
    options = config(steps=1, groups_per_step=1, sampling={"samples": 4, "max_tokens": 8}, objective=objective)
    [step] = Run(tmp_path, options, prompts(1), answers).play().learner.steps
    trained = sorted((bytes(s.response_ids).decode(), s.num_trained, s.advantage) for s in step.sequences)
    assert trained == [("half", 0, 0.0), ("half", 0, 0.0), ("right", 5, 0.5), ("wrong", 5, -0.5)]
    assert step.denominator == 2 * 5


def test_a_batch_is_cut_into_minibatches_of_whole_groups_and_passed_over_again(tmp_path):
    async def answers(_actor, _prompt):
        return ["right", "wrong"]

    options = config(steps=1, groups_per_step=4, updates={"minibatches": 2, "epochs": 2})
    run = Run(tmp_path, options, prompts(4), answers, learner=RecordingLearner(steps_per_batch=4)).play()
    steps = run.learner.steps
    assert [[s.prompt_ids[0] for s in step.sequences] for step in steps] == [[1, 1, 2, 2], [3, 3, 4, 4]] * 2
    assert [step.denominator for step in steps] == [20] * 4
    assert len({step.learning_rate for step in steps}) == 1
    assert all(list(s.old_logprobs) == [OLD_LOGPROB] * 5 for step in steps for s in step.sequences)
    [row] = run.metrics()
    assert row["trained_tokens"] == 80


def test_the_distance_from_the_reference_is_taken_from_the_reward(tmp_path):
    async def answers(_actor, _prompt):
        return ["right", "right", "half", "wrong"]

    objective = {"kl": {"beta": 0.1, "estimator": "k1", "in_reward": True}}
    options = config(steps=1, groups_per_step=1, sampling={"samples": 4, "max_tokens": 8}, objective=objective)
    run = Run(tmp_path, options, prompts(1), answers).play()
    # k1 of each token is OLD_LOGPROB - REF_LOGPROB = 1 nat: the rewards are 1 - 0.5, 1 - 0.5, 0.5 - 0.4 and 0 - 0.5
    mean = (0.5 + 0.5 + 0.1 - 0.5) / 4
    expected = [0.5 - mean, 0.5 - mean, 0.1 - mean, -0.5 - mean]
    [step] = run.learner.steps
    assert [s.advantage for s in step.sequences] == pytest.approx(expected)
    assert all(list(s.old_logprobs) == [OLD_LOGPROB] * len(s.response_ids) for s in step.sequences)
    [row] = run.metrics()
    assert row["kl"] == pytest.approx(1.0)
    assert row["batch_reward"] == pytest.approx((1 + 1 + 0.5 + 0) / 4)


def test_the_metrics_of_several_updates_are_those_of_all_their_tokens():
    updates = [
        {"num_tokens": 10.0, "loss": 1.0, "grad_norm": 2.0, "ratio": 1.0, "ratio_max": 3.0, "learn_seconds": 0.5},
        {"num_tokens": 30.0, "loss": 3.0, "grad_norm": 4.0, "ratio": 2.0, "ratio_max": 2.5, "learn_seconds": 0.25},
    ]
    assert StepReport.merge([StepReport(metrics) for metrics in updates]).metrics == {
        "num_tokens": 40.0,
        "loss": 2.0,
        "grad_norm": 3.0,
        "ratio": (10 * 1.0 + 30 * 2.0) / 40,
        "ratio_max": 3.0,
        "learn_seconds": 0.75,
    }


def test_of_a_single_update_the_old_policy_is_the_one_it_starts_from(tmp_path):
    run = Run(tmp_path, config(steps=1), prompts(9)).play()
    assert all(s.old_logprobs is None for step in run.learner.steps for s in step.sequences)


def test_the_learning_rate_of_each_step_follows_the_schedule(tmp_path):
    options = config(steps=4, optimizer={"learning_rate": 1.0, "warmup_steps": 2, "schedule": "linear"})
    run = Run(tmp_path, options, prompts(50)).play()
    assert [step.learning_rate for step in run.learner.steps] == [0.5, 1.0, 1.0, 0.5]
    assert [row["learning_rate"] for row in run.metrics()] == [0.5, 1.0, 1.0, 0.5]


# How new weights reach the actors


def test_weights_arrive_in_the_middle_of_a_generation(tmp_path):
    learner = RecordingLearner()

    async def first_prompt_spans_a_step(actor, prompt):
        if prompt == 1:
            await until(lambda: actor.version == 1)
        return ["right", "wrong"]

    options = config(steps=3, groups_per_step=1, async_steps=2)
    run = Run(tmp_path, options, prompts(50), first_prompt_spans_a_step, learner).play()
    [row] = [row for row in run.rows() if row["prompt_id"] == "p1"]
    assert (row["fate"], row["first_version"], row["last_version"]) == ("trained", 0, 1)
    assert max(run.metrics()[row["step"]][name] for name in ("staleness", "staleness_max")) == row["step"]


def test_an_update_that_ends_in_a_later_step_is_measured_there(tmp_path):
    recorded = asyncio.Event()

    class BusyJudge(TableJudge):
        async def figures(self):
            await settle()  # the update begins before the step is recorded
            return {}

    async def ends_in_the_next_step(_actor, version):
        await (recorded.wait() if version == 1 else never())

    async def wait_for_the_update(step):
        if step == 1:
            recorded.set()
            await until(lambda: run.actors[0].version == 1)

    run = Run(tmp_path, config(steps=2), prompts(50), learner=RecordingLearner(wait_for_the_update), judge=BusyJudge())
    run.make_actor = lambda _: ScriptedActor(run.answer, on_update=ends_in_the_next_step)
    first, second = run.play().metrics()
    assert "update_seconds" not in first
    assert (second["update_pause_seconds"], second["update_seconds"]) == (0.01, 0.02)


def test_a_slow_actor_holds_up_nobody_and_keeps_the_file_that_it_reads(tmp_path):
    released = asyncio.Event()
    files = {}

    async def slow_first_update(_actor, version):
        if version == 1:
            await released.wait()

    def make_actor(index):
        return ScriptedActor(run.answer, on_update=slow_first_update if index == 0 else None)

    async def after_three_steps(step):
        slow, fast = run.actors
        if step == 0:
            await until(lambda: fast.sampled and slow.sampled)
        else:
            await until(lambda: fast.version == step and slow.updates)
        files[step] = sorted(path.name for path in run.weights.path(0).parent.iterdir())
        if step == 3:
            released.set()
            await until(lambda: slow.version == 3)
            files["after"] = sorted(path.name for path in run.weights.path(0).parent.iterdir())

    options = config(steps=4, actors=ActorsConfig(count=2))
    run = Run(tmp_path, options, prompts(50), learner=RecordingLearner(after_three_steps), make_actor=make_actor)
    run.play()
    slow, fast = run.actors
    assert fast.updates[:3] == [1, 2, 3]
    assert slow.updates[:2] == [1, 3]  # it skips what is no longer the newest
    names = {version: run.weights.path(version).name for version in (1, 2, 3)}
    assert files == {0: [], 1: [names[1]], 2: [names[1], names[2]], 3: [names[1], names[3]], "after": [names[3]]}


# Failures of a run


def test_prompts_without_any_signal_end_the_run(tmp_path):
    async def only_the_first_teaches(_actor, prompt):
        return ["right", "wrong"] if prompt == 1 else ["wrong", "wrong"]

    run = Run(
        tmp_path, config(resampling={"kind": "active", "max_dropped_groups": 20}), prompts(50), only_the_first_teaches
    )
    with pytest.raises(NoSignalError, match=r"step 0: \d+ groups were dropped while 1 of 2 .*max_dropped_groups = 20"):
        run.play()
    assert len(run.rows("zero_variance")) > 20


def test_actors_that_never_answer_end_the_run_with_who_waits_for_whom(tmp_path):
    async def silent(_actor, _prompt):
        await never()

    run = Run(tmp_path, config(stall_seconds=0.05), prompts(50), silent)
    with pytest.raises(StalledError, match=r"the learner has 0 of 2 .* 2 in flight .*\[0, 1\].* stall_seconds = 0.05"):
        run.play()


def test_a_failure_of_the_learner_is_the_runs_failure(tmp_path):
    async def breaks(step):
        if step == 1:
            raise RuntimeError("out of memory")

    run = Run(tmp_path, config(), prompts(50), learner=RecordingLearner(breaks))
    with pytest.raises(RuntimeError, match="out of memory"):
        run.play()
    assert all(actor.killed for actor in run.actors)


# Endings


def test_cancelling_a_run_leaves_no_task_and_no_actor(tmp_path):
    async def slow_after_the_first_step(actor, _prompt):
        if actor.version > 0:
            await never()
        return ["right", "wrong"]

    options = config(actors=ActorsConfig(count=2), async_steps=2)
    run = Run(tmp_path, options, prompts(50), slow_after_the_first_step)
    assert not tasks_left_by_cancelling(run, lambda: len(run.learner.steps) >= 2)
    assert all(actor.killed for actor in run.actors)


# What is measured


def test_the_metrics_of_a_step_worked_by_hand(tmp_path):
    answers = {1: ["wrong", "wrong"], 2: ["right", "wrong"], 3: ["right", "half"]}

    async def only_three_are_answered(_actor, prompt):
        if prompt not in answers:
            await never()
        return answers[prompt]

    domains = {1: "math", 2: "math"}
    run = Run(tmp_path, config(steps=1), prompts(9, lambda i: domains.get(i, "precise_if")), only_three_are_answered)
    [row] = run.play().metrics()
    expected = {
        "step": 0,
        "reward": (0 + 0 + 1 + 0 + 1 + 0.5) / 6,
        "reward_std": (0 + 0.5 + 0.25) / 3,
        "reward/math": 1 / 4,
        "reward/precise_if": 1.5 / 2,
        "groups": 3,
        "zero_variance": 1 / 3,
        "stale_groups": 0,
        "failed_groups": 0,
        "unjudged_samples": 0,
        "actors_lost": 0,
        "generated_tokens": 5 * 5 + 4,
        "batch_reward": (1 + 0 + 1 + 0.5) / 4,
        "response_length": (5 + 5 + 5 + 4) / 4,
        "truncated": 1 / 4,
        "staleness": 0,
        "staleness_max": 0,
        "trained_tokens": 5 + 5 + 5 + 4,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    for name in ("seconds", "step_seconds", "generated_tokens_per_second", "trained_tokens_per_second"):
        assert row[name] > 0
    assert row["generated_tokens"] / row["generated_tokens_per_second"] == pytest.approx(row["step_seconds"])
    assert all(math.isfinite(value) for value in row.values())
