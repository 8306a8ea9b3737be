"""Runs a sequence classifier with one output as a reward model: tokenisation, logits and a batching queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.storage.model_folder import make_date_variables
from tasks.verifiers.chat.config import ClassifierConfig, NamedRewardModelConfig
from tasks.verifiers.chat.endpoint import CONTROL, Usage
from tasks.verifiers.chat.fitting import STEPS, choose_next_length
from tasks.verifiers.chat.prompt_parts import keep_ends, make_plain
from tasks.verifiers.scores import CannotJudge

if TYPE_CHECKING:
    from torch import Tensor

CLOSED = "the reward model was closed"
"""Error of answers that are still queued when a reward model is closed, or that arrive later."""


class AnswerTooLong(CannotJudge):
    """The answer does not fit into the reward model's context, and too little would be left of it after truncation."""


class Row(NamedTuple):
    """The tokens of a conversation and an answer. `types` are the token types of a text pair, or None."""

    token_ids: list[int]
    types: list[int] | None = None


class _Waiting(NamedTuple):
    """A tokenised answer in the queue, with the future of its logit."""

    row: Row
    logit: asyncio.Future[float]


class RewardModel:
    """The classifier and its tokenizer. It is blocking and not thread-safe: load it and call it from one thread."""

    def __init__(self, config: ClassifierConfig, gpus_behind: int = 0) -> None:
        """Load the model. Remote code is never run, and weights are read from safetensors only.

        Args:
            config: the model's options.
            gpus_behind: number of this process's last GPUs that are reserved for other models.

        Raises:
            ValueError: If the model is missing, is not a classifier with one output, lacks a chat template although one
                is required, or has no padding token.
        """
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        if not Path(config.model).is_dir() and config.revision is None:
            raise ValueError(f"reward model {config.model!r}: neither a folder nor a hub id with a revision")
        self._config = config
        self._is_pair = isinstance(config, NamedRewardModelConfig) and not config.chat_template
        options: dict[str, Any] = {"revision": config.revision, "trust_remote_code": False}
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(config.model, **options)
            self._model, loading = AutoModelForSequenceClassification.from_pretrained(
                config.model,
                dtype=getattr(torch, config.dtype),
                use_safetensors=True,
                output_loading_info=True,
                **options,
            )
        except (OSError, ValueError) as error:
            raise ValueError(f"reward model {config.model!r} cannot be loaded from safetensors: {error}") from error
        if loading["missing_keys"]:
            raise ValueError(f"reward model {config.model!r} lacks the weights {sorted(loading['missing_keys'])[:3]}")
        if self._model.config.num_labels != 1:
            raise ValueError(
                f"reward model {config.model!r} has {self._model.config.num_labels} outputs, but must have 1"
            )
        if not self._is_pair and not self._tokenizer.chat_template:
            raise ValueError(f"reward model {config.model!r}: the tokenizer has no chat template")
        if self._tokenizer.pad_token_id is None or self._model.config.pad_token_id is None:
            raise ValueError(f"reward model {config.model!r} has no padding token")
        self._device = torch.device("cpu")
        if config.device == "auto" and (accelerator := torch.accelerator.current_accelerator(check_available=True)):
            # An engine in the same pod uses the first GPUs.
            index = max(0, torch.accelerator.device_count() - 1 - gpus_behind)
            self._device = torch.device(accelerator.type, index)
        self._model.to(self._device).eval()

    def tokenize(self, conversation: Sequence[tuple[str, str]], answer: str) -> Row:
        """Return the tokens of a conversation and an answer, under the chat template or as a pair.

        Special tokens in the texts are broken up. The middle of the answer is removed if there would be more than
        `max_tokens` tokens.

        Raises:
            AnswerTooLong: If not even the note about the gap fits, although `CONTROL` does.
            CannotJudge: If the conversation is too long for any answer, or the chat template refuses it.
        """
        specials = sorted(self._tokenizer.added_tokens_encoder)
        asked = [(role, make_plain(content, specials)) for role, content in conversation]

        def row(keep: int) -> Row:
            text, _ = keep_ends(answer, keep, lambda part: make_plain(part, specials))
            return self._row(asked, text)

        budget = self._config.max_tokens
        keep = min(self._config.max_response_chars, len(answer.encode("utf-8", "surrogatepass")))
        fitted = row(keep)
        if len(fitted.token_ids) <= budget:
            return fitted
        fixed = len(self._row(asked, CONTROL).token_ids)
        if fixed > budget:
            raise CannotJudge(f"the conversation is too long for the reward model: it accepts {budget} tokens")
        for step in range(STEPS):
            keep = choose_next_length(keep, len(fitted.token_ids), fixed, budget, step)
            fitted = row(keep)
            if len(fitted.token_ids) <= budget:
                return fitted
        raise AnswerTooLong(f"the answer is too long for the reward model: it accepts {budget} tokens")

    def logits(self, rows: Sequence[Row]) -> list[float]:
        """Return one logit per row, from one forward pass with right padding."""
        import torch

        longest = max(len(row.token_ids) for row in rows)

        def make_tensor(values: Sequence[list[int]], padding: int) -> Tensor:  # [rows, longest]
            return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in values], device=self._device)

        lengths = torch.tensor([len(row.token_ids) for row in rows], device=self._device)
        mask = (torch.arange(longest, device=self._device)[None] < lengths[:, None]).long()
        inputs = {"input_ids": make_tensor([row.token_ids for row in rows], self._tokenizer.pad_token_id)}
        if rows[0].types is not None:
            inputs["token_type_ids"] = make_tensor([row.types or [] for row in rows], 0)
        with torch.inference_mode():
            logits: Tensor = self._model(**inputs, attention_mask=mask).logits  # [rows, 1]
        return logits[:, 0].float().tolist()

    def _row(self, conversation: list[tuple[str, str]], answer: str) -> Row:
        if not self._is_pair:
            turns = [{"role": role, "content": content} for role, content in conversation]
            return Row(self._apply_template([*turns, {"role": "assistant", "content": answer}]))
        question = next(content for role, content in reversed(conversation) if role == "user")
        pair = self._tokenizer(question, answer)
        types = pair.get("token_type_ids")
        return Row(list(pair["input_ids"]), None if types is None else list(types))

    def _apply_template(self, messages: list[dict[str, str]]) -> list[int]:
        from jinja2 import TemplateError

        dates = make_date_variables(self._tokenizer.get_chat_template())
        try:
            return list(self._tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **dates))
        except (TemplateError, ValueError) as error:
            raise CannotJudge(f"the reward model's chat template refuses the conversation: {error}") from None


class Scorer:
    """Runs a reward model in a separate thread, which scores queued answers in batches.

    A thread is enough, because the forward pass releases the GIL.
    """

    def __init__(self, config: ClassifierConfig, usage: Usage, gpus_behind: int = 0) -> None:
        """Load the model; raises `ValueError` if that fails."""
        self._config = config
        self._usage = usage
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward-model")
        self._queue: list[_Waiting] = []
        self._at_work: asyncio.Task[None] | None = None
        self._closed = False
        try:
            self.model = self._thread.submit(RewardModel, config, gpus_behind).result()
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    async def logit(self, conversation: list[tuple[str, str]], answer: str) -> float:
        """Return the logit of an answer. It may be infinite or NaN.

        Raises:
            CannotJudge: If `RewardModel.tokenize` raises it, the model failed, or the model was closed.
        """
        if self._closed:
            raise CannotJudge(CLOSED)
        loop = asyncio.get_running_loop()
        row = await loop.run_in_executor(self._thread, self.model.tokenize, conversation, answer)
        if self._closed:
            raise CannotJudge(CLOSED)
        self._usage.input_tokens += len(row.token_ids)
        waiting = _Waiting(row, loop.create_future())
        self._queue.append(waiting)
        if self._at_work is None or self._at_work.done():
            self._at_work = loop.create_task(self._score_queue())
        return await waiting.logit

    async def close(self) -> None:
        """End the thread. Answers that are still queued are not scored, and their calls fail."""
        self._closed = True
        _reject(self._queue, CLOSED)
        self._queue.clear()
        if self._at_work is not None:
            await self._at_work
        self._thread.shutdown(wait=False)  # answers still being tokenised then raise CLOSED

    async def _score_queue(self) -> None:
        """Score the queued answers in batches until the queue is empty."""
        loop = asyncio.get_running_loop()
        while self._queue:
            batch = [waiting for waiting in self._queue[: self._config.batch_size] if not waiting.logit.cancelled()]
            del self._queue[: self._config.batch_size]
            if not batch:
                continue
            rows = [waiting.row for waiting in batch]
            try:
                logits = await loop.run_in_executor(self._thread, self.model.logits, rows)
            except Exception as error:  # such as out of memory: every answer of the batch fails
                _reject(batch, f"the reward model failed: {error!s:.300}")
                continue
            for waiting, logit in zip(batch, logits, strict=True):
                if not waiting.logit.done():
                    waiting.logit.set_result(logit)


def _reject(batch: Sequence[_Waiting], reason: str) -> None:
    for waiting in batch:
        if not waiting.logit.done():
            waiting.logit.set_exception(CannotJudge(reason))
