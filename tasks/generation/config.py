"""Options of generation. Pydantic only: parsing a configuration must load neither torch nor vllm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from tasks.config import Config, RunTime


class EngineConfig(Config):
    """How one vLLM engine runs.

    Attributes:
        dtype: type of weights and activations; `auto`: bfloat16, or float32 on a processor that computes bfloat16
            slowly (`tasks.precision`).
        max_model_len: context in tokens, prompt and response together.
        max_num_seqs: sequences in flight at most; the engine queues what comes on top.
        tensor_parallel_size: GPUs of one engine.
        gpu_memory_utilization: share of a GPU's memory for weights and KV cache.
        cpu_kv_cache_gib: size of the KV cache on a machine without a GPU.
        cpu_threads: threads of an engine on a machine without a GPU; 0: one for each core.
        enforce_eager: run without compiled graphs: a faster start, slower decoding on a GPU.
        seed: seed of the engine's sampler, for requests that bring none.
    """

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    max_model_len: int = Field(1024, gt=0)
    max_num_seqs: RunTime[int] = Field(128, gt=0)
    tensor_parallel_size: RunTime[int] = Field(1, gt=0)
    gpu_memory_utilization: RunTime[float] = Field(0.9, gt=0, le=1)
    cpu_kv_cache_gib: RunTime[int] = Field(1, gt=0)
    cpu_threads: RunTime[int] = Field(0, ge=0)
    enforce_eager: RunTime[bool] = True
    seed: int = 0


class SamplingConfig(Config):
    """How completions are sampled.

    Attributes:
        samples: completions per prompt (the group size G of GRPO).
        max_tokens: response length at most, in tokens.
        temperature, top_p, top_k, min_p: as in vLLM. The offline filter and training both use temperature 1.0 and
            top-p 1.0 (OlmoRL, data construction step 2), so that the engine's log-probabilities are the policy's.
        stop: texts that end a response, which keeps them: `["</answer>"]`, say. It ends by itself then, as by its end
            token.
        regex: what a whole response must match; each token is drawn among those that can still lead there. The engine's
            log-probabilities are those of that restricted distribution, so that training corrects for it as for any
            other difference between engine and learner (`objective.correction`).
        chat_template_kwargs: what the chat template takes besides the messages: `{enable_thinking: false}`, say.
        seed: with a seed, sample i of a prompt is drawn with a seed derived from it, whatever else is in flight.

    What changes the distribution and leaves no trace in the log-probabilities is no option: penalties of repetition,
    biases of logits, bad words and minimum lengths would falsify every importance weight.
    """

    samples: int = Field(8, gt=0)
    max_tokens: int = Field(64, gt=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    stop: tuple[str, ...] = ()
    regex: str | None = Field(None, min_length=1)
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default={})
    seed: int | None = None

    @field_validator("stop")
    @classmethod
    def _some_text(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if not all(stop):
            raise ValueError("an empty text would end every response at once")
        return stop

    @field_validator("chat_template_kwargs")
    @classmethod
    def _not_ours(cls, given: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
        for name in ("add_generation_prompt", "return_dict", "tokenize", "chat_template", "continue_final_message"):
            if name in given:
                raise ValueError(f"{name} is no matter of the template, and set by the pipeline")
        return given

    def tokenised(self, tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of a prompt, up to where its response begins.

        Args:
            tokenizer: a Hugging Face tokenizer with a chat template.
            messages: role and content of each turn.
        """
        chat = [dict(turn) for turn in messages]
        kwargs = self.chat_template_kwargs
        return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False, **kwargs))
