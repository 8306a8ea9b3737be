"""Cache keys hold what a result depends on: run-time options leave them, any other changes them."""

import pytest
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.interaction import click_types

from tasks.config.cache_keys import result_options
from tasks.config.loading import is_run_time
from tasks.difficulty.rollout_tasks import judge_rollouts, roll_out
from tasks.difficulty.spec import RolloutSpec
from tasks.difficulty.stopping import Bounds
from tasks.evaluation.spec import EvaluationSpec
from tasks.evaluation.task import evaluate_policy
from tasks.flyte.stages import config_digest
from tasks.generation.config import EndpointConfig, EngineConfig, SamplingConfig
from tasks.inputs.options_page import list_sections
from tasks.recipe.learner import LearnerConfig
from tasks.recipe.prompts import (
    ActiveResampling,
    DynamicResampling,
    NoResampling,
)
from tasks.recipe.run import ActorsConfig, RewardsConfig, TrainingConfig
from tasks.training.task import train_policy
from tasks.verifiers.chat.config import JudgeConfig, NamedRewardModelConfig, RewardModelConfig, ServerConfig
from tasks.verifiers.code.config import CodeConfig, RemoteConfig
from tasks.verifiers.config import EnvironmentsConfig, VerifiersConfig

CONFIGS_OF_STAGES = [
    EngineConfig(),
    EndpointConfig(url="http://host:8000/v1", model="m"),
    RolloutSpec(sampling=SamplingConfig(), engine=EngineConfig(), verifier_workers=1),
    EvaluationSpec(),
    TrainingConfig(),
    LearnerConfig(),
    ActorsConfig(),
    RewardsConfig(),
    ActiveResampling(),
    DynamicResampling(),
    NoResampling(),
    VerifiersConfig(),
    EnvironmentsConfig(),
    CodeConfig(),
    ServerConfig(),
    JudgeConfig(model="m"),
    RewardModelConfig(kind="reward_model", model="m"),
    NamedRewardModelConfig(model="m"),
]
"""A configuration of every model with run-time options beside others; docs/options has which options those are."""
OPTIONS = [(config, name) for config in CONFIGS_OF_STAGES for name in type(config).model_fields]


@pytest.mark.parametrize(("config", "name"), OPTIONS, ids=lambda value: str(value)[:30])
def test_run_time_options_leave_the_key_and_any_other_changes_it(config, name):
    changed = config.model_copy(update={name: "something else"})
    assert (config_digest(changed) == config_digest(config)) == is_run_time(type(config).model_fields[name])


def test_models_with_run_time_options_are_listed():
    roots = (RolloutSpec, EvaluationSpec, TrainingConfig, VerifiersConfig)
    decide = [section.model for root in roots for section in list_sections(root) if not section.run_time]
    marked = {model for model in decide if any(map(is_run_time, model.model_fields.values()))}
    assert marked <= {type(config) for config in CONFIGS_OF_STAGES}


def test_models_that_no_file_holds_have_these_run_time_options():
    marked = {model: {n for n, f in model.model_fields.items() if is_run_time(f)} for model in (RolloutSpec, Bounds)}
    assert marked == {RolloutSpec: {"verifier_workers"}, Bounds: set()}


def test_options_leave_the_key_at_any_depth():
    threads = EngineConfig(cpu_threads=3)
    assert config_digest(TrainingConfig(actors={"engine": threads})) == config_digest(TrainingConfig())
    assert config_digest(TrainingConfig(actors={"engine": EngineConfig(seed=1)})) != config_digest(TrainingConfig())
    judge = {"model": "m", "url": "http://here/v1", "api_key_env": "KEY"}
    there = judge | {"url": "https://there/v1", "api_key_env": "OTHER"}
    assert config_digest(VerifiersConfig(judge=judge)) == config_digest(VerifiersConfig(judge=there))
    assert config_digest(VerifiersConfig(judge=judge | {"model": "n"})) != config_digest(VerifiersConfig(judge=judge))
    remote = VerifiersConfig(code=CodeConfig(remote=RemoteConfig(url="http://code", token_env="TOKEN")))  # noqa: S106
    assert config_digest(remote) == config_digest(VerifiersConfig())
    assert "TOKEN" not in str(result_options(remote))


# In Flyte


def literal(task, name, value):
    kind, variable = task.python_interface.inputs[name], task.interface.inputs[name]
    return TypeEngine.to_literal(FlyteContextManager.current_context(), value, kind, variable.type)


CONFIGS = [
    (roll_out, "spec", RolloutSpec(sampling=SamplingConfig(), engine=EngineConfig(), verifier_workers=1)),
    (judge_rollouts, "verifiers", VerifiersConfig()),
    (evaluate_policy, "config", EvaluationSpec()),
    (evaluate_policy, "verifiers", VerifiersConfig()),
    (train_policy, "config", TrainingConfig()),
    (train_policy, "verifiers", VerifiersConfig()),
]


@pytest.mark.parametrize(("task", "name", "value"), CONFIGS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_a_stage_takes_is_known_by_its_digest_whoever_gives_it(task, name, value):
    assert literal(task, name, value).hash == config_digest(value)


@pytest.mark.parametrize(("task", "name", "value"), CONFIGS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_command_line_takes_it_as_it_takes_any_other(task, name, value):
    kind, variable = task.python_interface.inputs[name], task.interface.inputs[name]
    option = click_types.FlyteLiteralConverter(FlyteContextManager.current_context(), variable.type, kind, True)
    assert option.click_type.convert(value.model_dump_json(), None, None) == value
    assert option.convert(None, None, value).hash == config_digest(value)
