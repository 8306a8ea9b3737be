"""Cache keys hold what a result depends on: run-time options leave them, any other changes them."""

import pytest
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.interaction import click_types

from tasks.config import Config, result_options
from tasks.difficulty.rollout_tasks import judge_rollouts, roll_out
from tasks.difficulty.spec import RolloutSpec
from tasks.difficulty.stopping import Bounds
from tasks.evaluation.spec import EvaluationSpec
from tasks.evaluation.task import evaluate_policy
from tasks.flyte.stages import config_digest
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.training.config import ActorsConfig, RewardsConfig, TrainingConfig, ValidationConfig
from tasks.training.learner.config import LearnerConfig, LoraConfig, OptimizerConfig, UpdatesConfig
from tasks.training.objective.config import ObjectiveConfig
from tasks.training.prompt_options import (
    ActiveResampling,
    CurriculumConfig,
    DynamicResampling,
    NoResampling,
    PromptsConfig,
    ReplayConfig,
    RerollConfig,
    RetirementConfig,
)
from tasks.training.task import train_policy
from tasks.verifiers.chat.config import JudgeConfig, RewardModelConfig, ServerConfig
from tasks.verifiers.code.config import CodeConfig, RemoteConfig
from tasks.verifiers.config import VerifiersConfig

CONNECTION = {
    "concurrency",
    "request_timeout_seconds",
    "timeout_seconds",
    "retries",
    "backoff_seconds",
    "max_backoff_seconds",
}
ENGINE = {
    "max_num_seqs",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "cpu_kv_cache_gib",
    "cpu_threads",
    "enforce_eager",
}
RUN_TIME = [
    (EngineConfig(), ENGINE),
    (SamplingConfig(), set()),
    (RolloutSpec(sampling=SamplingConfig(), engine=EngineConfig(), verifier_workers=1), {"verifier_workers"}),
    (EvaluationSpec(), {"verifier_workers", "pod"}),
    (
        TrainingConfig(),
        {
            "checkpoint_every",
            "export_every",
            "keep_rollouts",
            "log_completions",
            "stall_seconds",
            "trackers",
            "alarms",
        },
    ),
    (
        LearnerConfig(),
        {
            "ranks",
            "zero_stage",
            "micro_batch_tokens",
            "logprob_chunk_tokens",
            "gradient_checkpointing",
            "cpus",
            "cpu_threads",
            "init_timeout_seconds",
            "max_restarts",
            "persistence_threshold",
            "restart_window_seconds",
        },
    ),
    (
        ActorsConfig(),
        {
            "count",
            "cpus",
            "max_restarts",
            "min_num_seqs",
            "prefetch",
            "restart_window_seconds",
            "start_timeout_seconds",
            "update_timeout_seconds",
            "hang_seconds",
        },
    ),
    (ValidationConfig(), set()),
    (RewardsConfig(), {"workers", "retries", "patience_seconds"}),
    (ActiveResampling(), {"max_dropped_groups"}),
    (DynamicResampling(), {"max_rounds"}),
    (NoResampling(), {"max_dropped_groups"}),
    (Bounds(), set()),
    (PromptsConfig(), set()),
    (RetirementConfig(), set()),
    (ReplayConfig(), set()),
    (RerollConfig(), set()),
    (CurriculumConfig(), set()),
    (OptimizerConfig(), set()),
    (UpdatesConfig(), set()),
    (LoraConfig(rank=8, alpha=16), set()),
    (ObjectiveConfig(), set()),
    (VerifiersConfig(), {"total_memory_mib", "cache_entries"}),
    (CodeConfig(), {"remote", "total_memory_mib"}),
    (ServerConfig(), ENGINE | {"start_timeout_seconds"}),
    (JudgeConfig(model="m"), CONNECTION | {"url", "api_key_env", "max_tokens_field", "input_price", "output_price"}),
    (RewardModelConfig(kind="reward_model", model="m"), {"device", "batch_size"}),
]
"""Every configuration that a stage takes, and its options without a part in cache keys."""
WITHOUT_A_PART = ((CodeConfig, "remote"), (EvaluationSpec, "pod"), (TrainingConfig, "alarms"))
"""Configurations within others that have none as a whole."""
OPTIONS = [(config, name, name in left_out) for config, left_out in RUN_TIME for name in type(config).model_fields]


@pytest.mark.parametrize(("config", "name", "run_time"), OPTIONS, ids=lambda value: str(value)[:30])
def test_run_time_options_leave_the_key_and_any_other_changes_it(config, name, run_time):
    changed = config.model_copy(update={name: "something else"})
    assert (config_digest(changed) == config_digest(config)) == run_time


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


def test_every_configuration_that_a_stage_takes_is_listed():
    def below(annotation):
        for part in (annotation, *getattr(annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, Config):
                yield part
                for name, field in part.model_fields.items():
                    if (part, name) not in WITHOUT_A_PART:
                        yield from below(field.annotation)
            elif part is not annotation:
                yield from below(part)

    listed = {type(config) for config, _ in RUN_TIME}
    within_the_objective = set(below(ObjectiveConfig))
    taken = {kind for each in (RolloutSpec, EvaluationSpec, TrainingConfig, VerifiersConfig) for kind in below(each)}
    assert taken - within_the_objective - listed == set()
    for kind in within_the_objective:  # all of it decides
        assert not any(type(mark).__name__ == "_RunTime" for f in kind.model_fields.values() for mark in f.metadata)


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
