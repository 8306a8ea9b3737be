"""The scheduler of engines on GPUs: asynchronous, one step ahead of the tokens. It is vLLM's but for salts and counts.

Engines without a GPU never schedule asynchronously, so that the scheduler runs without an engine here: a step that is
in flight is an output of `schedule` whose tokens have not come back yet.
"""

import pytest
import torch

BLOCK = 16
PROMPT = list(range(5, 5 + 2 * BLOCK + 1))  # two whole blocks that a second request could find in the cache


@pytest.fixture
def scheduler(tiny_model, monkeypatch):
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from tasks.generation import scheduler

    options = VllmConfig(
        model_config=ModelConfig(model=str(tiny_model), dtype="float32", max_model_len=256),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=2, max_num_batched_tokens=256, max_model_len=256, is_encoder_decoder=False
        ),
    )
    # What vLLM's configuration has on a GPU. It refuses both here, so they are set when it has been checked.
    options.scheduler_config.async_scheduling = True
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    options.cache_config.num_gpu_blocks = 64
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    blocks = KVCacheConfig(num_blocks=64, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return scheduler.scheduler(
        vllm_config=options,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(options),
        block_size=BLOCK,
        log_stats=True,
    )


def request(name, version, **options):
    """A request as `Engine.generate` sends it under weights of this version."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    parameters = SamplingParams(max_tokens=100, **options)
    parameters.update_from_generation_config({}, 2)
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(name, PROMPT, parameters, None, cache_salt=str(version), block_hasher=hasher)


def returned(scheduler, step, token):
    """Let the tokens of a step come back, and return how many came by request."""
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(step.num_scheduled_tokens)
    output = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, [[token]] * len(names))
    outputs = scheduler.update_from_output(step, output)
    return {one.request_id: len(one.new_token_ids) for group in outputs.values() for one in group.outputs}


def test_a_pause_ends_when_the_tokens_of_the_steps_in_flight_are_back(scheduler):
    """So no token of an older step is returned after the version of the weights has changed."""
    from vllm.v1.core.sched.interface import PauseState

    scheduler.add_request(request("a", 0))
    first, second = scheduler.schedule(), scheduler.schedule()  # the second before any token of the first is known
    assert (first.num_scheduled_tokens, second.num_scheduled_tokens) == ({"a": len(PROMPT)}, {"a": 1})
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert not scheduler.has_requests()
    assert scheduler.schedule().total_num_scheduled_tokens == 0
    assert (returned(scheduler, first, 7), returned(scheduler, second, 8)) == ({"a": 1}, {"a": 1})
    scheduler.set_pause_state(PauseState.UNPAUSED)
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}
    assert list(scheduler.requests["a"].output_token_ids) == [7, 8]


@pytest.mark.parametrize("guided", [False, True], ids=["free", "guided"])
def test_a_request_that_waits_during_an_update_finds_no_block_of_older_weights(scheduler, guided):
    """Also if it waits for its grammar, which is compiled during generation."""
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.request import RequestStatus

    scheduler.add_request(request("before", 0))
    step = scheduler.schedule()
    returned(scheduler, step, 7)
    options = {"structured_outputs": StructuredOutputsParams(regex="a+")} if guided else {}
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    late = request("late", 0, **options)
    scheduler.add_request(late)
    assert (late.status is RequestStatus.WAITING) != guided
    scheduler.set_pause_state(PauseState.UNPAUSED)
    if guided:
        late.status = RequestStatus.WAITING  # its grammar is there
        late.structured_output_request = None
    new = {one.req_id: one.num_computed_tokens for one in scheduler.schedule().scheduled_new_reqs}
    assert new == {"late": 0}


def test_without_an_update_the_second_request_does_find_them(scheduler):
    scheduler.add_request(request("before", 0))
    returned(scheduler, scheduler.schedule(), 7)
    scheduler.add_request(request("late", 0))
    assert [one.num_computed_tokens for one in scheduler.schedule().scheduled_new_reqs] == [2 * BLOCK]


def test_a_sleep_drops_the_cache_of_running_requests_and_no_token(scheduler):
    """They begin again with all their tokens, and are not counted as preempted."""
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.engine import EngineCoreEventType

    scheduler.add_request(request("a", 0))
    steps = [scheduler.schedule(), scheduler.schedule()]
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    for step, token in zip(steps, (7, 8), strict=True):
        returned(scheduler, step, token)
    assert scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    scheduler.set_pause_state(PauseState.UNPAUSED)
    again = scheduler.schedule()
    assert again.num_scheduled_tokens == {"a": len(PROMPT) + 2}
    assert again.scheduled_new_reqs[0].prefill_token_ids == [*PROMPT, 7, 8]  # as the second runner is told of it
    assert returned(scheduler, again, 9) == {"a": 1}
    events = [event.type for event in scheduler.requests["a"].events]
    assert EngineCoreEventType.PREEMPTED not in events
