"""Of an unknown key, the option that was meant is named: nested ones, and those of TRL and verl."""

import ast
import importlib.util
from pathlib import Path

import pytest

from tasks.config.loading import SpecError, load_yaml
from tasks.config.option_names import ELSEWHERE, OF_TRL, list_nested_options
from tasks.inputs.files import DataFile, Recipe


def refusal(tmp_path, text, model=Recipe):
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: quickstart\n{text}\n")
    with pytest.raises(SpecError) as refused:
        load_yaml(model, path)
    return str(refused.value).removeprefix(f"{path}: ").partition("; accepted")[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learing_rate: 1", "learing_rate: unknown key (did you mean 'optimizer.learning_rate'?)"),
        ("num_generations: 8", "num_generations: unknown key (did you mean 'sampling.samples'?)"),
        ("beta: 0.1", "beta: unknown key (did you mean 'objective.kl.beta'?)"),
        ("lr: 1", "lr: unknown key (did you mean 'optimizer.learning_rate'?)"),
        ("steqs: 3", "steqs: unknown key (did you mean 'steps'?)"),
        ("optimizer: {learning_rat: 1}", "optimizer.learning_rat: unknown key (did you mean 'learning_rate'?)"),
        ("optimizer: {clip_high: 1}", "optimizer.clip_high: unknown key (did you mean 'objective.clip_high'?)"),
        ("resampling: {kind: none, max_rounds: 3}", "resampling.max_rounds: unknown key"),
        (
            "actor_rollout_ref: {rollout: {n: 8}, actor: {clip_ratio: 0.2}}",
            "actor_rollout_ref: unknown key (actor_rollout_ref.rollout.n is sampling.samples, "
            "actor_rollout_ref.actor.clip_ratio is objective.clip_low here)",
        ),
        ("quux: 1", "quux: unknown key"),
        (
            "quux: 1\nnum_generations: 8",
            "quux, num_generations (did you mean 'sampling.samples'?): unknown keys",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_what_it_may_mean(tmp_path, text, said):
    assert refusal(tmp_path, text) == said


def test_options_that_a_file_lacks_are_not_suggested(tmp_path):
    assert refusal(tmp_path, "num_generations: 8", DataFile) == "num_generations: unknown key"
    assert "'mixture.temperature'" in refusal(tmp_path, "temperature: 1", DataFile)


def test_every_suggested_option_exists():
    options = set(list_nested_options(Recipe))
    assert {name: option for name, option in ELSEWHERE.items() if option not in options} == {}


def test_every_name_of_trl_is_one_of_its_options():
    trl = importlib.util.find_spec("trl")
    if trl is None or trl.origin is None:
        pytest.skip("trl is not installed (the extra bench)")
    trainer = Path(trl.origin).parent / "trainer"
    own = {
        node.target.id
        for name in ("base_config.py", "grpo_config.py")
        for node in ast.walk(ast.parse((trainer / name).read_text()))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    of_transformers = Path(importlib.util.find_spec("transformers").origin).parent / "training_args.py"
    own |= {
        node.target.id
        for node in ast.walk(ast.parse(of_transformers.read_text()))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert OF_TRL.keys() - own == set()
