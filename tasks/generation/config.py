"""Options of generation. Pydantic only: parsing a configuration must load neither torch nor vllm."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from tasks.config import Config, RunTime

FALSIFYING = {
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "allowed_token_ids"),
    *("min_tokens", "ignore_eos"),
}
"""Options of vLLM that change what each token is drawn from, by rules of the engine that the learner has not."""


class EngineConfig(Config):
    """How one vLLM engine runs."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of weights and activations; `auto`: bfloat16, or float32 on a processor that computes bfloat16 slowly
    (`tasks.machine.precision`)."""
    max_model_len: int = Field(1024, gt=0)
    """Context in tokens, prompt and response together."""
    max_num_seqs: RunTime[int] = Field(128, gt=0)
    """Sequences in flight at most; the engine queues what comes on top."""
    tensor_parallel_size: RunTime[int] = Field(1, gt=0)
    """GPUs of one engine."""
    gpu_memory_utilization: RunTime[float] = Field(0.9, gt=0, le=1)
    """Share of a GPU's memory for weights and KV cache."""
    cpu_kv_cache_gib: RunTime[int] = Field(1, gt=0)
    """Size of the KV cache on a machine without a GPU."""
    cpu_threads: RunTime[int] = Field(0, ge=0)
    """Threads of an engine on a machine without a GPU; 0: one for each core."""
    enforce_eager: RunTime[bool] = True
    """Run without compiled graphs: a faster start, slower decoding on a GPU."""
    seed: int = 0
    """Seed of the engine's sampler, for requests that bring none."""


class SamplingConfig(Config):
    """How completions are sampled."""

    samples: int = Field(8, gt=0)
    """Completions per prompt (the group size G of GRPO)."""
    max_tokens: int = Field(64, gt=0)
    """Response length at most, in tokens."""
    temperature: float = Field(1.0, ge=0)
    """As in vLLM. The offline filter and training both use temperature 1.0 and top-p 1.0 (OlmoRL, data construction
    step 2), so that the engine's log-probabilities are the policy's."""
    top_p: float = Field(1.0, gt=0, le=1)
    """As in vLLM. The offline filter and training both use temperature 1.0 and top-p 1.0 (OlmoRL, data construction
    step 2), so that the engine's log-probabilities are the policy's."""
    top_k: int = Field(0, ge=0)
    """As in vLLM. The offline filter and training both use temperature 1.0 and top-p 1.0 (OlmoRL, data construction
    step 2), so that the engine's log-probabilities are the policy's."""
    min_p: float = Field(0.0, ge=0, le=1)
    """As in vLLM. The offline filter and training both use temperature 1.0 and top-p 1.0 (OlmoRL, data construction
    step 2), so that the engine's log-probabilities are the policy's."""
    stop: list[Annotated[str, StringConstraints(min_length=1)]] = Field([])
    """Texts that end a response, which ends with the text; all of its tokens were drawn from the policy."""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field([])
    """Tokens that do so, beside the model's own (vLLM's option, in Axolotl's `generation_kwargs`)."""
    guided_regex: str | None = Field(None, min_length=1)
    """Responses match this regular expression (Axolotl's `vllm_guided_decoding_regex`): only tokens are drawn that can
    go on to a match, and log-probabilities are those among them."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field({})
    """Variables of the model's chat template, such as `enable_thinking: false` (Axolotl)."""
    seed: int | None = None
    """With a seed, sample i of a prompt is drawn with a seed derived from it, whatever else is in flight."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_falsifies(cls, options: Any) -> Any:
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
