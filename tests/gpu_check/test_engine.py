"""The check of an engine: all of it with a real engine on CPUs, and engines that are wrong."""

import re
from pathlib import Path

import pytest
import torch

from tasks.generation.engine import Engine
from tasks.generation.interface import Completion, VersionSpan
from tasks.gpu_check import engine
from tasks.gpu_check.bare_engine import BareEngine
from tasks.gpu_check.results import Findings, run_check
from tasks.gpu_check.sizes import TINY, save_random_model


@pytest.fixture
def check(tmp_path, monkeypatch):
    """The check of a tiny model in float32, in which rounding is 1e-6 nats."""
    monkeypatch.setenv("RLVR_CPU_DTYPE", "float32")
    folder = tmp_path / "model"
    save_random_model(folder, TINY.model, torch.float32)
    return engine.EngineCheck(TINY, folder)


@pytest.mark.engine
@pytest.mark.complete
def test_an_engine_on_cpus_passes(check):
    result = run_check("engine", check)
    assert result.status == "passed", result
    figures = result.figures
    for update in range(1, engine.UPDATES + 1):
        assert 0 < figures[f"update {update}, pause, s"] <= figures[f"update {update}, from call to return, s"]
        assert figures[f"update {update}, responses in flight of {2 * TINY.responses}"] >= 1
    errors = {name.split(":")[0]: error for name, error in figures.items() if name.endswith("engine's error, nats")}
    assert {"eager", "as prompts", "in flight at update 1", "waiting at update 1", "after update 3"} <= errors.keys()
    assert max(errors.values()) < 1e-4
    assert figures[f"eager, responses of {TINY.responses} that equal seeds repeat in a batch"] == TINY.responses
    assert figures["of bare vLLM's tokens/s"] > 0


@pytest.mark.engine
@pytest.mark.complete
def test_an_engine_that_ignores_seeds_and_swaps_its_weights_fails_the_check(check, monkeypatch):
    """It says that it has loaded each update, and goes on with the first."""
    generate, update_weights = Engine.generate, Engine.update_weights

    async def without_seed(self, prompt_ids, sampling, *, seed=None, with_logprobs=True):
        return await generate(self, prompt_ids, sampling, with_logprobs=with_logprobs)

    async def first_weights(self, path, version, **options):
        update = await update_weights(self, Path(path).parent.with_name("updated_1") / "model.safetensors", version)
        return type(update)(update.pause_seconds, update.total_seconds, check._contents[version - 1])

    monkeypatch.setattr(Engine, "generate", without_seed)
    monkeypatch.setattr(Engine, "update_weights", first_weights)
    monkeypatch.setattr(engine.EngineCheck, "_compare_speed", skipped)
    findings = Findings()
    check(findings)
    faults = " ".join(findings.faults)
    assert "eager: the same seed gives other tokens." in faults
    assert "after update 2: the engine is off by" in faults
    assert "after update 1" not in faults
    assert re.search("waiting at update 2: [0-9]+ of [0-9]+ responses are of version 1 ", faults)


async def skipped(*_, **__):
    """The comparison with bare vLLM has nothing to do with weights."""


def completion(*spans, tokens):
    return Completion("", [1] * tokens, [0.0] * tokens, "stop", [VersionSpan(*span) for span in spans])


@pytest.mark.parametrize(
    ("spans", "fault"),
    [
        ([(1, 0, 4)], None),
        ([(2, 0, 4)], None),
        ([(1, 0, 3), (2, 3, 4)], None),
        ([(1, 0, 3)], "do not add up"),
        ([(1, 0, 3), (2, 2, 4)], "do not add up"),
        ([(1, 0, 4), (2, 4, 4)], "do not add up"),
        ([], "do not add up"),
        ([(2, 0, 3), (1, 3, 4)], "tokens of the versions"),
        ([(0, 0, 3), (2, 3, 4)], "tokens of the versions"),
        ([(3, 0, 4)], "tokens of the versions"),
    ],
)
def test_spans_of_versions_add_up(spans, fault):
    message = engine.find_span_fault(completion(*spans, tokens=4), version=2)
    assert message is None if fault is None else fault in message


def test_bare_vllm_is_given_none_of_our_options(monkeypatch, tmp_path):
    """Its speed is what ours is compared with."""
    from vllm.v1.engine.async_llm import AsyncLLM

    given = {}
    monkeypatch.setattr(AsyncLLM, "from_engine_args", lambda arguments, **_: given.update(vars(arguments)))
    options = engine.EngineCheck(TINY, tmp_path / "model")._options(eager=True)
    BareEngine(tmp_path, options, str(tmp_path))
    assert (given["max_num_seqs"], given["max_model_len"]) == (TINY.responses, options.max_model_len)
    assert given["scheduler_cls"] is None
    assert given["worker_extension_cls"] == ""
    assert given["weight_transfer_config"] is None
    assert given["logprobs_mode"] == "raw_logprobs"
