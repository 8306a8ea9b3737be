"""Checks time sharing of one GPU between an engine and a learner rank (`placement: time_shared`)."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.gpu_check.learning import LearnerChecks
from tasks.gpu_check.results import Findings, SkippedError
from tasks.gpu_check.sizes import Sizes
from tasks.gpu_check.timing import measure_seconds
from tasks.machine import precision
from tasks.machine.resources import has_gpu
from tasks.model_check.comparison import TIMES_PLAIN_OF_ENGINE, compute_tolerance, compute_typical_error
from tasks.model_check.engine import collect_engine_logprobs, sample_responses
from tasks.model_check.forward import compute_exact_logprobs, compute_plain_logprobs, load_plain_model
from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import GB
from tasks.training.learner.packing import Sequence
from tasks.training.learner.weight_files import copy_all_but_weights

if TYPE_CHECKING:
    from tasks.generation.engine import Engine
    from tasks.storage.tensor_digest import Contents
    from tasks.training.learner.trainer import Trainer

PROMPT = 8
"""Number of tokens of the prompt."""
END = "<end>"
"""The token that ends a response."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
"""The chat template of the model."""


class TurnsCheck:
    """The check of time sharing: an engine sleeps in the middle of responses, and wakes with the weights of a step."""

    def __init__(self, sizes: Sizes, folder: Path, learner: LearnerChecks) -> None:
        """Create the check.

        Args:
            sizes: sizes of model, rows and responses.
            folder: folder of the model.
            learner: creates the learner rank.
        """
        self._sizes = sizes
        self._folder = folder
        self._learner = learner
        self._prompt: list[int] = np.random.default_rng(1).integers(sizes.model.vocabulary - 1, size=PROMPT).tolist()
        self._sampled: dict[str, tuple[Path, list[Sequence]]] = {}  # by turn, each with the folder of the weights

    def __call__(self, findings: Findings) -> None:
        """Run two turns of each: measure seconds per move and memory left on the GPU, and check for the same policy."""
        if not importlib.util.find_spec("vllm"):
            raise SkippedError("vLLM: not installed, not checked.")
        from tasks.generation.engine import Engine
        from tasks.generation.interface import EngineUse

        save_tokenizer(self._folder, self._sizes.model.vocabulary)
        config = self._learner.config(self._sizes.short_row, placement="time_shared")
        options = EngineConfig(
            max_model_len=sum(self._sizes.short_row),
            max_num_seqs=self._sizes.responses,
            gpu_memory_utilization=config.engine_share,
            dtype=precision.resolve("auto", gpu=has_gpu()),
        )

        async def check() -> None:
            engine = await Engine.start(self._folder, options, EngineUse(updatable=True, can_sleep=True))
            try:
                await self._take_turns(findings, config, engine)
            finally:
                engine.shutdown()

        asyncio.run(check())
        self._learner.close()
        self._compare(findings)

    async def _take_turns(self, findings: Findings, config: TrainingConfig, engine: Engine) -> None:
        sizes, figures = self._sizes, findings.figures
        sampling = SamplingConfig(max_tokens=sizes.response)
        prompt = self._prompt

        def responses() -> list[asyncio.Task[Any]]:
            return [asyncio.create_task(engine.generate(prompt, sampling)) for _ in range(sizes.responses)]

        began = time.perf_counter()
        generated = sum(completion.num_tokens for completion in await asyncio.gather(*responses()))
        figures["engine, tokens/s"] = generated / (time.perf_counter() - began)
        trainer = None
        for version, turn in ((1, "first"), (2, "second")):
            waiting = responses()
            await asyncio.sleep(0)
            figures[f"engine falls asleep, {turn} time, s"] = await _measure_seconds(engine.sleep())
            _record_memory(findings, f"next to a sleeping engine, {turn} time")
            if trainer is None:
                trainer = self._learner.build(findings, config)
            else:
                figures["reload_states, s"] = measure_seconds(trainer.reload_states)
            weights = self._folder.with_name(f"version_{version}") / "model.safetensors"
            written = self._learn(findings, trainer, weights, turn)
            _record_memory(findings, f"next to an offloaded learner, {turn} time")
            began = time.perf_counter()
            update = await engine.update_weights(weights, version)
            figures[f"engine wakes and takes weights, {turn} time, s"] = time.perf_counter() - began
            findings.require(update.contents == written, f"The engine loaded other weights than version {version}.")
            versions = {completion.versions[-1].version for completion in await asyncio.gather(*waiting)}
            findings.require(versions == {version}, f"Responses end under versions {versions}, not {version}.")
            self._sampled[turn] = weights.parent, await sample_responses(engine, [prompt] * sizes.responses)

    def _learn(self, findings: Findings, trainer: Trainer, weights: Path, turn: str) -> Contents:
        """Take a step, write the policy to a new model folder, and offload all states; return the weights' contents."""
        rows = self._learner.rows(self._sizes.short_row)
        trainer.step(rows, float(sum(row.mask.sum() for row in rows)), 1e-4)
        weights.parent.mkdir()
        copy_all_but_weights(self._folder, weights.parent, str(trainer.policy.model.dtype).removeprefix("torch."))
        began = time.perf_counter()
        written = trainer.write_weights(str(weights))
        findings.figures[f"weights to a file, {turn} time, s"] = time.perf_counter() - began
        findings.figures[f"offload_states, {turn} time, s"] = measure_seconds(trainer.offload_states)
        return written

    def _compare(self, findings: Findings) -> None:
        """Compare the engine's log-probabilities with a forward pass of the written weights in float32."""
        for turn, (folder, sampled) in self._sampled.items():
            model = load_plain_model(folder)
            exact = compute_exact_logprobs(model, sampled)
            error = compute_typical_error(collect_engine_logprobs(sampled), exact)
            usual = compute_typical_error(compute_plain_logprobs(model, sampled), exact)
            findings.figures[f"engine's error, {turn} time, nats"] = error
            findings.figures[f"the plain forward pass's, {turn} time, nats"] = usual
            findings.require(
                error <= compute_tolerance(usual, TIMES_PLAIN_OF_ENGINE),
                f"Awake, the engine is off by {error:.2g} nats.",
            )


async def _measure_seconds(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


def _record_memory(findings: Findings, when: str) -> None:
    """Record the GPU memory of all processes together."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        findings.figures[f"GPU memory in use, {when}, GB"] = (total - free) / GB


def save_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write a tokenizer to a model's folder, for an engine.

    Its tokens are the words w0, w1, ..., then printable ASCII characters except w and digits, the space and the
    line break (in the spelling of byte-level BPE), and as the last one the end of a text. Transformers loads it as
    Qwen2's, which is a BPE tokenizer: without merges, a text is split into its characters.
    """
    characters = [chr(code) for code in range(ord("!"), ord("~") + 1) if chr(code) not in "w0123456789"]
    characters += ["\u0120", "\u010a"]
    tokens = [*(f"w{index}" for index in range(vocabulary - len(characters) - 1)), *characters, END]
    special = {"id": vocabulary - 1, "content": END, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [special | flags],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: index for index, token in enumerate(tokens)}, "merges": []},
    }
    names = dict.fromkeys(("eos_token", "pad_token", "unk_token"), END)
    settings = {"tokenizer_class": "Qwen2Tokenizer", "chat_template": TEMPLATE} | names
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
