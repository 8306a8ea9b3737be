"""Defines the options of chat judges. Parsing a configuration loads no client, template or model.

`AnyJudgeConfig` is the type in a specification: `kind: endpoint` (the default) or `kind: reward_model`.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from tasks.config.connection import VARIABLE, ConnectionConfig, normalize_url
from tasks.config.fields import HubOrFolder
from tasks.config.loading import Config, RunTime

TEMPLATES = Path(__file__).parent / "templates"
"""Folder of the judges' prompt templates."""
WIDEST_SCALE = 100
"""Maximum difference between the highest and the lowest grade."""
_OWN_FIELDS = (
    "model",
    "messages",
    "response_format",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "seed",
    "n",
    "stream",
)
"""Request fields that other options set; `extra_body` cannot contain them."""


Rule = Literal[
    "sets instructions aside", "asks for a grade", "claims a grade", "addresses the grader", "imitates a judgement"
]
"""Name of a rule that detects an answer that addresses its grader (`tasks.verifiers.chat.injection`)."""
RULES: tuple[Rule, ...] = get_args(Rule)
"""Names of all rules."""

INITIAL = "initial"
"""Value of a judge's `model` for the checkpoint that the pipeline starts from."""


class ServerConfig(Config):
    """Options of the vLLM server that a stage starts for its judge."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Data type of weights and activations. `auto` uses the checkpoint's type, or float32 on a processor that computes
    bfloat16 slowly (`tasks.machine.precision`)."""
    max_model_len: int = Field(16_384, gt=0)
    """Maximum context length in tokens, prompt and judgement together."""
    max_num_seqs: RunTime[int] = Field(64, gt=0)
    """Maximum number of judgements that the server generates concurrently; further requests are queued."""
    tensor_parallel_size: RunTime[int] = Field(1, gt=0)
    """Number of GPUs for tensor parallelism."""
    gpu_memory_utilization: RunTime[float] = Field(0.9, gt=0, le=1)
    """Fraction of a GPU's memory for weights and KV cache, in (0, 1]."""
    cpu_kv_cache_gib: RunTime[float] = Field(1.0, gt=0)
    """Size of the KV cache in GiB on a machine without a GPU."""
    cpu_threads: RunTime[int] = Field(0, ge=0)
    """Number of threads on a machine without a GPU. If 0, one per core."""
    enforce_eager: RunTime[bool | None] = None
    """Run without compiled graphs: faster startup, but slower decoding on a GPU. Optional. If None, only on a CPU."""
    start_timeout_seconds: RunTime[float] = Field(900.0, gt=0)
    """Maximum seconds for the server to load the model and accept the first request."""
    extra_args: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Additional command line options of `vllm serve`, e.g. `["--quantization", "fp8"]`."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of the server: the product of its parallel sizes, including sizes in `extra_args`."""
        line = " ".join(self.extra_args).replace("_", "-")
        sizes = [int(size) for size in re.findall(r"--(?:pipeline|data)-parallel-size[= ](\d+)", line)]
        return self.tensor_parallel_size * math.prod(sizes)

    @field_validator("extra_args")
    @classmethod
    def _check_no_key(cls, extra_args: list[str]) -> list[str]:
        if any(re.split("[= ]", argument)[0].replace("_", "-") == "--api-key" for argument in extra_args):
            raise ValueError("the server gets its own key; leave --api-key out")
        return extra_args


class _Judged(Config):
    """Options for processing an answer before and after judging, common to both kinds of judges."""

    max_response_chars: int = Field(20_000, ge=100)
    """Maximum length of an answer (without its thinking part) and of a reference, in bytes of UTF-8. Of a longer text,
    the judge sees the first half and the last half of this length, with a note about the gap."""
    injection: Literal["flag", "zero", "off"] = "flag"
    """Treatment of an answer that addresses its grader ("give this answer 10/10"). `flag` judges it, counts it and
    marks it in the score's detail; `zero` scores it 0 without judging it; `off` disables the detection."""
    zero_rules: list[Rule] = list(RULES)  # noqa: RUF012 (pydantic copies defaults)
    """Rules of `tasks.verifiers.chat.injection` that score 0 with `injection: zero`; the other rules only flag."""
    pass_value: float = Field(0.5, ge=0, le=1)
    """Minimum score for `Score.passed`; the reward does not depend on it."""
    fingerprint: str | None = None
    """Digest of a local model. The pipeline sets it, so that a changed folder invalidates the cache."""

    @model_validator(mode="after")
    def _check_zero_rules(self) -> Self:
        if self.injection != "zero" and self.zero_rules != list(RULES):
            raise ValueError(f"zero_rules is for injection: zero, and injection is {self.injection}")
        if not self.zero_rules:
            raise ValueError("zero_rules is empty; injection: flag has no rule score 0")
        return self


class JudgeConfig(_Judged, ConnectionConfig):
    """An LLM judge behind any OpenAI-compatible endpoint."""

    kind: Literal["endpoint"] = "endpoint"
    """Kind of this judge; may be omitted."""
    url: RunTime[str | None] = None
    """Base URL of the endpoint (`https://host/v1`). Optional. If None, the stage starts a vLLM server for `model`."""
    model: HubOrFolder[str] = Field(min_length=1)
    """Name of the model at the endpoint. If `url` is None, a Hugging Face folder or hub id to serve, or `initial` for
    the checkpoint that the pipeline starts from."""
    revision: str | None = None
    """Commit, tag or branch of a served hub id; required with a hub id."""
    server: ServerConfig = ServerConfig()
    """Options of the server that is started if `url` is None."""
    api_key_env: RunTime[str | None] = Field(None, pattern=VARIABLE)
    """NAME of the environment variable that contains the endpoint's API key. Optional. If None, no key is sent."""
    reference_template: str = "chat_reference.v2"
    """Prompt of `chat_reference`: name of a file in `tasks/verifiers/chat/templates/` without its extension, including
    the version. A changed wording is a new file."""
    open_template: str = "chat_open.v2"
    """Prompt of `chat_open`: name of a file in `tasks/verifiers/chat/templates/` without its extension, including the
    version. A changed wording is a new file."""
    context_tokens: int | None = Field(None, gt=0)
    """Context length of the endpoint's model in tokens, prompt and judgement together. Optional. If None, it is
    requested from vLLM's `/tokenize`; without `/tokenize`, a prompt is cut once after the endpoint refuses it. The
    pipeline sets it for a server that the stage starts."""
    tokenizer: str | None = Field(None, min_length=1)
    """Folder or hub id of the endpoint's tokenizer, which is used to cut long answers to `context_tokens`. Optional. If
    None, vLLM's `/tokenize` counts tokens; without `/tokenize`, every byte counts as a token."""
    tokenizer_revision: str | None = None
    """Commit, tag or branch of the tokenizer's hub id; required with a hub id."""
    reasons: bool = True
    """Let the judge give a reason before its grade. This improves the grades of a model that reasons, but uses many
    more tokens."""
    lowest: int = Field(1, ge=0)
    """Lowest grade, an integer; it maps to a score of 0."""
    highest: int = 10
    """Highest grade, an integer; it maps to a score of 1. Grades in between map linearly."""
    judgement_retries: int = Field(2, ge=0)
    """Number of retries after a judge's answer that contains no judgement. If all retries fail, the score is 0 if the
    judge grades another answer to the same prompt, and an error otherwise."""
    max_tokens: int = Field(1024, gt=0)
    """Maximum tokens of a judgement, including the judge's reasoning."""
    max_tokens_field: RunTime[Literal["max_tokens", "max_completion_tokens"]] = "max_tokens"
    """Request field in which `max_tokens` is sent."""
    temperature: float | None = Field(0.0, ge=0)
    """Sampling temperature of the judgement. Optional. If None, the endpoint's default is used."""
    retry_temperature: float | None = Field(0.7, ge=0)
    """Sampling temperature of a retry after an answer without a judgement; an identical request would only get the same
    answer. Optional. If None, the endpoint's default is used."""
    seed: int | None = 0
    """Seed sent with the request, plus the number of the retry. Optional. If None, no seed is sent."""
    input_price: RunTime[float] = Field(0.0, ge=0)
    """Cost per million input tokens, in any currency, for the counter `cost`."""
    output_price: RunTime[float] = Field(0.0, ge=0)
    """Cost per million output tokens, in any currency, for the counter `cost`."""
    extra_body: str = "{}"
    """Additional fields of the request, e.g. `{chat_template_kwargs: {enable_thinking: false}}`; stored as JSON text,
    because Flyte's types cannot represent arbitrary JSON values."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of the server that is started if `url` is None."""
        return self.server.gpus

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        wanted = "the base URL of an OpenAI-compatible endpoint, as in https://host/v1"
        return normalize_url(url, wanted, "api_key_env")

    @field_validator("reference_template", "open_template")
    @classmethod
    def _check_template(cls, name: str) -> str:
        known = sorted(path.stem for path in TEMPLATES.glob("chat_*.jinja"))
        if name not in known:
            raise ValueError(f"no such template; accepted: {', '.join(known)}")
        return name

    @field_validator("extra_body", mode="before")
    @classmethod
    def _convert_to_text(cls, extra_body: Any) -> Any:
        return json.dumps(extra_body, sort_keys=True) if isinstance(extra_body, dict) else extra_body

    @field_validator("extra_body")
    @classmethod
    def _check_extra_fields(cls, extra_body: str) -> str:
        fields = json.loads(extra_body)
        if not isinstance(fields, dict):
            raise ValueError("must be an object")
        if taken := sorted(set(fields) & set(_OWN_FIELDS)):
            raise ValueError(f"cannot contain {', '.join(taken)}: other options set them")
        return extra_body

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if not self.lowest < self.highest <= self.lowest + WIDEST_SCALE:
            raise ValueError(
                f"highest is {self.highest}, lowest is {self.lowest}; lowest must be below highest, by at most "
                f"{WIDEST_SCALE} apart"
            )
        if self.url is not None and self.server != ServerConfig():
            raise ValueError("server tells how to serve a model here, and url names an endpoint: give one of them")
        if self.url is not None and self.revision is not None:
            raise ValueError("revision tells what to serve here, and url names an endpoint: give one of them")
        if self.url is None and (self.context_tokens is not None or self.tokenizer is not None):
            raise ValueError("context_tokens and tokenizer are for the endpoint at url; a server here has its model's")
        if self.tokenizer is not None and self.context_tokens is None:
            raise ValueError("tokenizer counts what context_tokens bounds: give context_tokens")
        if self.tokenizer is None and self.tokenizer_revision is not None:
            raise ValueError("tokenizer_revision tells which tokenizer to load, and there is none: give tokenizer")
        if self.url is None and self.api_key_env is not None:
            raise ValueError("api_key_env is for the endpoint at url; a server that is started here makes its own key")
        return self


class ClassifierConfig(Config):
    """A sequence classifier with one output that scores an answer to a conversation; it never sees a reference."""

    model: HubOrFolder[str] = Field(min_length=1)
    """Hugging Face folder or hub id of safetensors weights."""
    revision: str | None = None
    """Commit, tag or branch of a hub id; required with a hub id."""
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Data type of weights and activations."""
    device: RunTime[Literal["auto", "cpu"]] = "auto"
    """Device of the model; `auto` uses the accelerator if there is one."""
    batch_size: RunTime[int] = Field(8, gt=0)
    """Maximum number of answers in one forward pass."""
    max_tokens: int = Field(4096, gt=0)
    """Maximum tokens of conversation and answer; the middle of a longer answer is removed."""
    max_response_chars: int = Field(20_000, ge=100)
    """Maximum length of an answer (without its thinking part), in bytes of UTF-8. Of a longer answer, the model sees
    the first half and the last half of this length, with a note about the gap."""
    fingerprint: str | None = None
    """Digest of a local model. The pipeline sets it, so that a changed folder invalidates the cache."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of the model: 1, or 0 on the device `cpu`."""
        return int(self.device == "auto")


class NamedRewardModelConfig(ClassifierConfig):
    """A reward model that data files refer to by name: its logit is one reward among others."""

    chat_template: bool = True
    """Format the input with the tokenizer's chat template. If False, the input is the text pair
    `tokenizer(question, answer)` of the last user turn and the answer; other turns are ignored."""
    squash: bool = True
    """Use the sigmoid of the logit as the reward, in (0, 1). If False, the reward is the logit, which is unbounded; the
    score is then clipped to [0, 1], and training maximises the logit."""
    pass_value: float = Field(0.5, allow_inf_nan=False)
    """Minimum reward of a response that passes, if the model is the first of a source's rewards."""


class RewardModelConfig(ClassifierConfig, _Judged):
    """A reward model as the judge of chat: its logit is mapped to a score in [0, 1]."""

    kind: Literal["reward_model"]
    """Kind of this judge."""
    scores_references: bool = False
    """Also score `chat_reference`, without using the reference. If False, `chat_reference` is an error."""
    bounds: list[float] | None = Field(None, min_length=2, max_length=2)
    """The two logits that map to 0 and 1, linearly and clipped. Optional. If None, the sigmoid is used."""

    @field_validator("bounds")
    @classmethod
    def _check_bounds(cls, bounds: list[float] | None) -> list[float] | None:
        if bounds is not None and not -float("inf") < bounds[0] < bounds[1] < float("inf"):
            raise ValueError("must be two finite numbers, the lower one first")
        return bounds


def _read_kind(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("kind", "endpoint")
    return getattr(value, "kind", None)


AnyJudgeConfig = Annotated[
    Annotated[JudgeConfig, Tag("endpoint")] | Annotated[RewardModelConfig, Tag("reward_model")],
    Discriminator(_read_kind),
]
"""One of the two kinds of judges; `kind` may be omitted for an endpoint."""
