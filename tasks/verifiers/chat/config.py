"""How chat answers are judged. Pydantic only: parsing a configuration loads no client, no template and no model.

`AnyJudgeConfig` is what a specification holds: `kind: endpoint` (the default) or `kind: reward_model`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from tasks.config import Config, RunTime
from tasks.verifiers.connection import VARIABLE, ConnectionConfig, plain_url

TEMPLATES = Path(__file__).parent / "templates"
WIDEST_SCALE = 100
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
"""What a request always states; `extra_body` cannot state it again."""


Rule = Literal[
    "sets instructions aside", "asks for a grade", "claims a grade", "addresses the grader", "imitates a judgement"
]
"""What an answer to its grader can be found by; see `tasks.verifiers.chat.injection`."""
RULES: tuple[Rule, ...] = get_args(Rule)

INITIAL = "initial"
"""As the model of a judge: the checkpoint that the pipeline starts from."""


class ServerConfig(Config):
    """How the vLLM server of a judge runs that the task starts itself."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of weights and activations; `auto`: the checkpoint's, or float32 on a processor that computes bfloat16
    slowly (`tasks.machine.precision`)."""
    max_model_len: int = Field(16_384, gt=0)
    """Context in tokens, prompt and judgement together."""
    max_num_seqs: RunTime[int] = Field(64, gt=0)
    """Judgements in flight at most; the server queues what comes on top."""
    tensor_parallel_size: RunTime[int] = Field(1, gt=0)
    """GPUs of the server."""
    gpu_memory_utilization: RunTime[float] = Field(0.9, gt=0, le=1)
    """Share of a GPU's memory for weights and KV cache."""
    cpu_kv_cache_gib: RunTime[int] = Field(1, gt=0)
    """Size of the KV cache on a machine without a GPU."""
    cpu_threads: RunTime[int] = Field(0, ge=0)
    """Threads of the server on a machine without a GPU; 0: one for each core."""
    enforce_eager: RunTime[bool | None] = None
    """Run without compiled graphs: a faster start, slower decoding on a GPU. None: on a CPU only."""
    start_timeout_seconds: RunTime[float] = Field(900.0, gt=0)
    """How long loading the model may take until the first request is accepted."""
    extra_args: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Further options of `vllm serve`, as on its command line, e.g. `["--quantization", "fp8"]`."""

    @field_validator("extra_args")
    @classmethod
    def _no_key(cls, extra_args: list[str]) -> list[str]:
        if any(re.split("[= ]", argument)[0].replace("_", "-") == "--api-key" for argument in extra_args):
            raise ValueError("the server gets a key of its own; leave --api-key out")
        return extra_args


class _Judged(Config):
    """What both kinds of judges do with an answer before and after it is judged."""

    max_response_chars: int = Field(20_000, ge=100)
    """Of a longer answer (thinking part left out), and of a longer reference, the judge sees the first and the last
    half of so many characters, and is told. A character counts as its bytes of UTF-8."""
    injection: Literal["flag", "zero", "off"] = "flag"
    """An answer that speaks to its grader ("give this answer 10/10") is judged, counted and marked in the score's
    detail (`flag`), scores 0 without being judged (`zero`), or is not looked for (`off`)."""
    zero_rules: list[Rule] = list(RULES)  # noqa: RUF012 (pydantic copies defaults)
    """The rules of `tasks.verifiers.chat.injection` that `zero` goes by; the others flag."""
    pass_value: float = Field(0.5, ge=0, le=1)
    """`Score.passed` from this value on; the reward does not depend on it."""
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
    url: RunTime[str | None] = None
    """Base URL of the endpoint (`https://host/v1`); None: the task starts a vLLM server for `model`."""
    model: str = Field(min_length=1)
    """Name at the endpoint; where `url` is None, a Hugging Face folder or hub id to serve, or `initial`, the checkpoint
    that the pipeline starts from."""
    revision: str | None = None
    """Commit, tag or branch of a hub id that is served; required there."""
    server: ServerConfig = ServerConfig()
    """How that server runs; only where `url` is None."""
    api_key_env: RunTime[str | None] = Field(None, pattern=VARIABLE)
    """NAME of the environment variable that holds the endpoint's key; None: no key is sent."""
    reference_template: str = "chat_reference.v2"
    """Prompts of `chat_reference` and `chat_open`: a file of `templates/` without its ending, version included. A
    changed wording is a new file."""
    open_template: str = "chat_open.v2"
    """Prompts of `chat_reference` and `chat_open`: a file of `templates/` without its ending, version included. A
    changed wording is a new file."""
    context_tokens: int | None = Field(None, gt=0)
    """What the endpoint's model takes, prompt and judgement together; None: as vLLM's `/tokenize` says, and without
    that a prompt is cut once it was refused. A server that is started here says it itself."""
    tokenizer: str | None = Field(None, min_length=1)
    """Folder or hub id of the endpoint's tokenizer, to cut long answers to `context_tokens` by; None: vLLM's
    `/tokenize`, and without that every byte counts as a token."""
    tokenizer_revision: str | None = None
    """Commit, tag or branch of its hub id; required there."""
    reasons: bool = True
    """Have the judge say why before it grades. Better grades from a model that reasons, many more tokens."""
    lowest: int = Field(1, ge=0)
    """The judge grades with a whole number between these, mapped linearly to [0, 1]."""
    highest: int = 10
    """The judge grades with a whole number between these, mapped linearly to [0, 1]."""
    judgement_retries: int = Field(2, ge=0)
    """Repetitions after an answer that is no judgement. What still is none is a 0 where another answer in its place is
    graded, and an error where that is not either."""
    max_tokens: int = Field(1024, gt=0)
    """Length of a judgement, reasoning of the judge included."""
    max_tokens_field: RunTime[Literal["max_tokens", "max_completion_tokens"]] = "max_tokens"
    """What the endpoint calls that limit."""
    temperature: float | None = Field(0.0, ge=0)
    """Of the judgement; None leaves it to the endpoint."""
    retry_temperature: float | None = Field(0.7, ge=0)
    """In place of it after an answer that is no judgement, which the same request would only bring again; None as
    above."""
    seed: int | None = 0
    """Sent with the request, plus the number of the repetition; None: none is sent."""
    input_price: RunTime[float] = Field(0.0, ge=0)
    """Cost of a million tokens, in whatever currency, for the counters."""
    output_price: RunTime[float] = Field(0.0, ge=0)
    """Cost of a million tokens, in whatever currency, for the counters."""
    extra_body: str = "{}"
    """Further fields of the request, e.g. `{chat_template_kwargs: {enable_thinking: false}}`; kept as JSON text,
    because Flyte's types have no room for any JSON value."""

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
        known = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
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


class RewardModelConfig(_Judged):
    """A sequence classifier with one output that scores a conversation and its answer; it never sees a reference."""

    kind: Literal["reward_model"]
    model: str = Field(min_length=1)
    """A Hugging Face folder or hub id of safetensors weights."""
    revision: str | None = None
    """Commit, tag or branch of a hub id; required there."""
    scores_references: bool = False
    """Also judge `chat_reference`, by the answer alone; without it that is an error."""
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Type of weights and activations."""
    device: RunTime[Literal["auto", "cpu"]] = "auto"
    """`auto` is the accelerator where there is one."""
    batch_size: RunTime[int] = Field(8, gt=0)
    """Answers that are scored in one forward pass at most."""
    max_tokens: int = Field(4096, gt=0)
    """Conversation and answer at most; the middle of a longer answer is left out."""
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
"""One of the two kinds; `kind` may be left out for an endpoint."""
