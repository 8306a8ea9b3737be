"""One real vLLM engine: what it returns is the policy's, and new weights reach it in mid-generation.

The tests share the engine of conftest.py and stand in the order of its life: generation, an update, a failed update,
death, shutdown. Those of test_sampling_options.py, which update nothing, run before them.
"""

import asyncio
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from safetensors.torch import load_file

from tasks.generation.cache_memory import CacheMemory
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.interface import EngineError, EngineOptionsError, RequestRefusedError, VersionSpan, sample_seed
from tasks.machine.memory_limit import MemoryLimitError, ShortOfMemoryError
from tasks.storage.tensor_digest import compute_contents
from tests.generation.conftest import CONTEXT
from tests.tiny_model import build

pytestmark = pytest.mark.engine

LONG = list(range(10, 150))  # the engine keeps the keys and values of a prompt by blocks of 128 tokens
PROMPTS = [[5, 6, 7], [50, 60, 70, 80, 90], LONG]
SAMPLING = SamplingConfig(max_tokens=24)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory):
    """Another policy of the same shape."""
    return build(tmp_path_factory.mktemp("model") / "other", seed=1)


async def all_of(engine, count, sampling=SAMPLING):
    return await asyncio.gather(*(engine.generate(PROMPTS[i % len(PROMPTS)], sampling) for i in range(count)))


def policy_logprobs(folder, prompt, response):
    """The log-probability of each response token under the Hugging Face model in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(response, dtype=torch.long)[:, None])[:, 0].tolist()


def test_more_requests_than_slots_all_finish(engine, loop):
    completions = loop.run(all_of(engine, 40))
    assert len(completions) == 40
    for completion in completions:
        assert 0 < len(completion.token_ids) <= 24
        assert len(completion.logprobs) == len(completion.token_ids)
        assert max(completion.logprobs) <= 0
        assert completion.versions == [VersionSpan(0, 0, len(completion.token_ids))]
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 24
    # Two may well end at once; that any two agree in eight tokens is impossible.
    long = [tuple(completion.token_ids) for completion in completions if len(completion.token_ids) > 8]
    assert len(set(long)) == len(long) > 20


def test_logprobs_are_those_of_the_policy_that_sampled(engine, loop, tiny_model):
    for prompt, completion in zip(PROMPTS, loop.run(all_of(engine, len(PROMPTS))), strict=True):
        expected = policy_logprobs(tiny_model, prompt, completion.token_ids)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_at_another_temperature_logprobs_are_those_of_the_distribution_sampled_from(engine, loop, tiny_model):
    import torch
    from transformers import AutoModelForCausalLM

    completion = loop.run(engine.generate(PROMPTS[0], SamplingConfig(max_tokens=8, temperature=0.5)))
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPTS[0], *completion.token_ids]])).logits[0, len(PROMPTS[0]) - 1 : -1]
    sampled = torch.tensor(completion.token_ids, dtype=torch.long)
    expected = (logits / 0.5).log_softmax(-1).gather(1, sampled[:, None])[:, 0]
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_the_end_token_belongs_to_the_tokens_and_not_to_the_text(engine, loop, tiny_model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    completions = loop.run(all_of(engine, 40, SamplingConfig(max_tokens=100)))
    stopped = [completion for completion in completions if completion.finish_reason == "stop"]
    assert stopped
    for completion in stopped:
        assert completion.token_ids[-1] == tokenizer.eos_token_id
        assert "<|im_end|>" not in completion.text


def test_a_seeded_request_repeats_itself_whatever_else_is_in_flight(engine, loop):
    async def alone_and_in_company():
        seed = sample_seed(3, "a prompt", 0)
        alone = await engine.generate(PROMPTS[1], SAMPLING, seed=seed)
        company = asyncio.create_task(all_of(engine, 20))
        accompanied = await engine.generate(PROMPTS[1], SAMPLING, seed=seed)
        other = await engine.generate(PROMPTS[1], SAMPLING, seed=sample_seed(3, "a prompt", 1))
        await company
        return alone, accompanied, other

    alone, accompanied, other = loop.run(alone_and_in_company())
    assert accompanied.token_ids.tolist() == alone.token_ids.tolist()
    assert other.token_ids.tolist() != alone.token_ids.tolist()


def test_without_logprobs_the_same_seed_gives_the_same_response(engine, loop):
    expected = loop.run(engine.generate(PROMPTS[0], SAMPLING, seed=3))
    completion = loop.run(engine.generate(PROMPTS[0], SAMPLING, seed=3, with_logprobs=False))
    assert completion.token_ids.tolist() == expected.token_ids.tolist()
    assert len(completion.logprobs) == 0


def test_an_engine_names_the_size_of_its_kv_cache(engine, loop):
    assert loop.run(engine.kv_cache_memory()) == 2**30  # `cpu_kv_cache_gib`


def test_a_model_or_an_option_that_vllm_does_not_take_is_no_failure_of_an_engine(tiny_model, loop, tmp_path):
    from tasks.generation.engine import Engine

    with pytest.raises(EngineOptionsError, match="nowhere"):
        loop.run(Engine.start(tmp_path / "nowhere", EngineConfig()))
    with pytest.raises(EngineOptionsError, match="max_model_len"):
        loop.run(Engine.start(tiny_model, EngineConfig(max_model_len=10**7)))


@pytest.mark.complete
def test_memory_that_an_engine_does_not_get_is_told_from_memory_that_there_is_not(tiny_model, loop):
    from tasks.generation.engine import Engine

    gib = psutil.virtual_memory().total // 2**30
    for cache, kind in ((gib, ShortOfMemoryError), (gib + 2, MemoryLimitError)):
        options = EngineConfig(max_model_len=CONTEXT, max_num_seqs=8, cpu_threads=1, cpu_kv_cache_gib=cache)
        with pytest.raises(kind, match=rf"kv \({cache}\.0 GiB\), within .*; the largest processes were .*; lower "):
            loop.run(Engine.start(tiny_model, options))


def test_files_in_a_pods_memory_leave_room_for_an_engine(monkeypatch):
    from vllm.utils import cpu_resource_utils

    from tasks.generation import executor

    monkeypatch.setattr(cpu_resource_utils, "get_cgroup_memory_limit", lambda: 3 * 2**20)
    monkeypatch.setattr(executor, "_usage_of_group", lambda: 3 * 2**20)  # files fill what processes leave
    monkeypatch.setattr(executor.MemoryLimit, "cached", lambda _: 2 * 2**20)
    found = cpu_resource_utils.get_memory_node_info(0)
    assert (found.total_memory, found.available_memory) == (3 * 2**20, 2 * 2**20)


def test_a_request_that_does_not_fit_the_context_is_an_error_and_hurts_no_other(engine, loop):
    with pytest.raises(RequestRefusedError, match=str(CONTEXT)):
        loop.run(engine.generate([5] * (CONTEXT + 1), SAMPLING))
    assert len(loop.run(all_of(engine, 2))) == 2


def test_new_weights_arrive_in_mid_generation_and_every_token_knows_its_policy(engine, loop, other_model):
    async def update_while_generating():
        long = SamplingConfig(max_tokens=100)
        requests = [asyncio.create_task(engine.generate(PROMPTS[0], long)) for _ in range(48)]
        # the first has finished: others are in the middle, and most are still waiting for room
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        update = await engine.update_weights(Path(other_model) / "model.safetensors", 1)
        return await asyncio.gather(*requests), update

    completions, update = loop.run(update_while_generating())
    assert len(completions) == 48
    assert 0 < update.pause_seconds <= update.total_seconds
    assert update.contents == compute_contents(load_file(Path(other_model) / "model.safetensors"))
    for completion in completions:
        spans = completion.versions
        assert (spans[0].start, spans[-1].end) == (0, len(completion.token_ids))
        assert all(a.end == b.start and a.version < b.version for a, b in pairwise(spans))
    by_versions = {tuple(span.version for span in completion.versions) for completion in completions}
    assert by_versions == {(0,), (0, 1), (1,)}


def test_a_request_that_waits_for_a_place_begins_under_the_weights_of_then(engine, loop, tiny_model, other_model):
    """Its prompt is longer than a block of the cache, and those before it have put the old keys and values there."""

    async def update_while_most_wait(model, version):
        requests = [asyncio.create_task(engine.generate(LONG, SamplingConfig(max_tokens=100))) for _ in range(24)]
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        await engine.update_weights(Path(model) / "model.safetensors", version)
        return await asyncio.gather(*requests)

    loop.run(engine.update_weights(Path(tiny_model) / "model.safetensors", 0))
    completions = loop.run(update_while_most_wait(other_model, 1))
    later = [completion for completion in completions if [span.version for span in completion.versions] == [1]]
    assert len(later) >= 8
    for completion in later:
        expected = policy_logprobs(other_model, LONG, completion.token_ids)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_after_an_update_logprobs_are_those_of_the_new_policy(engine, loop, other_model, prompt):
    completion = loop.run(engine.generate(prompt, SAMPLING))  # the engine has seen it under the old one
    assert [span.version for span in completion.versions] == [1]
    expected = policy_logprobs(other_model, prompt, completion.token_ids)
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_after_an_update_the_engine_does_not_read_the_file_any_more(engine, loop, other_model, tmp_path):
    """The learner writes a later version into the memory of this file."""
    file = tmp_path / "v00000001"
    shutil.copy(Path(other_model) / "model.safetensors", file)
    loop.run(engine.update_weights(file, 1))
    with file.open("r+b") as stream:
        stream.write(bytes(file.stat().st_size))
    completion = loop.run(engine.generate(PROMPTS[1], SAMPLING))
    expected = policy_logprobs(other_model, PROMPTS[1], completion.token_ids)
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_without_its_cache_a_response_goes_on_exactly_as_the_new_policy_would(engine, loop, tiny_model):
    async def update_while_generating():
        long = SamplingConfig(max_tokens=100)
        requests = [asyncio.create_task(engine.generate(PROMPTS[1], long)) for _ in range(16)]
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        await engine.update_weights(Path(tiny_model) / "model.safetensors", 2, keep_cache=False)
        return await asyncio.gather(*requests)

    both = [c for c in loop.run(update_while_generating()) if [span.version for span in c.versions] == [1, 2]]
    assert both
    for completion in both:
        after = completion.versions[1].start
        expected = policy_logprobs(tiny_model, PROMPTS[1], completion.token_ids)
        assert completion.logprobs[after:] == pytest.approx(expected[after:], abs=1e-4)


def test_an_engine_that_slept_goes_on_exactly_as_the_policy_would_that_it_wakes_with(
    engine, loop, tiny_model, other_model
):
    """On a CPU nothing leaves the memory; that requests wait, lose their cache and go on is the same on a GPU."""

    async def sleeps_while_generating(wake):
        long = SamplingConfig(max_tokens=100)
        requests = [asyncio.create_task(engine.generate(PROMPTS[1], long)) for _ in range(16)]
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        await engine.sleep()
        await engine.sleep()  # the second does nothing
        requests.append(asyncio.create_task(engine.generate(PROMPTS[0], SAMPLING)))
        await asyncio.sleep(0.2)
        made = engine.statistics.generated_tokens
        await asyncio.sleep(0.5)
        assert engine.statistics.generated_tokens == made
        assert not requests[-1].done()
        await wake()
        await engine.wake()
        return await asyncio.gather(*requests)

    preemptions = engine.statistics.preemptions
    *completions, late = loop.run(sleeps_while_generating(engine.wake))
    assert [span.version for span in late.versions] == [2]
    for completion in completions:
        assert [span.version for span in completion.versions] == [2]
        expected = policy_logprobs(tiny_model, PROMPTS[1], completion.token_ids)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)

    file = Path(other_model) / "model.safetensors"
    *completions, late = loop.run(sleeps_while_generating(lambda: engine.update_weights(file, 3)))
    assert [span.version for span in late.versions] == [3]
    both = [c for c in completions if [span.version for span in c.versions] == [2, 3]]
    assert both
    for completion in both:
        after = completion.versions[1].start
        expected = policy_logprobs(other_model, PROMPTS[1], completion.token_ids)
        assert completion.logprobs[after:] == pytest.approx(expected[after:], abs=1e-4)
    assert engine.statistics.preemptions == preemptions  # no sequence has outgrown the cache
    loop.run(engine.update_weights(Path(tiny_model) / "model.safetensors", 2))


def test_an_engine_says_how_far_it_is(engine, loop):
    before = engine.statistics.generated_tokens
    completions = loop.run(all_of(engine, 5))
    made = sum(len(completion.token_ids) for completion in completions)
    assert engine.statistics.generated_tokens - before == made
    assert engine.statistics.running == engine.statistics.queued == 0


def test_a_response_that_nobody_waits_for_is_not_finished(engine, loop):
    async def abandoned():
        request = asyncio.create_task(engine.generate(PROMPTS[0], SamplingConfig(max_tokens=300)))
        await asyncio.sleep(0.1)
        request.cancel()
        await asyncio.wait([request])
        await all_of(engine, 1)
        return engine.statistics.running

    assert loop.run(abandoned()) == 0


def test_weights_that_cannot_be_loaded_are_an_error_and_hang_no_request(engine, loop, tmp_path):
    path = tmp_path / "v3.safetensors"
    path.write_bytes(b"not safetensors")

    async def failing_update():
        request = asyncio.create_task(engine.generate(PROMPTS[0], SamplingConfig(max_tokens=100)))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match=r"weight update 3 from .*v3.safetensors failed"):
            await engine.update_weights(path, 3)
        await asyncio.wait([request])
        return request

    request = loop.run(failing_update())
    assert request.exception() is None or isinstance(request.exception(), EngineError)


@pytest.fixture(scope="module")
def killed(engine, loop, before, other_model):
    """The engine, its processes killed while it takes new weights."""
    processes = engines_of_this_process(before)

    async def killed_meanwhile():
        for process in processes:
            process.suspend()  # it cannot answer before it dies
        update = asyncio.create_task(engine.update_weights(Path(other_model) / "model.safetensors", 4))
        await asyncio.sleep(0.2)
        for process in processes:
            process.kill()
        with pytest.raises(EngineError, match=r"weight update 4 from .* failed"):
            async with asyncio.timeout(60):  # an update that waits for an answer would wait for ever
                await update

    loop.run(killed_meanwhile())
    psutil.wait_procs(processes)
    return engine


def engines_of_this_process(before):
    # multiprocessing's own helper serves this process, not the engine
    started = set(psutil.Process().children(recursive=True)) - before
    return [process for process in started if "resource_tracker" not in " ".join(process.cmdline())]


def test_generating_with_a_killed_engine_is_an_engine_error(killed, loop):
    with pytest.raises(EngineError):
        loop.run(killed.generate(PROMPTS[0], SAMPLING))


def test_updating_a_killed_engine_is_an_engine_error(killed, loop, other_model):
    with pytest.raises(EngineError):
        loop.run(killed.update_weights(Path(other_model) / "model.safetensors", 3))


def test_shutdown_leaves_no_process(engine, before):
    engine.shutdown()
    assert psutil.wait_procs(engines_of_this_process(before), timeout=30)[1] == []


@pytest.mark.complete
@pytest.mark.parametrize(("gpus", "workers"), [(1, 0), (2, 2)])
def test_an_engine_whose_parent_is_killed_ends_too_with_all_its_workers(tiny_model, tmp_path, gpus, workers):
    script = tmp_path / "parent.py"
    script.write_text(f"""
import asyncio

from tasks.generation.config import EngineConfig
from tasks.generation.engine import Engine

async def main():
    options = EngineConfig(max_model_len={CONTEXT}, max_num_seqs=8, cpu_threads=1, tensor_parallel_size={gpus})
    engine = await Engine.start({str(tiny_model)!r}, options)
    print("ready", flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
""")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert any(line.strip() == "ready" for line in parent.stdout)
        children = psutil.Process(parent.pid).children(recursive=True)
        names = [" ".join(child.cmdline()) for child in children]
        assert any("EngineCore" in name for name in names)
        assert sum("Worker" in name for name in names) == workers
        parent.kill()
        assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_worker_names_the_kv_cache_that_its_profile_of_the_gpu_left_or_that_it_was_given():
    given = SimpleNamespace(kv_cache_memory_bytes=2**30)
    assert CacheMemory.kv_cache_memory(SimpleNamespace(cache_config=given)) == 2**30
    profiled = SimpleNamespace(kv_cache_memory_bytes=None)
    left = SimpleNamespace(cache_config=profiled, available_kv_cache_memory_bytes=3.5e9 + 0.5)
    assert CacheMemory.kv_cache_memory(left) == 3_500_000_000
