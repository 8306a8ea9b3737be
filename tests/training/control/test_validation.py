"""Validation: prompts that are never trained on, each time answered by one version of the policy."""

import asyncio
from dataclasses import replace

import pytest

from tasks.failures import MistakeError
from tasks.generation.config import SamplingConfig
from tasks.recipe.run import ActorsConfig
from tasks.training.actors.process import ActorLostError
from tasks.training.control.validation import split_validation
from tasks.training.control.validation_figures import Question
from tasks.verifiers import registry
from tasks.verifiers.scores import Reward
from tests.training.stand_ins import RecordingLearner, Run, ScriptedActor, TableJudge, config, prompts, settle


def rows_of(run):
    """Metrics of the steps in which a validation ended."""
    return [row for row in run.metrics() if "validation/version" in row]


def validated(run):
    """Version and mean score of each validation."""
    return [(row["validation/version"], row["validation/score"]) for row in rows_of(run)]


def options(**more):
    validation = {"every": 2, "prompts": 3, "samples": 2, **more.pop("validation", {})}
    return config(**{"steps": 6, "stall_seconds": 100, "validation": validation, **more})


class Learning(ScriptedActor):
    """Answers validation's prompts the better, the newer its weights; keeps who answered them under which weights."""

    def __init__(self, held_out, best_at=6):
        super().__init__(self.answers)
        self.held_out = held_out
        self.best_at = best_at
        self.asked = []

    async def answers(self, _actor, prompt):
        if prompt not in self.held_out:
            await settle()
            return ["right", "wrong"]
        began = self.version
        await asyncio.sleep(30)  # a step and a half of the learner
        assert self.version == began  # the actor keeps its weights meanwhile
        self.asked.append((began, prompt))
        return ["right", "right" if began == self.best_at else "wrong"]


def learning(tmp_path, options, actor=Learning, **how):
    """A run of two actors whose learner takes 20 s for a step."""
    held_out = {int(prompt.prompt_id[1:]) for prompt in split_validation(prompts(40), options)[1]}
    return Run(
        tmp_path,
        options.model_copy(update={"actors": ActorsConfig(count=2, hang_seconds=1000)}),
        prompts(40),
        learner=RecordingLearner(lambda _: asyncio.sleep(20)),
        make_actor=lambda _: actor(held_out, **how),
    )


def test_every_so_many_steps_one_version_answers_all_prompts(tmp_path):
    run = learning(tmp_path, options()).play()
    assert validated(run) == [(0.0, 0.5), (2.0, 0.5), (4.0, 0.5), (6.0, 1.0)]
    answered = sorted(answer for actor in run.actors for answer in actor.asked)
    held_out = sorted(int(prompt.prompt_id[1:]) for prompt in split_validation(run.prompts, run.config)[1])
    assert answered == [(version, prompt) for version in (0, 2, 4, 6) for prompt in held_out]


def test_each_reward_has_its_mean_by_name(tmp_path):
    class Several(TableJudge):
        async def score(self, verifier, response, ground_truth, messages):
            score = await super().score(verifier, response, ground_truth, messages)
            never = Reward("mine.never", 1.0, None)
            return replace(score, rewards=(Reward("math", 1.0, score.value), Reward("mine.f", 0.5, -2.0), never))

    run = learning(tmp_path, options())
    run.judge = Several()
    last = rows_of(run.play())[-1]
    assert (last["validation/rewards/math/mean"], last["validation/rewards/mine.f/mean"]) == (1.0, -2.0)
    assert "validation/rewards/mine.never/mean" not in last


def test_questions_of_a_benchmark_are_answered_beside_them_with_their_own_sampling(tmp_path):
    (asked,) = prompts(50)[49:]
    run = learning(tmp_path, options())
    run.questions = [Question(asked, SamplingConfig(samples=2, max_tokens=7, seed=5), "sums")]
    taken = []

    class Asked(Learning):
        async def generate(self, prompt_ids, sampling, seed):
            if prompt_ids == asked.token_ids:
                taken.append((sampling.max_tokens, seed))
            return await super().generate(prompt_ids, sampling, seed)

    held_out = {int(prompt.prompt_id[1:]) for prompt in split_validation(prompts(40), options())[1]} | {50}
    run.make_actor = lambda _: Asked(held_out)
    last = rows_of(run.play())[-1]
    assert (last["validation/score"], last["validation/benchmarks/sums/score"]) == (1.0, 1.0)
    assert len(taken) == 4 * 2  # four versions, of two samples
    assert len(set(taken)) == 2  # the seeds are those of the samples, and equal for all versions
    assert {tokens for tokens, _ in taken} == {7}


def test_the_majority_of_a_benchmarks_answers_is_counted_by_the_verifier(tmp_path):
    class Mathematics(TableJudge):
        async def score(self, verifier, response, ground_truth, messages):
            if verifier == "math" and "boxed" in response:
                return registry.judge(verifier, response, ground_truth, messages)
            return await super().score(verifier, response, ground_truth, messages)

    class Voting(Learning):
        async def answers(self, actor, prompt):
            if prompt == 50:  # 2/2 and 1.0 are one answer, with two votes of three
                return [r"\boxed{2/2}", r"\boxed{7}", r"\boxed{1.0}"]
            return await super().answers(actor, prompt)

    run = learning(tmp_path, options(), Voting)
    run.judge = Mathematics()
    run.questions = [Question(prompts(50)[49], SamplingConfig(samples=3), "sums", has_majority=True)]
    last = rows_of(run.play())[-1]
    assert last["validation/benchmarks/sums/pass_rate"] == pytest.approx(2 / 3)
    assert last["validation/benchmarks/sums/majority_at_k"] == last["validation/benchmarks/sums/pass_at_k"] == 1.0


def test_benchmarks_alone_take_no_prompt_out_of_training(tmp_path):
    assert split_validation(prompts(40), options(validation={"prompts": 0}))[1] == []
    run = learning(tmp_path, options(validation={"prompts": 0}))
    run.questions = [Question(prompts(50)[49], SamplingConfig(samples=2, max_tokens=7, seed=5), "sums")]
    run.make_actor = lambda _: Learning({50})
    assert validated(run.play()) == [(0.0, 0.5), (2.0, 0.5), (4.0, 0.5), (6.0, 1.0)]


def test_training_goes_on_while_an_actor_validates(tmp_path):
    class Slow(Learning):
        async def answers(self, actor, prompt):
            before = run.learner.version
            if prompt in self.held_out:
                await asyncio.sleep(70)
                during.append(run.learner.version - before)
            return ["right", "wrong"]

    during = []
    run = learning(tmp_path, options(steps=4, validation={"every": 4}), Slow)
    run.play()
    assert during[0] >= 2  # steps that the learner took while version 0 was validated
    assert [row["step"] for row in run.metrics()] == [0, 1, 2, 3]


def test_a_version_that_is_due_while_another_is_validated_is_left_out_but_for_the_last(tmp_path, caplog):
    class Slow(Learning):
        async def answers(self, actor, prompt):
            if prompt in self.held_out:
                await asyncio.sleep(70)  # more than three steps
            return ["right", "wrong"]

    run = learning(tmp_path, options(steps=7), Slow)
    run.play()
    assert [version for version, _ in validated(run)] == [0.0, 4.0, 7.0]
    assert "version 2 is not validated, as version 0 still is: raise validation.every = 2" in caplog.text
    assert "version 6 is not validated" in caplog.text


def test_what_is_validated_is_never_trained_on(tmp_path):
    run = learning(tmp_path, options()).play()
    held_out = {prompt.prompt_id for prompt in split_validation(run.prompts, run.config)[1]}
    assert len(held_out) == 3
    assert not held_out & {row["prompt_id"] for row in run.rows()}


def test_the_best_policy_stays_and_the_others_go(tmp_path):
    run = learning(tmp_path, options(export_every=3), best_at=2).play()
    assert run.controller.validation.best == 2
    exported_policies = {path.name: (path / "model").read_text() for path in (tmp_path / "policies").iterdir()}
    exported = {"step_00000003": "weights 3", "step_00000006": "weights 6"}
    assert exported_policies == {**exported, "validated_00000002": "weights 2"}


def test_an_actor_that_is_lost_while_it_validates_costs_its_answers_alone(tmp_path):
    class Dying(Learning):
        async def answers(self, actor, prompt):
            if prompt in self.held_out and not dead:
                dead.append(prompt)
                raise ActorLostError("illegal memory access")
            return await super().answers(actor, prompt)

    dead = []
    run = learning(tmp_path, options(steps=2), Dying).play()
    assert len(dead) == 1
    assert [version for version, _ in validated(run)] == [0.0, 2.0]
    assert [row["step"] for row in run.metrics()] == [0, 1]


def test_a_prompt_that_ends_engines_is_found_and_left_out_of_validation(tmp_path):
    class Poisoned(Learning):
        async def answers(self, actor, prompt):
            if prompt == min(self.held_out):
                dead.append(prompt)
                raise ActorLostError("illegal memory access")
            return await super().answers(actor, prompt)

    dead = []
    run = learning(tmp_path, options(steps=4), Poisoned).play()
    assert len(dead) == 2  # among others, and by itself
    unanswered = {row["validation/version"]: row["validation/unanswered"] for row in rows_of(run)}
    assert unanswered == {4.0: 0.0}  # when it was found, no actor had version 0 any more


def test_a_resumed_run_remembers_what_was_validated(tmp_path):
    first = options(steps=4, checkpoint_every=2)
    learning(tmp_path, first, best_at=2).play()
    run = learning(tmp_path, options(steps=8, checkpoint_every=2), best_at=2).play()
    assert run.controller.validation.state() == {"0": 0.5, "2": 1.0, "4": 0.5, "6": 0.5, "8": 0.5}
    assert [path.name for path in (tmp_path / "policies").iterdir()] == ["validated_00000002"]


def test_a_response_that_nobody_can_judge_is_counted_and_has_no_score(tmp_path):
    async def half_of_them(_actor, _prompt):
        return ["right", "?"]

    run = Run(tmp_path, options(steps=1, sampling={"samples": 2, "max_tokens": 8}), prompts(20))
    held_out = {int(prompt.prompt_id[1:]) for prompt in split_validation(run.prompts, run.config)[1]}

    async def answers(actor, prompt):
        return await half_of_them(actor, prompt) if prompt in held_out else ["right", "wrong"]

    run.answer = answers
    last = rows_of(run.play())[-1]
    assert (last["validation/score"], last["validation/unanswered"]) == (1.0, 3.0)


def test_prompts_are_split_validation_by_their_ids_whatever_else_is_in_the_mixture():
    few, many = prompts(20), prompts(40)
    held_out = {prompt.prompt_id for prompt in split_validation(few, options())[1]}
    assert held_out == {prompt.prompt_id for prompt in split_validation(few[::-1] * 2, options())[1]}
    trained, out = split_validation(many, options(validation={"prompts": 39}))
    assert (len(trained), len(out)) == (1, 39)
    with pytest.raises(MistakeError, match="the mixture has 20 prompts, and none would be left"):
        split_validation(few, options(validation={"prompts": 20}))


def test_engines_must_get_the_policies_that_are_validated():
    with pytest.raises(ValueError, match=r"validation\.every = 3: .*actors\.sync_every = 2"):
        options(validation={"every": 3}, actors={"sync_every": 2})


def test_a_dead_actor_costs_no_prompt_of_validation_however_long_nobody_else_has_the_version(tmp_path):
    """Taking turns, the actor that dies is idle but for validation: nothing else finds out that it is dead."""

    class Dies(Learning):
        async def answers(self, actor, prompt):
            if prompt in self.held_out and (self.dead or not dead):
                self.dead = True
                dead.append(prompt)
                raise ActorLostError("the engine's process ended")
            return await super().answers(actor, prompt)

        dead = False

    dead = []
    turns = options(steps=4, async_steps=0, max_staleness=0)
    run = learning(tmp_path, turns, Dies).play()
    assert len(run.controller.validation._questions) == 3
    assert validated(run)[-1][0] == 4.0
    assert all(row["validation/unanswered"] == 0 for row in rows_of(run))


def test_a_version_that_no_actor_has_any_more_convicts_no_prompt(tmp_path):
    class DiesOnce(Learning):
        dead = False

        async def start(self):
            await asyncio.sleep(50)
            await super().start()

        async def answers(self, actor, prompt):
            if prompt in self.held_out and not dead:
                dead.append(prompt)
                await asyncio.sleep(5)
                self.dead = True
            if self.dead:
                raise ActorLostError("gone")
            return await super().answers(actor, prompt)

    dead = []
    run = learning(tmp_path, options(steps=6), DiesOnce)
    run.config = run.config.model_copy(
        update={"actors": ActorsConfig(count=1, hang_seconds=1000), "stall_seconds": 1000}
    )
    run.play()
    assert len(run.controller.validation._questions) == 3
