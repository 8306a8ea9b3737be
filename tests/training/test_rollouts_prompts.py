"""From the mixture to prompts, and groups to JSON and back."""

import json
import re

import pytest

from tasks.generation.engine import Completion, VersionSpan
from tasks.training.config import TrainingConfig
from tasks.training.rollouts import Group
from tasks.training.run import load_prompts
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
