"""Options of generation. Pydantic only: parsing a configuration must load neither torch nor vllm."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from tasks.config import Config, RunTime
from tasks.config_fields import Arguments
from tasks.generation.vllm_arguments import (
    COMPILED,
    FALSIFIED,
    PARALLEL_SIZES,
    SAMPLING_REFUSED_IN_TRAINING,
    check_engine_arguments,
    check_sampling_arguments,
)
from tasks.verifiers.connection import VARIABLE, plain_url

GPU_SHARE = 0.9
"""Share of a GPU's memory that an engine takes by default, where it has the GPU to itself."""


class EndpointConfig(Config):
    """A server of the policy with OpenAI's completions interface, such as `vllm serve`, in place of an engine.

    It is sent the tokens of prompts, and everything that `sampling` asks for beyond OpenAI's fields by vLLM's names.
    """

    url: RunTime[str]
    """Base URL of the server (`http://host:8000/v1`)."""
    model: str = Field(min_length=1)
    """Name of the policy at the server. It is not compared with the checkpoint that the stage is given: that the server
    serves the same is up to you."""
    api_key_env: RunTime[str | None] = Field(None, pattern=VARIABLE)
    """NAME of the environment variable that holds the server's key; null: no key is sent."""
    timeout_seconds: RunTime[float] = Field(1800.0, gt=0)
    """Seconds that one response may take, its wait in the server's queue included."""
    retries: RunTime[int] = Field(5, ge=0)
    """Repetitions of a request after a failure that may pass: HTTP 408, 409, 429 or 5xx, a broken connection, a
    timeout. Waits between them grow to 8 s."""

    @field_validator("url")
    @classmethod
    def _is_plain(cls, url: str) -> str:
        return plain_url(url, "the base URL of an OpenAI-compatible server, as in http://host:8000/v1", "api_key_env")


class EngineConfig(Config):
    """One vLLM engine: its type, its memory and its batches."""

    server: EndpointConfig | None = None
    """A server that someone else runs, in place of an engine of the stage's own: difficulty can have its rollouts from
    there, and so can the evaluation of a single policy (`evaluate_policy`). Of the options beside it only
    `max_model_len` and `max_num_seqs` apply, the latter to requests in flight. null: the stage starts an engine."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of weights and activations; `auto`: bfloat16, or float32 on a processor that computes bfloat16 slowly
    (`tasks.machine.precision`)."""
    max_model_len: int = Field(1024, gt=0)
    """Most tokens of a prompt and its response together."""
    max_num_seqs: RunTime[int] = Field(128, gt=0)
    """Most sequences that the engine decodes at one time; it queues further ones. With `data_parallel_size` in `vllm`,
    those of each of its replicas."""
    tensor_parallel_size: RunTime[int] = Field(1, gt=0)
    """Number of GPUs over which each layer of the model is split. An engine has as many, times the pipeline, prefill
    context and data parallel sizes in `vllm`."""
    gpu_memory_utilization: RunTime[float | None] = Field(None, gt=0, le=1)
    """Share of a GPU's memory for weights, KV cache and what a batch needs. null: 0.9, or 0.4 where training has a
    learner rank in the same memory (`placement: shared`)."""
    cpu_kv_cache_gib: RunTime[float] = Field(1.0, gt=0)
    """Size of the KV cache on a machine without a GPU, GiB."""
    cpu_threads: RunTime[int] = Field(0, ge=0)
    """Threads of an engine on a machine without a GPU; 0: one for each core."""
    enforce_eager: RunTime[bool] = True
    """Run without compiled graphs: the engine starts faster, and decodes slower on a GPU."""
    seed: int = 0
    """Seed of the engine's sampler, for requests without a seed of their own."""
    vllm: Arguments = Field({})
    """Further arguments of vLLM's `AsyncEngineArgs`, such as `{quantization: fp8, kv_cache_dtype: fp8}` or
    `{max_num_batched_tokens: 16384}`. A name that vLLM does not have is refused when the file is read, and so is one
    that the pipeline sets itself. Training also refuses what would falsify importance weights or miss a weight update
    (speculative decoding, `logits_processors`, offloading). vLLM checks the values when an engine starts. Its defaults
    apply to all others; on GPUs `max_num_batched_tokens` is 8192, or 16384 from 70 GiB of memory on (A100: 8192)."""

    @field_validator("vllm")
    @classmethod
    def _are_arguments_of_an_engine(cls, value: dict[str, Any]) -> dict[str, Any]:
        check_engine_arguments(value)
        return value

    @model_validator(mode="after")
    def _leaves_a_server_its_own_options(self) -> Self:
        given = sorted(self.model_fields_set - {"server", "max_model_len", "max_num_seqs"})
        others = [name for name in given if getattr(self, name) != type(self).model_fields[name].default]
        if self.server is not None and others:
            raise ValueError(f"{others[0]}: an option of an engine of the stage's own, and server names another's")
        return self

    @model_validator(mode="after")
    def _compiles_if_it_says_how(self) -> Self:
        for name in COMPILED:
            if self.enforce_eager and name in self.vllm:
                raise ValueError(f"vllm.{name}: with enforce_eager = true nothing is compiled; set it to false")
        return self

    @property
    def share_of_gpu(self) -> float:
        """Share of a GPU's memory for an engine that has the GPU to itself, unless the option names one."""
        return self.gpu_memory_utilization or GPU_SHARE

    @property
    def gpus_of_replica(self) -> int:
        """Number of GPUs that hold the weights once: all of an engine's, unless it is data parallel."""
        return self.gpus // self.replicas

    @property
    def gpus(self) -> int:
        """Number of GPUs of an engine: the product of its parallel sizes. Experts are spread over the same GPUs."""
        if self.server is not None:
            return 0
        return self.tensor_parallel_size * math.prod(self.vllm.get(name, 1) for name in PARALLEL_SIZES)

    @property
    def parallel_sizes(self) -> str:
        """The sizes that `gpus` is the product of, by name, for a message."""
        sizes = {f"vllm.{name}": self.vllm[name] for name in PARALLEL_SIZES if name in self.vllm}
        return ", ".join(
            f"{name} ({size})" for name, size in {"tensor_parallel_size": self.tensor_parallel_size, **sizes}.items()
        )

    @property
    def replicas(self) -> int:
        """Number of data parallel replicas in an engine, each with `max_num_seqs` sequences."""
        return int(self.vllm.get("data_parallel_size", 1))

    @property
    def coarse(self) -> list[str]:
        """Names of the arguments in `vllm` that compute in fewer bits than the type of the weights has."""
        return [
            name
            for name in ("quantization", "quantization_config", "kv_cache_dtype")
            if self.vllm.get(name) not in (None, "auto")
        ]


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

    vllm: Arguments = Field({})
    """Further arguments of vLLM's `SamplingParams`, such as `{repetition_penalty: 1.1}`. A name that vLLM does not have
    is refused when the file is read, and so is one that the pipeline sets itself. Training also refuses those that
    change the distribution of tokens (penalties, `logit_bias`, `min_tokens` and others), as every importance weight
    would be wrong; in difficulty and evaluation they work. vLLM checks the values when an engine has started."""

    @model_validator(mode="before")
    @classmethod
    def _show_where_arguments_of_vllm_go(cls, options: object) -> object:
        for name in sorted(SAMPLING_REFUSED_IN_TRAINING.keys() & set(options if isinstance(options, dict) else ())):
            raise ValueError(
                f"{name} is an argument of vLLM: give vllm.{name} in difficulty and evaluation; training refuses it: "
                f"{FALSIFIED}"
            )
        return options

    @field_validator("vllm")
    @classmethod
    def _are_arguments_of_sampling(cls, value: dict[str, Any]) -> dict[str, Any]:
        check_sampling_arguments(value)
        return value

    @field_validator("guided_regex")
    @classmethod
    def _is_a_regex(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value
