"""Options of generation. Pydantic only: parsing a configuration must load neither torch nor vllm."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from tasks.config import Config, RunTime

FALSIFYING = {
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "allowed_token_ids"),
    *("min_tokens", "ignore_eos"),
}
"""Options of vLLM that change the distribution of a token by rules that the learner does not know."""


class EngineConfig(Config):
    """One vLLM engine: its type, its memory and its batches."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of weights and activations; `auto`: bfloat16, or float32 on a processor that computes bfloat16 slowly
    (`tasks.machine.precision`)."""
    max_model_len: int = Field(1024, gt=0)
    """Most tokens of a prompt and its response together."""
    max_num_seqs: RunTime[int] = Field(128, gt=0)
    """Most sequences that the engine decodes at one time; it queues further ones."""
    tensor_parallel_size: RunTime[int] = Field(1, gt=0)
    """Number of GPUs of one engine, over which each layer is split."""
    gpu_memory_utilization: RunTime[float] = Field(0.9, gt=0, le=1)
    """Share of a GPU's memory for weights and KV cache."""
    cpu_kv_cache_gib: RunTime[int] = Field(1, gt=0)
    """Size of the KV cache on a machine without a GPU, GiB."""
    cpu_threads: RunTime[int] = Field(0, ge=0)
    """Threads of an engine on a machine without a GPU; 0: one for each core."""
    enforce_eager: RunTime[bool] = True
    """Run without compiled graphs: the engine starts faster, and decodes slower on a GPU."""
    seed: int = 0
    """Seed of the engine's sampler, for requests without a seed of their own."""


class SamplingConfig(Config):
    """The sampling of responses: their number, their length, and the distribution that tokens are drawn from."""

    samples: int = Field(8, gt=0)
    """Responses per prompt: the group size G of GRPO."""
    max_tokens: int = Field(64, gt=0)
    """Most tokens of a response; a longer one is truncated."""
    temperature: float = Field(1.0, ge=0)
    """Divisor of the logits before the softmax; 0 takes the likeliest token. OlmoRL uses 1 (data construction, step 2),
    so that the engine's log-probabilities are the policy's."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751): draw from the likeliest tokens that together have this
    probability. 1: from all, as OlmoRL does, so that the engine's log-probabilities are the policy's."""
    top_k: int = Field(0, ge=0)
    """Draw from this many of the likeliest tokens (Fan et al. 2018, arXiv:1805.04833). 0: from all, so that the
    engine's log-probabilities are the policy's."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Draw from tokens whose probability is at least this share of the likeliest token's (Nguyen et al. 2024,
    arXiv:2407.01082). 0: from all, so that the engine's log-probabilities are the policy's."""
    stop: list[Annotated[str, StringConstraints(min_length=1)]] = Field([])
    """Texts that end a response. The text stays in it, so that all of its tokens were drawn from the policy."""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field([])
    """Ids of tokens that end a response, beside the model's own (vLLM's option, in Axolotl's `generation_kwargs`)."""
    guided_regex: str | None = Field(None, min_length=1)
    """Regular expression that every response matches (Axolotl's `vllm_guided_decoding_regex`): only tokens that can
    lead to a match are drawn, and log-probabilities are those among them. None: free text."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field({})
    """Variables of the model's chat template, such as `enable_thinking: false` (Axolotl)."""
    seed: int | None = None
    """Seed from which the seed of every sample of a prompt is derived, so that it is the same whatever else is in
    flight. None: samples are drawn from the engine's own stream, and depend on that."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_falsifies(cls, options: object) -> object:
        for name in sorted(FALSIFYING & set(options if isinstance(options, dict) else ())):
            raise ValueError(
                f"{name} is not offered: tokens would be drawn from another distribution than the one that the learner "
                "computes, and every importance weight would be wrong; leave it out"
            )
        return options

    @field_validator("guided_regex")
    @classmethod
    def _is_a_regex(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value
