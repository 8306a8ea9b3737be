"""One real vLLM engine that runs a LoRA adapter: it is the policy that peft computes, also in mid-generation."""

import asyncio

import pytest
from safetensors.torch import load_file

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.interface import EngineError, EngineUse
from tasks.recipe.learner import LoraConfig
from tasks.storage.tensor_digest import compute_contents
from tasks.training.learner.adapter import WEIGHTS, describe_adapter
from tests.generation.test_engine import LONG, PROMPTS, SAMPLING, policy_logprobs

pytestmark = [pytest.mark.engine, pytest.mark.complete]

RANK = 3


@pytest.fixture(scope="module")
def policies(tiny_model, tmp_path_factory):
    """Two adapters of the tiny model, and each of them merged into it: `[(adapter folder, model folder), ...]`."""
    import torch
    from transformers import AutoModelForCausalLM

    from tasks.recipe.learner import LoraConfig
    from tasks.training.learner import adapter

    config = LoraConfig(rank=RANK, alpha=6)

    def policy(seed):
        folder = tmp_path_factory.mktemp("policy")
        model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        plain = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        adapter.add_adapter(model, config)
        torch.manual_seed(seed)
        tensors = dict(adapter.adapter_parameters(model))
        for name, tensor in tensors.items():
            if ".lora_B." in name:
                torch.nn.init.normal_(tensor, std=0.3)
        trained = {name: tensor.detach() for name, tensor in tensors.items()}
        adapter.write_adapter(folder / "adapter", trained, config)
        whole = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        whole.load_state_dict(adapter.merge_adapter(plain, trained, config))
        whole.save_pretrained(folder / "merged")
        return folder / "adapter", folder / "merged"

    return [policy(1), policy(2)]


@pytest.fixture(scope="module")
def loop():
    """The event loop in which the engine lives."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine(tiny_model, loop):
    from tasks.generation.engine import Engine

    options = EngineConfig(max_model_len=320, max_num_seqs=8, dtype="float32", cpu_threads=1)
    adapter = describe_adapter(tiny_model, LoraConfig(rank=RANK, alpha=6))
    engine = loop.run(Engine.start(tiny_model, options, EngineUse(updatable=True, adapter=adapter)))
    yield engine
    engine.shutdown()


def check(engine, loop, prompt, version, model):
    completion = loop.run(engine.generate(prompt, SAMPLING))
    assert [span.version for span in completion.versions] == [version]
    expected = policy_logprobs(model, prompt, completion.token_ids)
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_without_an_adapter_nothing_is_sampled(engine, loop):
    with pytest.raises(EngineError, match="no adapter yet"):
        loop.run(engine.generate(PROMPTS[0], SAMPLING))


def test_a_first_adapter_is_version_0_and_may_change_nothing(engine, loop, tiny_model, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    from tasks.recipe.learner import LoraConfig
    from tasks.training.learner import adapter

    config = LoraConfig(rank=RANK, alpha=6)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    adapter.add_adapter(model, config)  # B is zero
    fresh = {name: tensor.detach() for name, tensor in adapter.adapter_parameters(model)}
    adapter.write_adapter(tmp_path / "fresh", fresh, config)
    loop.run(engine.update_weights(tmp_path / "fresh", 0))
    check(engine, loop, PROMPTS[1], 0, tiny_model)


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_logprobs_are_those_of_the_merged_policy(engine, loop, policies, prompt):
    folder, merged = policies[0]
    loop.run(engine.update_weights(folder, 1))
    check(engine, loop, prompt, 1, merged)


def test_an_adapter_is_replaced_in_mid_generation_and_every_token_knows_its_policy(engine, loop, policies):
    async def update_while_generating():
        requests = [asyncio.create_task(engine.generate(LONG, SamplingConfig(max_tokens=100))) for _ in range(24)]
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        update = await engine.update_weights(policies[1][0], 2)
        return await asyncio.gather(*requests), update

    completions, update = loop.run(update_while_generating())
    assert 0 < update.pause_seconds <= update.total_seconds
    assert update.contents == compute_contents(load_file(policies[1][0] / WEIGHTS))
    by_versions = {tuple(span.version for span in completion.versions) for completion in completions}
    assert (1, 2) in by_versions
    assert by_versions <= {(1,), (1, 2), (2,)}
    check(engine, loop, LONG, 2, policies[1][1])  # no keys and values of the first adapter are left for new requests


def test_an_adapter_that_cannot_be_loaded_is_an_error_and_hangs_no_request(engine, loop, tmp_path):
    async def failing_update():
        request = asyncio.create_task(engine.generate(PROMPTS[0], SamplingConfig(max_tokens=100)))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match=r"weight update 3 from .*missing failed"):
            await engine.update_weights(tmp_path / "missing", 3)
        await asyncio.wait([request])
        return request

    request = loop.run(failing_update())
    assert request.exception() is None


def test_ranks_are_rounded_up_to_what_the_engine_reserves():
    from tasks.generation.adapter import choose_rank

    assert [choose_rank(rank) for rank in (1, 3, 8, 12, 500)] == [1, 8, 8, 16, 512]
    with pytest.raises(ValueError, match="rank 513: vLLM serves up to 512"):
        choose_rank(513)
