"""The recipes that ship say what their sources say, and a recipe that extends another gives only what differs."""

import pytest

from tasks.config import SpecError, extended, load_yaml
from tasks.spec import RECIPES, Recipe

OLMO_RL = {
    "objective.advantage": "group_mean",
    "objective.aggregation": "token",
    "objective.clip_high": 0.272,
    "objective.correction.kind": "tis",
    "objective.correction.max": 2.0,
    "objective.kl.beta": 0.0,
    "objective.shaping.filter_truncated": False,
    "groups_per_step": 64,
    "sampling.samples": 8,
    "sampling.temperature": 1.0,
    "sampling.top_p": 1.0,
    "async_steps": 8,
    "updates.epochs": 1,
    "optimizer.schedule": "constant",
    "learner.zero_stage": 3,
    "learner.gradient_checkpointing": True,
}
"""Olmo 3 (arXiv:2512.13961), the seven improvements and the launch scripts of allenai/open-instruct."""

SOURCES = {
    "olmo3_think_7b": OLMO_RL
    | {
        "model.name": "allenai/Olmo-3-7B-Think-DPO@main",
        "steps": 10_000_000 // (64 * 8),
        "updates.minibatches": 1,
        "optimizer.learning_rate": 1e-6,
        "sampling.max_tokens": 32_768,
        "learner.micro_batch_tokens": 35_840,
        "learner.ranks": 2 * 8,
        "actors.count": 16,
        "actors.engine.tensor_parallel_size": 1,
        "checkpoint_every": 100,
    },
    "olmo3_think_32b": OLMO_RL
    | {
        "model.name": "allenai/Olmo-3-32B-Think-DPO@main",
        "steps": 2300,
        "updates.minibatches": 1,
        "optimizer.learning_rate": 2e-6,
        "sampling.max_tokens": 32_768,
        "learner.micro_batch_tokens": 35_840,
        "learner.ranks": 8 * 8,  # 8 nodes of 8 GPUs to train
        "actors.count": 20,  # 20 nodes for inference, an engine on each
        "actors.engine.tensor_parallel_size": 8,
    },
    "olmo3_instruct_7b": OLMO_RL
    | {
        "model.name": "allenai/Olmo-3-7B-Instruct-DPO@main",
        "steps": 1_024_000 // (64 * 8),
        "updates.minibatches": 4,
        "optimizer.learning_rate": 1e-6,
        "sampling.max_tokens": 8_192,
        "learner.micro_batch_tokens": 11_264,
        "learner.ranks": 8,
        "actors.count": 8 * 8 - 8,
        "checkpoint_every": 50,
    },
    "grpo": {  # DeepSeekMath (arXiv:2402.03300), section 4.2
        "model.name": "deepseek-ai/deepseek-math-7b-instruct@main",
        "steps": 144_000 // 16,
        "groups_per_step": 1024 // 64,
        "sampling.samples": 64,
        "sampling.max_tokens": 1024,
        "updates.minibatches": 1,
        "updates.epochs": 1,
        "objective.advantage": "group_norm",
        "objective.aggregation": "sequence",
        "objective.correction.kind": "none",
        "objective.kl.beta": 0.04,
        "objective.kl.estimator": "k3",
        "optimizer.learning_rate": 1e-6,
    },
}


def value_at(recipe, path):
    for name in path.split("."):
        recipe = getattr(recipe, name)
    return recipe


@pytest.mark.parametrize("name", SOURCES)
def test_a_recipe_has_the_numbers_of_its_source(name):
    recipe = load_yaml(Recipe, RECIPES / f"{name}.yaml")
    assert {path: value_at(recipe, path) for path in SOURCES[name]} == SOURCES[name]


@pytest.mark.parametrize("name", SOURCES)
def test_the_longest_prompt_and_response_fit_engine_and_learner(name):
    recipe = load_yaml(Recipe, RECIPES / f"{name}.yaml")
    longest = 2048 + recipe.sampling.max_tokens
    assert longest <= recipe.actors.engine.max_model_len <= recipe.learner.micro_batch_tokens


def files(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_what_a_file_gives_is_merged_key_by_key_over_what_it_extends(tmp_path):
    folder = files(
        tmp_path,
        first="steps: 1\noptimizer: {learning_rate: 1.0, schedule: linear}\nlist: [1, 2]\n",
        second="extends: first\noptimizer: {learning_rate: 2.0}\nlist: [3]\n",
    )
    assert extended({"extends": "second", "steps": 5}, folder) == {
        "steps": 5,
        "optimizer": {"learning_rate": 2.0, "schedule": "linear"},
        "list": [3],
    }


def test_what_is_of_another_kind_replaces_the_whole(tmp_path):
    folder = files(tmp_path, base="correction: {kind: tis, max: 2.0}\n")
    over = {"extends": "base", "correction": {"kind": "icepop", "min": 0.5}}
    assert extended(over, folder) == {"correction": {"kind": "icepop", "min": 0.5}}
    assert extended({"extends": "base", "correction": {"max": 3.0}}, folder) == {
        "correction": {"kind": "tis", "max": 3.0}
    }


def test_a_users_recipe_extends_one_that_ships(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: quickstart\nobjective: {clip_high: 0.4}\n")
    mine, theirs = load_yaml(Recipe, path), load_yaml(Recipe, RECIPES / "quickstart.yaml")
    assert (mine.objective.clip_high, mine.objective.clip_low, mine.steps) == (0.4, 0.2, theirs.steps)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: quickstar\n", r"mine.yaml: .*extends = 'quickstar': no such file; there are: .*quickstart"),
        ("extends: [quickstart]\n", r"extends = .*no such file"),
        ("extends: quickstart\nstep: 3\n", r"step: unknown key .*'steps'"),
    ],
)
def test_a_mistake_in_a_recipe_that_extends_another_is_one_sentence(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        load_yaml(Recipe, path)


def test_recipes_that_extend_each_other_are_named(tmp_path):
    folder = files(tmp_path, one="extends: other\n", other="extends: one\n")
    with pytest.raises(SpecError, match=r"a file that extends itself \(one > other > one\)"):
        extended({"extends": "one"}, folder)
