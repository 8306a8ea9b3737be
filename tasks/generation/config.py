"""Defines the options of generation.

This module uses only pydantic, because parsing a configuration must not load torch or vllm.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from tasks.config.connection import VARIABLE, normalize_url
from tasks.config.fields import Arguments
from tasks.config.loading import Config, RunTime
from tasks.generation.vllm_arguments import (
    COMPILED,
    FALSIFIED,
    PARALLEL_SIZES,
    SAMPLING_REFUSED_IN_TRAINING,
    check_engine_arguments,
    check_sampling_arguments,
)

GPU_SHARE = 0.9
"""Share of a GPU's memory that an engine uses by default if no other process uses the GPU."""


class EndpointConfig(Config):
    """A server of the policy with OpenAI's completions API, such as `vllm serve`, that is used instead of an engine.

    Requests contain the tokens of prompts. Sampling options that OpenAI's API does not have are sent by vLLM's names.
    """

    url: RunTime[str]
    """Base URL of the server (`http://host:8000/v1`)."""
    model: str = Field(min_length=1)
    """Name of the policy on the server. It is not compared with the checkpoint of the stage: make sure that the server
    serves the same model."""
    api_key_env: RunTime[str | None] = Field(None, pattern=VARIABLE)
    """NAME of the environment variable that contains the server's API key. If null, no key is sent."""
    timeout_seconds: RunTime[float] = Field(1800.0, gt=0)
    """Timeout of one response in seconds, including its time in the server's queue."""
    retries: RunTime[int] = Field(5, ge=0)
    """Number of retries of a request after a temporary failure: HTTP 408, 409, 429 or 5xx, a broken connection, or a
    timeout. The waits between them grow to 8 s."""

    @field_validator("url")
    @classmethod
    def _is_plain(cls, url: str) -> str:
        return normalize_url(
            url, "the base URL of an OpenAI-compatible server, as in http://host:8000/v1", "api_key_env"
        )


class EngineConfig(Config):
    """Options of one vLLM engine: data type, memory, batch sizes and parallelism."""

    server: EndpointConfig | None = None
    """An external server that is used instead of an engine. The difficulty stage and the evaluation of a single policy
    (`evaluate_policy`) can use one. Of the other options only `max_model_len` and `max_num_seqs` apply, the latter to
    requests in flight. If null, the stage starts an engine."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Data type of weights and activations. `auto` is bfloat16, or float32 on a processor that computes bfloat16
    slowly (`tasks.machine.precision`)."""
    max_model_len: int = Field(1024, gt=0)
    """Maximum number of tokens of a prompt and its response together."""
    max_num_seqs: RunTime[int] = Field(128, gt=0)
    """Maximum number of sequences that the engine decodes at the same time. Further ones are queued. With
    `data_parallel_size` in `vllm`, the limit applies to each replica."""
    tensor_parallel_size: RunTime[int] = Field(1, gt=0)
    """Number of GPUs over which each layer of the model is split. An engine uses this number of GPUs times the
    pipeline, prefill context and data parallel sizes in `vllm`."""
    gpu_memory_utilization: RunTime[float | None] = Field(None, gt=0, le=1)
    """Share of a GPU's memory for weights, KV cache and activations. If null, 0.9, or 0.4 if a learner rank uses the
    same GPU (`placement: shared`)."""
    cpu_kv_cache_gib: RunTime[float] = Field(1.0, gt=0)
    """Size of the KV cache on a machine without a GPU, GiB."""
    cpu_threads: RunTime[int] = Field(0, ge=0)
    """Number of threads of an engine on a machine without a GPU. If 0, one per core."""
    enforce_eager: RunTime[bool | None] = None
    """Run without compiled graphs. The engine starts faster, but decodes more slowly on a GPU. If null, graphs are
    compiled on a machine with a GPU, or if `vllm` says how."""
    model_runner: Literal["auto", "v1"] = "auto"
    """Model runner of vLLM: `v1`, or its own choice (`auto`), which is V2 on GPUs and V1 on CPUs. V1 is the way out if
    V2 fails on a model or a GPU. With the same seeds the two sample different tokens."""
    seed: int = 0
    """Seed of the engine's sampler, for requests without a seed."""
    vllm: Annotated[Arguments, AfterValidator(check_engine_arguments)] = Field({})
    """Further arguments of vLLM's `AsyncEngineArgs`, such as `{quantization: fp8, kv_cache_dtype: fp8}` or
    `{max_num_batched_tokens: 16384}`. Names that vLLM does not have, and names that the pipeline sets itself, are
    refused when the file is read. Training also refuses arguments that would make importance weights wrong or that
    weight updates do not reach (speculative decoding, `logits_processors`, offloading). vLLM checks the values when an
    engine starts. Its defaults apply to all other arguments. On GPUs the default of `max_num_batched_tokens` is 8192,
    or 16384 from 70 GiB of memory on (A100: 8192)."""

    @model_validator(mode="after")
    def _check_server_options(self) -> Self:
        given = sorted(self.model_fields_set - {"server", "max_model_len", "max_num_seqs"})
        others = [name for name in given if getattr(self, name) != type(self).model_fields[name].default]
        if self.server is not None and others:
            raise ValueError(f"{others[0]}: an option of the stage's own engine, but server names another one")
        return self

    @model_validator(mode="after")
    def _check_compilation(self) -> Self:
        for name in COMPILED:
            if self.enforce_eager and name in self.vllm:
                raise ValueError(f"vllm.{name}: with enforce_eager = true nothing is compiled; leave one of them out")
        return self

    def is_eager(self, *, gpu: bool) -> bool:
        """Return whether the engine runs without compiled graphs on a machine with or without a GPU."""
        if self.enforce_eager is not None:
            return self.enforce_eager
        return not gpu and not any(name in self.vllm for name in COMPILED)

    @property
    def loading(self) -> str:
        """A text for a line of progress until the first response."""
        return "the engine is loading" if self.server is None else "no response of the server yet"

    @property
    def share_of_gpu(self) -> float:
        """Share of a GPU's memory that the option sets, or the default for an engine alone on its GPU."""
        return self.gpu_memory_utilization or GPU_SHARE

    @property
    def gpus_of_replica(self) -> int:
        """Number of GPUs that store one copy of the weights: all GPUs of an engine, unless it is data parallel."""
        return self.gpus // self.replicas

    @property
    def gpus(self) -> int:
        """Number of GPUs of an engine: the product of its parallel sizes. Experts are sharded over the same GPUs."""
        if self.server is not None:
            return 0
        return self.tensor_parallel_size * math.prod(self.vllm.get(name, 1) for name in PARALLEL_SIZES)

    @property
    def parallel_sizes(self) -> str:
        """The parallel sizes whose product is `gpus`, with their names, for a message."""
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
        """Names of the arguments in `vllm` that reduce the precision below the type of the weights."""
        return [
            name
            for name in ("quantization", "quantization_config", "kv_cache_dtype")
            if self.vllm.get(name) not in (None, "auto")
        ]


class SamplingConfig(Config):
    """Options of sampling: the number of responses, their length, and the distribution of their tokens."""

    samples: int = Field(8, gt=0)
    """Number of responses per prompt: the group size G of GRPO."""
    max_tokens: int = Field(64, gt=0)
    """Maximum number of tokens of a response. Longer ones are truncated."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature (logits are divided by it before the softmax). 0 is greedy decoding. OlmoRL uses 1 (data
    construction, step 2), so that the engine's log-probabilities are the policy's."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751): sample from the most likely tokens that together have
    this probability. 1 samples from all tokens, as OlmoRL does, so that the engine's log-probabilities are the
    policy's."""
    top_k: int = Field(0, ge=0)
    """Sample from this many of the most likely tokens (Fan et al. 2018, arXiv:1805.04833). 0 samples from all tokens,
    so that the engine's log-probabilities are the policy's."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Sample from tokens whose probability is at least this share of the most likely token's (Nguyen et al. 2024,
    arXiv:2407.01082). 0 samples from all tokens, so that the engine's log-probabilities are the policy's."""
    stop: list[Annotated[str, StringConstraints(min_length=1)]] = Field([])
    """Strings that end a response. They are kept in the response, so that all of its tokens are sampled from the
    policy."""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field([])
    """Ids of tokens that end a response, in addition to the model's end-of-sequence tokens (vLLM's option, in
    Axolotl's `generation_kwargs`)."""
    guided_regex: str | None = Field(None, min_length=1)
    """Regular expression that every response matches (Axolotl's `vllm_guided_decoding_regex`). Only tokens that can
    lead to a match are sampled, and log-probabilities are computed over these tokens. If null, responses are not
    constrained."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field({})
    """Variables of the model's chat template, such as `enable_thinking: false` (Axolotl)."""
    seed: int | None = None
    """Base seed. The seed of every sample of a prompt is derived from it, so that a sample does not depend on other
    requests in flight. If null, samples use the engine's random stream and depend on the other requests."""

    vllm: Annotated[Arguments, AfterValidator(check_sampling_arguments)] = Field({})
    """Further arguments of vLLM's `SamplingParams`, such as `{repetition_penalty: 1.1}`. Names that vLLM does not have,
    and names that the pipeline sets itself, are refused when the file is read. Training also refuses arguments that
    change the distribution of tokens (penalties, `logit_bias`, `min_tokens` and others), because every importance
    weight would be wrong. They work in difficulty and evaluation. vLLM checks the values when an engine has started."""

    @model_validator(mode="before")
    @classmethod
    def _show_where_arguments_of_vllm_go(cls, options: object) -> object:
        for name in sorted(SAMPLING_REFUSED_IN_TRAINING.keys() & set(options if isinstance(options, dict) else ())):
            raise ValueError(
                f"{name} is an argument of vLLM: give vllm.{name} in difficulty and evaluation; training refuses it: "
                f"{FALSIFIED}"
            )
        return options

    @field_validator("guided_regex")
    @classmethod
    def _is_a_regex(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is not a regular expression: {error}") from None
        return value
