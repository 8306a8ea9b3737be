"""The recipes that ship say what their sources say, and a recipe that extends another gives only what differs."""

import re
from pathlib import Path
from typing import ClassVar

import pytest

from tasks.config.loading import Extendable, SpecError, expand_dotted_keys, load_yaml, merge_extended, parse
from tasks.inputs.files import RECIPES, DataFile, EvaluationFile, Recipe
from tasks.inputs.overrides import with_overrides
from tests.paths import DATA

SEEDS = DATA.parent / "seeds"

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
    "learner.gradient_checkpointing": True,
}
"""Olmo 3 (arXiv:2512.13961), the seven improvements and the launch scripts of allenai/open-instruct.

The scripts' stage of ZeRO, which changes no result, is 3, also for 7B, for which stage 2 fits and moves less data.
"""

PRORL_V2 = {
    "model.name": "Qwen/Qwen2.5-1.5B@8faed761d45a263340a0528343f099c05c9a4323",
    "groups_per_step": 32,
    "resampling.kind": "dynamic",
    "resampling.batch_multiplier": 1.5,
    "resampling.max_rounds": 10,
    "resampling.metric": "score",
    "updates.minibatches": 1,
    "sampling.samples": 16,
    "sampling.max_tokens": 512,
    "objective.advantage": "reinforce_pp_baseline",
    "objective.aggregation": "token",
    "objective.clip_low": 0.2,
    "objective.clip_high": 0.27,
    "objective.correction.kind": "icepop",
    "objective.correction.min": 0.5,
    "objective.correction.max": 5.0,
    "objective.kl.beta": 1e-4,
    "objective.kl.estimator": "k2",
    "objective.kl.in_reward": False,
    "objective.shaping.stop_properly": 0.0,
    "objective.force_on_policy_ratio": False,
    "optimizer.learning_rate": 5e-6,
    "optimizer.warmup_steps": 50,
    "optimizer.weight_decay": 0.01,
    "optimizer.max_grad_norm": 1.0,
    "seed": 42,
}
"""examples/configs/prorlv2.yaml of NVIDIA-NeMo/RL."""


def tokens(text):
    """16,384 as a number."""
    return int(text.replace(",", ""))


def power_of_ten(text):
    """10^{-6} as a number."""
    return float(f"1e{text.removeprefix('10^{').removesuffix('}')}")


SOURCES = {
    "olmo3_think_7b": OLMO_RL
    | {
        "model.name": "allenai/Olmo-3-7B-Think-DPO@7b18bf927b430ff06376fdfa5610eb3b1b6a5c38",
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
        "learner.zero_stage": 3,
        "actors.count": 20,  # 20 nodes for inference, an engine on each
        "actors.engine.tensor_parallel_size": 8,
        "validation.prompts": 8 + 8 + 8 + 4 + 4,
    },
    "olmo3_instruct_7b": OLMO_RL
    | {
        "model.name": "allenai/Olmo-3-7B-Instruct-DPO@b33130b7de49f0c2553b5c2b3bc8409ff3e627d1",
        "steps": 1_024_000 // (64 * 8),
        "updates.minibatches": 4,
        "optimizer.learning_rate": 1e-6,
        "sampling.max_tokens": 8_192,
        "sampling.stop": ["</answer>"],
        "prompts.retirement.pass_rate": 0.875,
        "prompts.retirement.consecutive_groups": 1,
        "learner.micro_batch_tokens": 11_264,
        "learner.ranks": 8,
        "actors.count": 8 * 8 - 8,
        "checkpoint_every": 50,
        "objective.correction.kind": "none",
        "objective.correction.max": None,
    },
    "grpo": {  # DeepSeekMath (arXiv:2402.03300), section 4.2
        "model.name": "deepseek-ai/deepseek-math-7b-instruct@refs/pr/2",
        "steps": 144_000 // 16,
        "groups_per_step": 1024 // 64,
        "resampling.kind": "none",
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
    "dapo_qwen25_32b": {  # DAPO (arXiv:2503.14476), section 4.1, and verl's recipe/dapo/run_dapo_qwen2.5_32b.sh
        "model.name": "Qwen/Qwen2.5-32B@1818d35814b8319459f4bd55ed1ac8709630f003",
        "groups_per_step": 512,
        "resampling.kind": "dynamic",
        "resampling.batch_multiplier": 3,
        "resampling.max_rounds": 10,
        "resampling.metric": "passed",
        "updates.minibatches": 512 * 16 // 512,
        "updates.epochs": 1,
        "sampling.samples": 16,
        "sampling.max_tokens": 16_384 + 4_096,
        "sampling.temperature": 1.0,
        "objective.advantage": "group_norm",
        "objective.aggregation": "token",
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.28,
        "objective.dual_clip": 10.0,
        "objective.kl.beta": 0.0,
        "objective.entropy_coefficient": 0.0,
        "objective.shaping.signed": True,
        "objective.shaping.overlong.max_length": 16_384 + 4_096,
        "objective.shaping.overlong.cache": 4_096,
        "objective.shaping.overlong.weight": 1.0,
        "optimizer.learning_rate": 1e-6,
        "optimizer.schedule": "constant",
        "optimizer.warmup_steps": 20,
        "optimizer.weight_decay": 0.1,
        "optimizer.max_grad_norm": 1.0,
    },
    "dr_grpo": {  # Dr GRPO (arXiv:2503.20783), examples/qwen2.5-math-1.5b.sh of sail-sg/understand-r1-zero
        "model.name": "Qwen/Qwen2.5-Math-1.5B@4a83ca6e4526a4f2da3aa259ec36c259f66b2ab2",
        "steps": 20 * 12_000 // 128,
        "groups_per_step": 128,
        "resampling.kind": "none",
        "updates.minibatches": 128 * 8 // 128,
        "updates.epochs": 1,
        "sampling.samples": 8,
        "sampling.max_tokens": 3000,
        "objective.advantage": "group_mean",
        "objective.aggregation": "constant",
        "objective.constant_length": 3000,
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.2,
        "objective.kl.beta": 0.0,
        "objective.shaping.stop_properly": 0.0,
        "optimizer.learning_rate": 1e-6,
        "optimizer.schedule": "constant",
        "optimizer.beta2": 0.95,
        "learner.ranks": 8,
        "learner.zero_stage": 2,
        "placement": "time_shared",
        "validation.every": 16,
    },
    "axolotl_lora": {  # the quick start of Axolotl's GRPO guide, and TRL's defaults
        "model.name": "Qwen/Qwen2.5-1.5B-Instruct@989aa7980e4cf806f80c7fef2b1adb7bc71aa306",
        "steps": 200,
        "groups_per_step": 2 * 4 // 8,
        "resampling.kind": "none",
        "sampling.samples": 8,
        "sampling.max_tokens": 512,
        "sampling.temperature": 0.7,
        "lora.rank": 32,
        "lora.alpha": 64,
        "lora.target_modules": None,
        "objective.advantage": "group_norm",
        "objective.aggregation": "token",
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.2,
        "objective.correction.kind": "tis",
        "objective.correction.max": 3.0,
        "objective.kl.beta": 0.0,
        "optimizer.learning_rate": 5e-6,
        "optimizer.schedule": "cosine",
        "optimizer.warmup_steps": 10,
        "actors.engine.max_model_len": 2048,
    },
    "prorl_v2": PRORL_V2,
    "prorl_v2_1_moe": PRORL_V2
    | {
        # A mixture of experts; the source leaves the model to the user.
        "model.name": "Qwen/Qwen3-30B-A3B@ad44e777bcd18fa416d9da3bd8f70d33ebb85d39",
        "resampling.kind": "none",
        "resampling.batch_multiplier": None,
        "resampling.max_rounds": None,
        "resampling.metric": None,
        "objective.force_on_policy_ratio": True,
        "objective.correction.kind": "seq_mask_tis",
        "objective.correction.min": 0.999,
        "objective.correction.max": 1.002,
    },
}

DAPO, PRORL = "002_3e89f9b9d10afce1.txt", "001_ae7ee9ced10e736e.txt"
AXOLOTL, OLMO = "004_984d83dd9046008c.txt", "000_2a7008df39cb27ad.txt"
SAID = {
    "olmo3_think_32b": (
        OLMO,
        {
            r"Training: (\d+) H100 nodes": {"learner.ranks": lambda nodes: 8 * int(nodes)},
            r"Inference: (\d+) nodes": {"actors.count": int},
            r"maximum length of (\d+)K tokens": {"sampling.max_tokens": lambda thousands: 1024 * int(thousands)},
            r"(No) KL loss": {"objective.kl.beta": lambda _: 0.0},
            r"(No) standard deviation normalization": {"objective.advantage": lambda _: "group_mean"},
            r"by the total number of (token)s": {"objective.aggregation": str},
            r"(Active) sampling:": {"resampling.kind": str.lower},
            r"(Truncated) importance sampling": {"objective.correction.kind": lambda _: "tis"},
        },
    ),
    "dapo_qwen25_32b": (
        DAPO,
        {
            r"学习率固定为\S+ \\times (10\^\{-6\})": {"optimizer.learning_rate": power_of_ten},
            r"在 (\d+) 个训练步骤内进行线性预热": {"optimizer.warmup_steps": int},
            r"采用(\d+)个 prompt 作为 batch": {"groups_per_step": int},
            r"每个 prompt 采样 (\d+)个响应": {"sampling.samples": int},
            r"每次 rollout 进行(\d+)轮梯度更新": {"updates.minibatches": int},
            r"额外分配([\d,]+)个 token 作为软惩罚缓存": {"objective.shaping.overlong.cache": tokens},
            r"最大 token 数量为([\d,]+)": {
                "sampling.max_tokens": tokens,
                "objective.shaping.overlong.max_length": tokens,
            },
            r"low\}\} 为([\d.]+)": {"objective.clip_low": float},
            r"high\}\} 为([\d.]+)": {"objective.clip_high": float},
        },
    ),
    "axolotl_lora": (
        AXOLOTL,
        {
            r"max_steps: (\d+)": {"steps": int},
            r"num_generations: (\d+)": {"sampling.samples": int},
            r"max_completion_length: (\d+)": {"sampling.max_tokens": int},
            r"temperature: ([\d.]+)": {"sampling.temperature": float},
            r"lora_r: (\d+)": {"lora.rank": int},
            r"lora_alpha: (\d+)": {"lora.alpha": int},
            r"learning_rate: (\S+)": {"optimizer.learning_rate": float},
            r"lr_scheduler: (\w+)": {"optimizer.schedule": str},
            r"warmup_steps: (\d+)": {"optimizer.warmup_steps": int},
            r"max_model_len: (\d+)": {"actors.engine.max_model_len": int},
            r"gpu_memory_utilization: ([\d.]+)": {"actors.engine.gpu_memory_utilization": float},
            r"mean should be > ([\d.]+) within 20 steps": {"alarms.min_reward": float},
            r"entropy in [\d.]+-([\d.]+)": {"alarms.max_entropy": float},
            r"entropy in ([\d.]+)-[\d.]+": {"alarms.min_entropy": float},
            r"grad_norm in [\d.]+-[\d.]+ — > (\d+) is unstable": {"alarms.max_grad_norm": float},
        },
    ),
    "prorl_v2": (
        PRORL,
        {
            r"ratio_clip_min: ([\d.]+)": {"objective.clip_low": float},
            r"ratio_clip_max: ([\d.]+)": {"objective.clip_high": float},
            r"sampling_ratio: (5\S*)\n": {"objective.correction.max": float},
            r"sampling_ratio_min: (0\.5)\n": {"objective.correction.min": float},
            r'truncated_importance_sampling_type: "(icepop)"': {"objective.correction.kind": str},
            r"stop_properly_penalty_coef: ([\d.]+)\nImpl": {"objective.shaping.stop_properly": float},
        },
    ),
    "prorl_v2_1_moe": (
        PRORL,
        {
            r"sampling_ratio: (1\S*)\n": {"objective.correction.max": float},
            r"sampling_ratio_min: (0\.9\S*)\n": {"objective.correction.min": float},
            r"force_on_policy_ratio: (true)": {"objective.force_on_policy_ratio": bool},
        },
    ),
}
"""What a recipe's source says in its own words: a pattern, and where the number that it finds stands in the recipe."""


def value_at(recipe, path):
    for name in path.split("."):
        recipe = getattr(recipe, name, None)
    return recipe


@pytest.mark.parametrize("name", SOURCES)
def test_a_recipe_has_the_numbers_of_its_source(name):
    recipe = load_yaml(Recipe, RECIPES / f"{name}.yaml")
    assert {path: value_at(recipe, path) for path in SOURCES[name]} == SOURCES[name]


@pytest.mark.parametrize("name", SAID)
def test_a_recipe_has_what_its_source_says_in_its_own_words(name):
    file, said = SAID[name]
    if not (SEEDS / file).exists():
        pytest.skip(f"{SEEDS / file} is not here")
    text = (SEEDS / file).read_text()
    recipe = load_yaml(Recipe, RECIPES / f"{name}.yaml")
    for pattern, places in said.items():
        found = re.search(pattern, text)
        assert found, pattern
        for path, convert in places.items():
            assert value_at(recipe, path) == convert(found[1]), path


LONGEST_PROMPT = {"axolotl_lora": 1024, "dr_grpo": 1024, "prorl_v2": 512, "prorl_v2_1_moe": 512}


@pytest.mark.parametrize("name", SOURCES)
def test_the_longest_prompt_and_response_fit_engine_and_learner(name):
    recipe = load_yaml(Recipe, RECIPES / f"{name}.yaml")
    longest = LONGEST_PROMPT.get(name, 2048) + recipe.sampling.max_tokens
    assert longest <= recipe.actors.engine.max_model_len <= recipe.learner.micro_batch_tokens


def files(where, **texts):
    """Write the files, and return a kind of file whose names are theirs."""
    for name, text in texts.items():
        (where / f"{name}.yaml").write_text(text)

    class Kind(Extendable):
        folder: ClassVar[Path] = where

    return Kind


def test_what_a_file_gives_is_merged_key_by_key_over_what_it_extends(tmp_path):
    kind = files(
        tmp_path,
        first="steps: 1\noptimizer: {learning_rate: 1.0, schedule: linear}\nlist: [1, 2]\n",
        second="extends: first\noptimizer: {learning_rate: 2.0}\nlist: [3]\n",
    )
    assert merge_extended({"extends": "second", "steps": 5}, kind) == {
        "steps": 5,
        "optimizer": {"learning_rate": 2.0, "schedule": "linear"},
        "list": [3],
    }


def test_what_is_of_another_kind_replaces_the_whole(tmp_path):
    kind = files(tmp_path, base="correction: {kind: tis, max: 2.0}\n")
    over = {"extends": "base", "correction": {"kind": "icepop", "min": 0.5}}
    assert merge_extended(over, kind) == {"correction": {"kind": "icepop", "min": 0.5}}
    assert merge_extended({"extends": "base", "correction": {"max": 3.0}}, kind) == {
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
        (
            "extends: quickstar\n",
            r"mine.yaml: extends = 'quickstar': no such file .* 'quickstart'.*; a path .*one of: .*",
        ),
        ("extends: [quickstart]\n", r"extends = .*no such file"),
        ("extends: quickstart\nstep: 3\n", r"step: unknown key .*'steps'"),
    ],
)
def test_a_mistake_in_a_recipe_that_extends_another_is_one_sentence(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        load_yaml(Recipe, path)


def test_a_long_path_in_a_mistake_shows_its_last_part():
    with pytest.raises(SpecError, match=r"extends = '/a/folder.*\.\.\..*/mine': no such file"):
        parse(Recipe, f"{{extends: /a{'/folder' * 30}/mine}}")


def test_recipes_that_extend_each_other_are_named(tmp_path):
    kind = files(tmp_path, one="extends: other\n", other="extends: one\n")
    with pytest.raises(SpecError, match=r"extends itself \(one > other > one\)"):
        merge_extended({"extends": "one"}, kind)


def test_each_of_the_three_files_may_extend_one_by_its_path(tmp_path):
    (tmp_path / "below").mkdir()
    files(tmp_path, base="sampling: {samples: 3}\nengine: {seed: 5}\n")
    mine = tmp_path / "below" / "mine.yaml"
    mine.write_text("extends: ../base.yaml\nsampling: {max_tokens: 9}\n")
    evaluation = load_yaml(EvaluationFile, mine)
    assert (evaluation.sampling.samples, evaluation.sampling.max_tokens, evaluation.engine.seed) == (3, 9, 5)
    mine.write_text("extends: quickstart\nname: mine\nmixture.heldout: 7\n")
    assert load_yaml(DataFile, mine).mixture.heldout == 7
    mine.write_text("extends: mine.yaml\n")
    with pytest.raises(SpecError, match=r"mine.yaml: extends = 'mine.yaml': a file that extends itself"):
        load_yaml(DataFile, mine)
    files(tmp_path, list="[1]")
    mine.write_text("extends: ../list.yaml\n")
    with pytest.raises(SpecError, match=r"list.yaml must be a mapping; found \[1\]"):
        load_yaml(Recipe, mine)


def test_a_dotted_key_is_short_for_a_mapping_in_a_mapping_and_may_not_say_it_twice():
    assert expand_dotted_keys({"a.b.c": 1, "a": {"d": 2}, "e": 3}) == {"a": {"b": {"c": 1}, "d": 2}, "e": 3}
    with pytest.raises(SpecError, match=r"a\.d = 1: conflicts with d = 2 in a"):
        expand_dotted_keys({"a.d": 1, "a": {"d": 2}})
    with pytest.raises(SpecError, match=r"a\.d = 1: conflicts with a = 5"):
        expand_dotted_keys({"a.d": 1, "a": 5})


def test_overrides_of_a_command_line_are_yaml_values_by_dotted_keys():
    recipe = with_overrides("quickstart", ("objective.clip_high=0.3", "lora={rank: 2, alpha: 4}", "steps=3"))
    assert (recipe.objective.clip_high, recipe.lora.rank, recipe.steps) == (0.3, 2, 3)
    assert recipe.objective.clip_low == load_yaml(Recipe, RECIPES / "quickstart.yaml").objective.clip_low
    with pytest.raises(SpecError, match=r"'steps' must be KEY=VALUE"):
        with_overrides("quickstart", ("steps",))
    with pytest.raises(SpecError, match=r"objective\.clip: unknown key"):
        with_overrides("quickstart", ("objective.clip=1",))
