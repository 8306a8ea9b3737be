"""Converts the options of sampling to vLLM's sampling parameters."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from tasks.generation.config import SamplingConfig
from tasks.generation.interface import EngineOptionsError


def build_sampling_parameters(sampling: SamplingConfig, *, seed: int | None, with_logprobs: bool) -> SamplingParams:
    """Return vLLM's parameters of one request for one sample.

    Args:
        sampling: options of sampling. `samples` and `seed` are not used.
        seed: seed of the request. If None, the engine's random stream is used.
        with_logprobs: True if log-probabilities of the sampled tokens are also returned.

    Raises:
        EngineOptionsError: vLLM does not accept a value in `sampling.vllm`.
    """
    try:
        return SamplingParams(
            n=1,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            max_tokens=sampling.max_tokens,
            stop=sampling.stop,
            stop_token_ids=sampling.stop_token_ids,
            include_stop_str_in_output=True,  # the text matches the tokens
            skip_special_tokens=False,  # in some models `</think>` is a special token
            spaces_between_special_tokens=False,
            structured_outputs=StructuredOutputsParams(regex=sampling.guided_regex) if sampling.guided_regex else None,
            seed=seed,
            logprobs=0 if with_logprobs else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **_convert_types(sampling.vllm),
        )
    except (ValueError, VLLMClientError) as error:
        raise EngineOptionsError(f"sampling.vllm = {sampling.vllm}: {error}") from error


def _convert_types(arguments: dict[str, Any]) -> dict[str, Any]:
    """Convert arguments to the types that vLLM declares, such as token ids that are strings as keys of JSON.

    Raises:
        ValueError: an argument has another type.
    """
    if not arguments:
        return {}
    try:
        parameters = _build_adapter().validate_python(arguments)
    except ValidationError as error:
        problem = error.errors()[-1]  # the errors before it are about the other members of vLLM's union types
        path = [str(step) for step in problem["loc"]]
        while len(path) > 1 and path[0] not in arguments:
            path.pop(0)
        raise ValueError(f"{'.'.join(path)}: {problem['msg']}") from None
    return {name: getattr(parameters, name) for name in arguments}


@cache
def _build_adapter() -> TypeAdapter[SamplingParams]:
    return TypeAdapter(SamplingParams)
