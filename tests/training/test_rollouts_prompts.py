"""From the mixture to prompts, and groups to JSON and back."""

import json
import re

import pytest

from tasks.generation.engine import Completion, VersionSpan
from tasks.training.config import TrainingConfig
from tasks.training.controller import _advantages
from tasks.training.rollouts import Group
from tasks.training.run import load_prompts
from tasks.training.tally import Tally
from tasks.verifiers import Reward, Score
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


def test_a_group_survives_json():
    mixture_prompts = prompts(3)
    completion = Completion("word", [5, 6], [-0.5, -0.25], "length", [VersionSpan(1, 0, 1), VersionSpan(2, 1, 2)])
    rewards = [(Reward("math", 1.0, 1.0), Reward("f", 0.5, None)), ()]
    group = Group(7, mixture_prompts[1], 0, 1.5, 1, [completion, completion], [1.0, 0.0], 2.5, rewards)
    record = json.loads(json.dumps(group.to_json()))
    assert record["prompt"] == "p2"
    assert Group.from_json(record, {p.prompt_id: p for p in mixture_prompts}) == group
    assert (group.first_version, group.last_version, group.zero_variance("sum_then_normalize")) == (1, 2, False)


def several(*values):
    """A score of two rewards, worth 1 and 0.5, and a third that applies where it is not None."""
    parts = zip("abc", (1.0, 0.5, 2.0), values, strict=False)
    return Score.of_rewards([Reward(name, weight, value) for name, weight, value in parts], True, "")


def judged(*scores):
    completions = [Completion("word", [5, 6], [-0.5, -0.25], "stop", [VersionSpan(1, 0, 2)]) for _ in scores]
    group = Group(7, prompts(1)[0], 0, 1.5, 1, completions)
    group.judged(list(scores))
    return group


def test_training_maximises_the_weighted_sum():
    group = judged(several(1.0, 0.0), several(0.0, 1.0, None), several(0.0, 4.0, -1.0))
    assert group.scores == [1.0, 0.5, 0.0]
    tally = Tally()
    tally.judged(group)
    figures = tally.metrics(1.0)
    assert figures["rewards/b/mean"] == pytest.approx(5 / 3)
    assert (figures["rewards/c/mean"], figures["rewards/c/std"]) == (-1.0, 0.0)


def test_equal_sums_of_different_rewards_carry_a_gradient_where_each_is_normalised():
    hidden = judged(several(1.0, 0.0), several(0.5, 1.0))
    assert hidden.zero_variance("sum_then_normalize")
    assert not hidden.zero_variance("normalize_then_sum")
    assert judged(several(1.0, 0.0, None), several(1.0, 0.0, 3.0)).zero_variance("normalize_then_sum")


def test_each_reward_is_normalised_within_its_group_whatever_rewards_other_groups_have():
    config = recipe(objective={"advantage": "group_norm", "reward_aggregation": "normalize_then_sum"})
    two, plain = judged(several(1.0, 0.0), several(0.5, 1.0)), judged(Score(1.0, True, ""), Score(0.0, False, ""))
    (first, second), (right, wrong) = _advantages([two, plain], config)
    assert (first, right) == (pytest.approx(-second), pytest.approx(-wrong))
    assert right / first == pytest.approx(1 / (1 - 0.5), rel=1e-4)
