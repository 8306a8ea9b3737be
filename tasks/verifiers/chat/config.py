"""Options of the judges of chat. Pydantic only: parsing a configuration loads no client, no template and no model.

`AnyJudgeConfig` is the type in a specification: `kind: endpoint` (the default) or `kind: reward_model`.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from tasks.config import Config, RunTime
from tasks.config_fields import HubOrFolder
from tasks.verifiers.connection import VARIABLE, ConnectionConfig, plain_url

TEMPLATES = Path(__file__).parent / "templates"
"""Folder of the judges' prompt templates."""
WIDEST_SCALE = 100
"""Largest distance between the lowest and the highest grade."""
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
"""Fields that every request states itself; `extra_body` cannot hold them."""


Rule = Literal[
    "sets instructions aside", "asks for a grade", "claims a grade", "addresses the grader", "imitates a judgement"
]
"""Name of a rule by which an answer that speaks to its grader is recognised (`tasks.verifiers.chat.injection`)."""
RULES: tuple[Rule, ...] = get_args(Rule)
"""All names of rules."""

INITIAL = "initial"
"""Value of a judge's `model` that stands for the checkpoint that the pipeline starts from."""


class ServerConfig(Config):
    """Options of the vLLM server that a stage starts for its judge."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of weights and activations; `auto`: the checkpoint's, or float32 on a processor that computes bfloat16
    slowly (`tasks.machine.precision`)."""
    max_model_len: int = Field(16_384, gt=0)
    """Tokens of context, prompt and judgement together."""
    max_num_seqs: RunTime[int] = Field(64, gt=0)
    """Judgements that the server computes at one time at most; it queues further ones."""
    tensor_parallel_size: RunTime[int] = Field(1, gt=0)
    """GPUs of the server."""
    gpu_memory_utilization: RunTime[float] = Field(0.9, gt=0, le=1)
    """Share of a GPU's memory for weights and KV cache, in (0, 1]."""
    cpu_kv_cache_gib: RunTime[float] = Field(1.0, gt=0)
    """GiB of the KV cache on a machine without a GPU."""
    cpu_threads: RunTime[int] = Field(0, ge=0)
    """Threads of the server on a machine without a GPU; 0: one for each core."""
    enforce_eager: RunTime[bool | None] = None
    """Run without compiled graphs: a faster start, slower decoding on a GPU. None: on a CPU only."""
    start_timeout_seconds: RunTime[float] = Field(900.0, gt=0)
    """Seconds that the server may take to load the model and accept the first request."""
    extra_args: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Further options of `vllm serve`, as on its command line, e.g. `["--quantization", "fp8"]`."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of the server: the product of its parallel sizes, those in `extra_args` included."""
        line = " ".join(self.extra_args).replace("_", "-")
        sizes = [int(size) for size in re.findall(r"--(?:pipeline|data)-parallel-size[= ](\d+)", line)]
        return self.tensor_parallel_size * math.prod(sizes)

    @field_validator("extra_args")
    @classmethod
    def _no_key(cls, extra_args: list[str]) -> list[str]:
        if any(re.split("[= ]", argument)[0].replace("_", "-") == "--api-key" for argument in extra_args):
            raise ValueError("the server gets a key of its own; leave --api-key out")
        return extra_args


class _Judged(Config):
    """Options that both kinds of judges have for an answer before and after it is judged."""

    max_response_chars: int = Field(20_000, ge=100)
    """Length of an answer (thinking part left out), and of a reference, above which the judge sees only its first and
    its last half of this length, with a note on the gap. The unit is a byte of UTF-8."""
    injection: Literal["flag", "zero", "off"] = "flag"
    """Treatment of an answer that speaks to its grader ("give this answer 10/10"): it is judged, counted and marked in
    the score's detail (`flag`), scores 0 without being judged (`zero`), or is not looked for (`off`)."""
    zero_rules: list[Rule] = list(RULES)  # noqa: RUF012 (pydantic copies defaults)
    """Rules of `tasks.verifiers.chat.injection` that score 0 under `injection: zero`; the other rules flag."""
    pass_value: float = Field(0.5, ge=0, le=1)
    """Score from which on `Score.passed` is True; the reward does not depend on it."""
    fingerprint: str | None = None
    """Digest of a local model, filled in by the pipeline so that a changed folder misses the cache."""

    @model_validator(mode="after")
    def _rules_that_zero(self) -> Self:
        if self.injection != "zero" and self.zero_rules != list(RULES):
            raise ValueError(f"zero_rules is for injection: zero, and injection is {self.injection}")
        if not self.zero_rules:
            raise ValueError("zero_rules is empty; injection: flag has no rule score 0")
        return self


class JudgeConfig(_Judged, ConnectionConfig):
    """A language model that judges, behind any OpenAI-compatible endpoint."""

    kind: Literal["endpoint"] = "endpoint"
    """Kind of this judge; may be left out."""
    url: RunTime[str | None] = None
    """Base URL of the endpoint (`https://host/v1`); None: the stage starts a vLLM server for `model`."""
    model: HubOrFolder[str] = Field(min_length=1)
    """Name of the model at the endpoint; where `url` is None, a Hugging Face folder or hub id to serve, or `initial`,
    the checkpoint that the pipeline starts from."""
    revision: str | None = None
    """Commit, tag or branch of a hub id that is served, and required for one."""
    server: ServerConfig = ServerConfig()
    """Options of the server that is started where `url` is None."""
    api_key_env: RunTime[str | None] = Field(None, pattern=VARIABLE)
    """NAME of the environment variable that holds the endpoint's key; None: no key is sent."""
    reference_template: str = "chat_reference.v2"
    """Prompt of `chat_reference`: a file of `tasks/verifiers/chat/templates/` without its ending, version included. A
    changed wording is a new file."""
    open_template: str = "chat_open.v2"
    """Prompt of `chat_open`: a file of `tasks/verifiers/chat/templates/` without its ending, version included. A
    changed wording is a new file."""
    context_tokens: int | None = Field(None, gt=0)
    """Tokens of context of the endpoint's model, prompt and judgement together; None: vLLM's `/tokenize` is asked, and
    without that a prompt is cut after it was refused. For a server that the stage starts it is known."""
    tokenizer: str | None = Field(None, min_length=1)
    """Folder or hub id of the endpoint's tokenizer, by which long answers are cut to `context_tokens`; None: vLLM's
    `/tokenize` counts, and without that every byte counts as a token."""
    tokenizer_revision: str | None = None
    """Commit, tag or branch of the tokenizer's hub id, and required for one."""
    reasons: bool = True
    """Have the judge give a reason before its grade: better grades from a model that reasons, many more tokens."""
    lowest: int = Field(1, ge=0)
    """Lowest grade, a whole number; it maps to a score of 0."""
    highest: int = 10
    """Highest grade, a whole number; it maps to a score of 1, and grades between the two map linearly."""
    judgement_retries: int = Field(2, ge=0)
    """Repetitions after a judge's answer that holds no judgement. If none of them holds one, the score is 0 where the
    judge grades another answer to the same prompt, and an error where it does not."""
    max_tokens: int = Field(1024, gt=0)
    """Tokens of a judgement at most, reasoning of the judge included."""
    max_tokens_field: RunTime[Literal["max_tokens", "max_completion_tokens"]] = "max_tokens"
    """Field of the request that holds `max_tokens`."""
    temperature: float | None = Field(0.0, ge=0)
    """Temperature of the judgement; None leaves it to the endpoint."""
    retry_temperature: float | None = Field(0.7, ge=0)
    """Temperature of a repetition after an answer that holds no judgement, which the same request would only bring
    again; None leaves it to the endpoint."""
    seed: int | None = 0
    """Seed that is sent with the request, plus the number of the repetition; None: none is sent."""
    input_price: RunTime[float] = Field(0.0, ge=0)
    """Cost of a million tokens read, in any currency, for the counter `cost`."""
    output_price: RunTime[float] = Field(0.0, ge=0)
    """Cost of a million tokens written, in any currency, for the counter `cost`."""
    extra_body: str = "{}"
    """Further fields of the request, e.g. `{chat_template_kwargs: {enable_thinking: false}}`; stored as JSON text,
    because Flyte's types cannot hold any JSON value."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of the server that is started where `url` is None."""
        return self.server.gpus

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        wanted = "the base URL of an OpenAI-compatible endpoint, as in https://host/v1"
        return plain_url(url, wanted, "api_key_env")

    @field_validator("reference_template", "open_template")
    @classmethod
    def _known_template(cls, name: str) -> str:
        known = sorted(path.stem for path in TEMPLATES.glob("chat_*.jinja"))
        if name not in known:
            raise ValueError(f"no such template; accepted: {', '.join(known)}")
        return name

    @field_validator("extra_body", mode="before")
    @classmethod
    def _as_text(cls, extra_body: Any) -> Any:
        return json.dumps(extra_body, sort_keys=True) if isinstance(extra_body, dict) else extra_body

    @field_validator("extra_body")
    @classmethod
    def _no_own_fields(cls, extra_body: str) -> str:
        fields = json.loads(extra_body)
        if not isinstance(fields, dict):
            raise ValueError("must be an object")
        if taken := sorted(set(fields) & set(_OWN_FIELDS)):
            raise ValueError(f"cannot hold {', '.join(taken)}: other options set them")
        return extra_body

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.lowest < self.highest <= self.lowest + WIDEST_SCALE:
            raise ValueError(
                f"highest is {self.highest}, lowest is {self.lowest}; want lowest < highest, at most {WIDEST_SCALE} "
                "apart"
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
    """A sequence classifier with one output that scores a conversation and its answer; it never sees a reference."""

    model: HubOrFolder[str] = Field(min_length=1)
    """Hugging Face folder or hub id of safetensors weights."""
    revision: str | None = None
    """Commit, tag or branch of a hub id, and required for one."""
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Type of weights and activations."""
    device: RunTime[Literal["auto", "cpu"]] = "auto"
    """Device of the model; `auto`: the accelerator where there is one."""
    batch_size: RunTime[int] = Field(8, gt=0)
    """Answers that are scored in one forward pass at most."""
    max_tokens: int = Field(4096, gt=0)
    """Tokens of conversation and answer at most; the middle of a longer answer is left out."""
    max_response_chars: int = Field(20_000, ge=100)
    """Length of an answer (thinking part left out) above which the model sees only its first and its last half of this
    length, with a note on the gap. The unit is a byte of UTF-8."""
    fingerprint: str | None = None
    """Digest of a local model, filled in by the pipeline so that a changed folder misses the cache."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of the model: 1, or 0 on the device `cpu`."""
        return int(self.device == "auto")


class NamedRewardModelConfig(ClassifierConfig):
    """A reward model that data files name: its logit is a reward beside others."""

    chat_template: bool = True
    """Make the model's text with the tokenizer's chat template. False: of the last turn of the user and the answer, as
    a pair of texts, `tokenizer(question, answer)`; other turns are not read."""
    squash: bool = True
    """Have the logistic function of the logit as the reward, in (0, 1). False: the logit itself, of any range; a score
    is then clipped to [0, 1], and training maximises the logit."""
    pass_value: float = Field(0.5, allow_inf_nan=False)
    """Reward from which on a response passes where the model is the first of a source's rewards."""


class RewardModelConfig(ClassifierConfig, _Judged):
    """A reward model as the judge of chat: its logit becomes a score in [0, 1]."""

    kind: Literal["reward_model"]
    """Kind of this judge."""
    scores_references: bool = False
    """Also judge `chat_reference`, by the answer alone; without it that is an error."""
    bounds: list[float] | None = Field(None, min_length=2, max_length=2)
    """The two logits that map to 0 and 1, linearly and clipped; None: the logistic function."""

    @field_validator("bounds")
    @classmethod
    def _increasing(cls, bounds: list[float] | None) -> list[float] | None:
        if bounds is not None and not -float("inf") < bounds[0] < bounds[1] < float("inf"):
            raise ValueError("must be two finite numbers, the lower one first")
        return bounds


def _kind(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("kind", "endpoint")
    return getattr(value, "kind", None)


AnyJudgeConfig = Annotated[
    Annotated[JudgeConfig, Tag("endpoint")] | Annotated[RewardModelConfig, Tag("reward_model")], Discriminator(_kind)
]
"""One of the two kinds of judges; `kind` may be left out for an endpoint."""
