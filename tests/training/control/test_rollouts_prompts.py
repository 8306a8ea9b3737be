"""From the mixture to prompts, and from judgements to what a group teaches."""

import dataclasses
import re

import numpy as np
import pytest

from tasks.generation.interface import Completion, EpisodeEnd, EpisodeTurn, VersionSpan
from tasks.recipe.objective import ObjectiveConfig, ShapingConfig
from tasks.recipe.run import TrainingConfig
from tasks.training.control.batch import advantages
from tasks.training.groups.group import Group, JudgedGroup, JudgedSample
from tasks.training.run import load_prompts
from tasks.training.telemetry.step_metrics import StepCounters, compute_batch_metrics
from tasks.verifiers import Reward, Score, VerifiersConfig
from tasks.verifiers.scores import FunctionFailure
from tests.training.mixtures import mixture
from tests.training.stand_ins import prompts


def recipe(**options):
    defaults = {"sampling": {"max_tokens": 20}, "actors": {"engine": {"max_model_len": 64}}}
    return TrainingConfig.model_validate({**defaults, **options})


def test_prompts_come_in_the_mixtures_order_with_the_chat_template_applied(tiny_model, tmp_path):
    from transformers import AutoTokenizer

    path = mixture(tmp_path, ["What is the sea?", "Answer"], order=[1, 0])
    answer, sea = load_prompts(recipe(), tiny_model, path)
    assert [p.messages[0]["content"] for p in (answer, sea)] == ["Answer", "What is the sea?"]
    text = AutoTokenizer.from_pretrained(tiny_model).decode(sea.token_ids)
    assert text == "<|im_start|>user\nWhat is the sea?<|im_end|>\n<|im_start|>assistant\n"
    assert sea.ground_truth["instruction_ids"] == ["keywords:letter_frequency"]


def test_a_variable_that_the_chat_template_lacks_is_an_error_before_anything_starts(tiny_model, tmp_path):
    path = mixture(tmp_path, ["Answer"])
    recipe_with = recipe(sampling={"max_tokens": 20, "chat_template_kwargs": {"enable_thinking": False}})
    with pytest.raises(ValueError, match=r"sampling.chat_template_kwargs: enable_thinking: the template of .* has no"):
        load_prompts(recipe_with, tiny_model, path)


def test_a_mixture_that_needs_a_judge_is_an_error_without_one(tiny_model, tmp_path):
    path = mixture(tmp_path, ["Tell me a story."], verifier="chat_open", truth=None)
    with pytest.raises(ValueError, match=r"prompt .* of source 'test': verifier 'chat_open' lacks a judge"):
        load_prompts(recipe(), tiny_model, path)
    judge = VerifiersConfig(judge={"model": "m", "url": "http://127.0.0.1:1/v1"})
    assert len(load_prompts(recipe(), tiny_model, path, judge)) == 1


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, "actors.engine.max_model_len is 64"),
        ({"actors": {"engine": {"max_model_len": 512}}, "learner": {"micro_batch_tokens": 70}}, "learner.* is 70"),
    ],
)
def test_a_prompt_too_long_for_engine_or_learner_is_an_error_with_both_numbers(tiny_model, tmp_path, options, limit):
    path = mixture(tmp_path, ["Answer", "#" * 60])
    message = rf"has (\d+) tokens and needs (\d+) with sampling.max_tokens = 20; {limit}"
    with pytest.raises(ValueError, match=message) as error:
        load_prompts(recipe(**options), tiny_model, path)
    has, needs = re.search(message, str(error.value)).groups()
    assert int(needs) == int(has) + 20 > 80


def several(*values):
    """A score of two rewards, worth 1 and 0.5, and a third that applies where it is not None."""
    parts = zip("abc", (1.0, 0.5, 2.0), values, strict=False)
    return Score.from_rewards([Reward(name, weight, value) for name, weight, value in parts], True, "")


OLMO_RL = ObjectiveConfig()
GDPO = ObjectiveConfig(advantage="group_norm", reward_aggregation="normalize_then_sum")


def judged(*scores, cut=(), **shaping):
    """A group of responses of two tokens; those at the places `cut` were truncated."""
    group = Group.create(7, prompts(1)[0], len(scores), sampled_at=1.5, policy_version=1)
    for sample, score in zip(group.samples, scores, strict=True):
        reason = "length" if sample.index in cut else "stop"
        sample.completion = Completion("word", [5, 6], [-0.5, -0.25], reason, [VersionSpan(1, 0, 2)])
        sample.score = score
    return JudgedGroup.from_group(group, ShapingConfig(**shaping), finished_at=2.5)


RIGHT, WRONG = Score(1.0, True, ""), Score(0.0, False, "")


def test_rewards_are_shaped_once_and_pass_rates_are_not():
    group = judged(RIGHT, RIGHT, WRONG, cut=(1,), stop_properly=0.25)
    assert (group.scores, group.passed) == ([1.0, 0.25, 0.0], [True, True, False])


def test_a_group_of_right_answers_teaches_where_one_of_them_did_not_stop():
    assert judged(RIGHT, RIGHT).describe_zero_variance(OLMO_RL) == "every score is 1"
    assert not judged(RIGHT, RIGHT, cut=(1,), stop_properly=0.0).describe_zero_variance(OLMO_RL)


def test_a_group_without_a_response_in_the_loss_teaches_nothing():
    filtering = ObjectiveConfig(shaping={"filter_truncated": True})
    assert judged(RIGHT, WRONG, cut=(0, 1)).describe_zero_variance(filtering) == "every response was truncated"
    assert not judged(RIGHT, WRONG, cut=(0,)).describe_zero_variance(filtering)
    assert not judged(RIGHT, WRONG, cut=(0, 1)).describe_zero_variance(OLMO_RL)


def test_solved_and_unsolved_groups_are_counted_apart():
    counters = StepCounters()
    for group in (judged(RIGHT, RIGHT), judged(RIGHT, WRONG), judged(WRONG, WRONG), judged(WRONG, WRONG)):
        counters.judged(group)
    figures = counters.metrics(1.0)
    assert (figures["solved"], figures["unsolved"]) == (1 / 4, 2 / 4)


def test_lengths_by_hand():
    group = judged(RIGHT, WRONG, WRONG)
    for completion, length in zip(group.completions, (10, 20, 40), strict=True):
        completion.token_ids[:] = [5] * length
    figures = compute_batch_metrics([group], version=1)
    assert figures["response_length"] == pytest.approx(70 / 3)
    assert (figures["response_length_p50"], figures["response_length_p99"]) == pytest.approx((20, 39.6))
    assert (figures["response_length_correct"], figures["response_length_wrong"]) == (10, 30)
    assert "response_length_wrong" not in compute_batch_metrics([judged(RIGHT, RIGHT)], version=1)


def episode(*lengths, between=2, end=None):
    """An episode with turns of these lengths, between which `between` tokens are inserted."""
    turns, tokens = [], 0
    for number, length in enumerate(lengths):
        start = tokens + between * bool(number)
        tokens = start + length
        turns.append(EpisodeTurn(start, tokens, "word"))
    return Completion("word", np.full(tokens, 5, np.int32), np.zeros(tokens, np.float32), "stop", [], tuple(turns), end)


def test_turns_and_tokens_of_episodes_by_hand():
    group = judged(RIGHT, WRONG, WRONG)
    single = group.samples[2]
    samples = [JudgedSample(each, 1.0, True, ()) for each in (episode(3, 4, 5), episode(6))]
    figures = compute_batch_metrics([dataclasses.replace(group, samples=(*samples, single))], version=1)
    assert figures["episode_turns"] == (3 + 1) / 2
    assert figures["environment_tokens"] == (2 + 2) / (3 + 2 + 4 + 2 + 5 + 6)
    assert figures["response_length"] == pytest.approx((12 + 6 + 2) / 3)
    assert not {"episode_turns", "environment_tokens"} & set(compute_batch_metrics([group], version=1))


def test_seconds_and_failures_of_environments_by_hand():
    counters = StepCounters()
    counters.generated(judged(RIGHT, WRONG).completions[0], 0.0)
    assert not [name for name in counters.metrics(1.0) if name.startswith("environment")]
    failed = [EpisodeEnd(None, error="it", failure=FunctionFailure(path, "raised")) for path in ("a.b", "a.c", "a.b")]
    for end, seconds in zip([None, EpisodeEnd(1.0, True), *failed], (1.0, 2.0, 3.0, 4.0, 0.0), strict=True):
        counters.generated(episode(3, 4, end=end), seconds)
    figures = counters.metrics(1.0)
    assert {name: value for name, value in figures.items() if name.startswith("environment")} == {
        "environment_seconds": (1 + 2 + 3 + 4 + 0) / 5,
        "environment_failures": 3,
        "environment_failures/a.b": 2,
        "environment_failures/a.c": 1,
    }
    assert (figures["generated_tokens"], figures["samples"]) == (2 + 5 * 7, 6)


def test_training_maximises_the_weighted_sum():
    group = judged(several(1.0, 0.0), several(0.0, 1.0, None), several(0.0, 4.0, -1.0))
    assert group.scores == [1.0, 0.5, 0.0]
    counters = StepCounters()
    counters.judged(group)
    figures = counters.metrics(1.0)
    assert figures["rewards/b/mean"] == pytest.approx(5 / 3)
    assert (figures["rewards/c/mean"], figures["rewards/c/std"]) == (-1.0, 0.0)


def test_equal_sums_of_different_rewards_carry_a_gradient_where_each_is_normalised():
    hidden = judged(several(1.0, 0.0), several(0.5, 1.0))
    assert hidden.describe_zero_variance(OLMO_RL)
    assert not hidden.describe_zero_variance(GDPO)
    assert judged(several(1.0, 0.0, None), several(1.0, 0.0, 3.0)).describe_zero_variance(GDPO) == "no reward varies"


def test_a_reward_of_weight_0_is_recorded_and_teaches_nothing():
    def of_weight_0(value, share):
        rewards = (Reward("precise_if", 1.0, value), Reward("loose", 0.0, share))
        return Score(value, value == 1, "", rewards=rewards)

    equal = judged(of_weight_0(0.0, 0.5), of_weight_0(0.0, 1.0))
    unequal = judged(of_weight_0(1.0, 1.0), of_weight_0(0.0, 1.0))
    assert equal.describe_zero_variance(OLMO_RL) == "every score is 0"
    assert equal.describe_zero_variance(GDPO) == "no reward varies"
    config = recipe(objective={"advantage": "group_norm", "reward_aggregation": "normalize_then_sum"})
    none, some = advantages([equal, unequal], [0.0] * 4, config)
    assert none == [0, 0]
    assert some[0] == -some[1] > 0
    counters = StepCounters()
    counters.judged(equal)
    assert counters.metrics(1.0)["rewards/loose/mean"] == 0.75


def test_each_reward_is_normalised_within_its_group_whatever_rewards_other_groups_have():
    config = recipe(objective={"advantage": "group_norm", "reward_aggregation": "normalize_then_sum"})
    two, plain = judged(several(1.0, 0.0), several(0.5, 1.0)), judged(RIGHT, WRONG)
    (first, second), (right, wrong) = advantages([two, plain], [0.0] * 4, config)
    assert (first, right) == (pytest.approx(-second), pytest.approx(-wrong))
    assert right / first == pytest.approx(1 / (1 - 0.5), rel=1e-4)
