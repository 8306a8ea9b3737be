"""A reward model in place of a judge: a sequence classifier whose one logit becomes a score in [0, 1]."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.storage.model_folder import date_variables
from tasks.verifiers.calls import Messages
from tasks.verifiers.chat.config import RewardModelConfig
from tasks.verifiers.chat.endpoint import Usage
from tasks.verifiers.chat.fitting import STEPS, smaller
from tasks.verifiers.chat.judge import CONTROL, settled
from tasks.verifiers.chat.material import plain, shortened
from tasks.verifiers.chat.prompts import WITH_REFERENCE, check_ground_truth, is_pairwise, turns
from tasks.verifiers.scores import CannotJudge, Score

if TYPE_CHECKING:
    from torch import Tensor


class AnswerTooLong(CannotJudge):
    """An answer cannot be cut to the model's length beside its conversation, where a short one could be scored."""


class _Waiting(NamedTuple):
    """A tokenised answer in the queue, and the future of its logit."""

    token_ids: list[int]
    logit: asyncio.Future[float]


class RewardModel:
    """The classifier and its tokenizer. It blocks, and is not thread-safe: one thread loads it and calls it."""

    def __init__(self, config: RewardModelConfig) -> None:
        """Load the model. Code that comes with it is never run, and weights are read from safetensors only.

        Raises:
            ValueError: the model is missing, is no classifier of one output, or has no chat template or padding token.
        """
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        if not Path(config.model).is_dir() and config.revision is None:
            raise ValueError(f"reward model {config.model!r}: neither a folder nor a hub id with a revision")
        self._config = config
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
            raise ValueError(f"reward model {config.model!r} cannot be loaded: {error}") from error
        if loading["missing_keys"]:
            raise ValueError(f"reward model {config.model!r} lacks the weights {sorted(loading['missing_keys'])[:3]}")
        if self._model.config.num_labels != 1:
            raise ValueError(f"reward model {config.model!r} has {self._model.config.num_labels} outputs; want 1")
        if not self._tokenizer.chat_template:
            raise ValueError(f"reward model {config.model!r}: the tokenizer has no chat template")
        if self._tokenizer.pad_token_id is None or self._model.config.pad_token_id is None:
            raise ValueError(f"reward model {config.model!r} names no padding token")
        self._device = torch.device("cpu")
        if config.device == "auto" and (accelerator := torch.accelerator.current_accelerator(check_available=True)):
            # An engine of the same pod has the first GPUs.
            self._device = torch.device(accelerator.type, torch.accelerator.device_count() - 1)
        self._model.to(self._device).eval()

    def tokenise(self, conversation: Sequence[tuple[str, str]], answer: str) -> list[int]:
        """Return the tokens of a conversation and an answer under the model's chat template.

        Special tokens in the texts are broken up. The middle of the answer is left out where there would be more than
        `max_tokens`.

        Raises:
            AnswerTooLong: not even the line about the gap fits, where `CONTROL` does.
            CannotJudge: the conversation is too long for any answer, or is one that the chat template refuses.
        """
        specials = sorted(self._tokenizer.added_tokens_encoder)
        asked = [{"role": role, "content": plain(content, specials)} for role, content in conversation]

        def templated(keep: int) -> list[int]:
            text, _ = shortened(answer, keep, lambda part: plain(part, specials))
            return self._templated([*asked, {"role": "assistant", "content": text}])

        budget = self._config.max_tokens
        keep = min(self._config.max_response_chars, len(answer.encode("utf-8", "surrogatepass")))
        token_ids = templated(keep)
        if len(token_ids) <= budget:
            return token_ids
        fixed = len(self._templated([*asked, {"role": "assistant", "content": CONTROL}]))
        if fixed > budget:
            raise CannotJudge(f"the conversation is too long for the reward model: it takes {budget} tokens")
        for step in range(STEPS):
            keep = smaller(keep, len(token_ids), fixed, budget, step)
            token_ids = templated(keep)
            if len(token_ids) <= budget:
                return token_ids
        raise AnswerTooLong(f"the answer is too long for the reward model: it takes {budget} tokens")

    def logits(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return one logit for each row of token ids, from one forward pass, padded to the right."""
        import torch

        longest = max(map(len, rows))
        padding = self._tokenizer.pad_token_id
        token_ids = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows], device=self._device)
        lengths = torch.tensor([len(row) for row in rows], device=self._device)
        mask = (torch.arange(longest, device=self._device)[None] < lengths[:, None]).long()  # [rows, longest]
        with torch.inference_mode():
            logits: Tensor = self._model(input_ids=token_ids, attention_mask=mask).logits  # [rows, 1]
        return logits[:, 0].float().tolist()

    def _templated(self, messages: list[dict[str, str]]) -> list[int]:
        from jinja2 import TemplateError

        dates = date_variables(self._tokenizer.get_chat_template())
        try:
            return list(self._tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **dates))
        except (TemplateError, ValueError) as error:
            raise CannotJudge(f"the reward model's chat template refuses the conversation: {error}") from None


class RewardModelJudge:
    """A `Verifier` of chat that scores with a reward model, in a thread of its own, waiting answers in batches.

    A thread is enough: the forward pass leaves the interpreter to the event loop.
    """

    def __init__(self, config: RewardModelConfig) -> None:
        """Load the model; raises `ValueError` where that cannot be done."""
        self._config = config
        self._usage = Usage()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward-model")
        self._queue: list[_Waiting] = []
        self._at_work: asyncio.Task[None] | None = None
        self._closed = False
        try:
            self._model = self._thread.submit(RewardModel, config).result()
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    async def judge(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """Score conversation and answer; a reference is never looked at.

        An empty answer scores 0 without the model. So does one that has no score where `CONTROL` has one: it is too
        long to be cut to the tokens left beside the conversation, or its logit is not finite.

        Raises:
            GroundTruthError: a ground truth that is not the verifier's.
            CannotJudge: no conversation, or one too long; a logit that is not finite, of `CONTROL` too;
                `chat_reference`, unless `scores_references` is set.
        """
        check_ground_truth(verifier, ground_truth)
        if is_pairwise(ground_truth):
            raise CannotJudge("a reward model scores one answer and compares none: mode pairwise needs kind: endpoint")
        if verifier == WITH_REFERENCE and not self._config.scores_references:
            raise CannotJudge("a reward model sees no reference; scores_references: true has it score without")
        answer, note, score = settled(self._config, self._usage, response, messages)
        if score is not None:
            return score
        started = time.monotonic()
        self._usage.requests += 1
        try:
            logit = await self._logit(turns(messages), answer)
            if not math.isfinite(logit) and not math.isfinite(await self._logit(turns(messages), CONTROL)):
                raise CannotJudge(f"the reward model's logit is {logit}, of another answer too")
        except AnswerTooLong as reason:
            self._usage.ungraded += 1
            return Score(0.0, False, f"{note}{reason}")
        except CannotJudge:
            self._usage.failures += 1
            raise
        finally:
            self._usage.seconds += time.monotonic() - started
        if not math.isfinite(logit):
            self._usage.ungraded += 1
            return Score(0.0, False, f"{note}logit {logit}, where another answer has a finite one")
        value = self._value(logit)
        return Score(value, value >= self._config.pass_value, f"{note}logit {logit:.4g}")

    async def close(self) -> None:
        """End the thread; answers that still wait are not scored, and their judgements fail."""
        self._closed = True
        _fail(self._queue, "the reward model was closed")
        self._queue.clear()
        if self._at_work is not None:
            await self._at_work
        self._thread.shutdown(wait=False)  # an answer that is being tokenised then finds the judge closed

    def usage(self) -> dict[str, float]:
        """Return the counters so far; a reward model writes no tokens and costs nothing."""
        return self._usage.as_dict()

    async def _logit(self, conversation: list[tuple[str, str]], answer: str) -> float:
        if self._closed:
            raise CannotJudge("the reward model was closed")
        loop = asyncio.get_running_loop()
        token_ids = await loop.run_in_executor(self._thread, self._model.tokenise, conversation, answer)
        if self._closed:
            raise CannotJudge("the reward model was closed")
        self._usage.input_tokens += len(token_ids)
        waiting = _Waiting(token_ids, loop.create_future())
        self._queue.append(waiting)
        if self._at_work is None or self._at_work.done():
            self._at_work = loop.create_task(self._work())
        return await waiting.logit

    async def _work(self) -> None:
        """Score the waiting answers, batch after batch, until the queue is empty."""
        loop = asyncio.get_running_loop()
        while self._queue:
            batch = [waiting for waiting in self._queue[: self._config.batch_size] if not waiting.logit.cancelled()]
            del self._queue[: self._config.batch_size]
            if not batch:
                continue
            rows = [waiting.token_ids for waiting in batch]
            try:
                logits = await loop.run_in_executor(self._thread, self._model.logits, rows)
            except Exception as error:  # out of memory and the like: the judge's failure, for all that wait
                _fail(batch, f"the reward model failed: {error!s:.300}")
                continue
            for waiting, logit in zip(batch, logits, strict=True):
                if not waiting.logit.done():
                    waiting.logit.set_result(logit)

    def _value(self, logit: float) -> float:
        if self._config.bounds is None:
            # of the two forms, the one that cannot overflow
            return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
        low, high = self._config.bounds
        return min(1.0, max(0.0, (logit - low) / (high - low)))


def _fail(batch: Sequence[_Waiting], reason: str) -> None:
    for waiting in batch:
        if not waiting.logit.done():
            waiting.logit.set_exception(CannotJudge(reason))
