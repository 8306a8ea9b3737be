"""Checks an engine alone on one GPU: seeds, log-probabilities, weight updates in flight, and its speed.

On GPUs vLLM runs its second model runner and schedules one step ahead, which it does not on CPUs. So this check uses
all features of an engine that training needs. Falling asleep with requests is part of `time_sharing`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import tempfile
import time
from collections.abc import Coroutine
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.engine import Engine, run_engine
from tasks.gpu_check.bare_engine import BareEngine
from tasks.gpu_check.results import Findings, SkippedError
from tasks.gpu_check.sizes import WEIGHTS_STD, Sizes
from tasks.gpu_check.time_sharing import save_tokenizer
from tasks.gpu_check.timing import release
from tasks.machine import precision
from tasks.machine.resources import has_gpu
from tasks.model_check.comparison import TIMES_PLAIN_OF_ENGINE, compute_tolerance, compute_typical_error
from tasks.model_check.engine import collect_engine_logprobs, sample_responses
from tasks.model_check.forward import compute_exact_logprobs, compute_plain_logprobs, load_plain_model
from tasks.storage.tensor_digest import Contents, compute_contents
from tasks.training.learner.packing import Sequence
from tasks.training.learner.weight_files import copy_all_but_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tasks.generation.interface import Completion

PROMPT = 140
"""Number of tokens of a prompt: more than a block of the KV cache (16 on a GPU, 128 on a CPU), so that a later request
with the same prompt would find keys and values of older weights if they were not kept apart."""
COMPARED = 32
"""Number of responses of each kind whose log-probabilities are compared."""
LONGEST = 512
"""Smallest number of tokens of the longest responses: also on a busy machine they are in flight at an update."""
SHORTEST = 8
"""Smallest number of tokens that show which weights sampled them: a single token may be as likely with others."""
UPDATES = 3
"""Number of weight updates in flight."""
GUIDED = "w1(w2|w3){3}w4"
"""Regular expression over the words of `save_tokenizer`. Its first and its last token are certain."""
CERTAIN = 1e-5
"""Largest log-probability of a certain token, nats: only its rounding in float32 differs from 0."""
FP8_FROM = (8, 9)
"""Smallest compute capability with FP8: Ada."""


class Sampled(NamedTuple):
    """Responses that an engine sampled with one version of the weights.

    Attributes:
        kind: when they were sampled, or how.
        version: version of the weights, as the engine reported it.
        responses: the responses with the engine's log-probabilities.
        rival: version of other weights that could have sampled them. Optional. If None, there are none.
        coarse: True if the engine's weights are in FP8. No bound on their error is known.
    """

    kind: str
    version: int
    responses: list[Sequence]
    rival: int | None = None
    coarse: bool = False


class EngineCheck:
    """The check of an engine alone: eager, and on a GPU with CUDA graphs."""

    def __init__(self, sizes: Sizes, folder: Path) -> None:
        """Create the check.

        Args:
            sizes: sizes of model and responses.
            folder: folder of the model.
        """
        self._sizes = sizes
        self._folders = [folder, *(folder.with_name(f"updated_{version}") for version in range(1, UPDATES + 1))]
        self._longest = max(4 * sizes.response, LONGEST)
        random = np.random.default_rng(2)
        shape = (sizes.responses, PROMPT)
        self._prompts: list[list[int]] = random.integers(sizes.model.vocabulary - 1, size=shape).tolist()
        self._contents: list[Contents] = []  # of updates 1, 2, ...
        self._sampled: list[Sampled] = []

    def __call__(self, findings: Findings) -> None:
        """Run engines one after the other, and compare what they sampled with forward passes in float32."""
        if not importlib.util.find_spec("vllm"):
            raise SkippedError("vLLM: not installed, not checked.")
        save_tokenizer(self._folders[0], self._sizes.model.vocabulary)
        for version in range(1, UPDATES + 1):
            self._contents.append(save_noisy(self._folders[0], self._folders[version], seed=version))
        release()
        asyncio.run(self._run(findings))
        self._compare(findings)

    async def _run(self, findings: Findings) -> None:
        kinds = {"eager": True, "graphs": False} if has_gpu() else {"eager": True}
        for kind, eager in kinds.items():
            async with run_engine(self._folders[0], self._options(eager=eager), updatable=True) as engine:
                ours = await self._sample(findings, engine, kind)
                if kind == "eager" and has_gpu():
                    continue  # all else runs once, as a run does
                await self._follow_regex(findings, engine)
                for version in range(1, UPDATES + 1):
                    await self._update(findings, engine, version)
        await self._compare_speed(findings, ours, eager=not has_gpu())
        if has_gpu() and torch.cuda.get_device_capability() >= FP8_FROM:
            await self._sample_in_fp8(findings)

    def _options(self, *, eager: bool, **arguments: Any) -> EngineConfig:
        return EngineConfig(
            max_model_len=PROMPT + self._longest + 1,
            max_num_seqs=self._sizes.responses,
            dtype=precision.resolve("auto", gpu=has_gpu()),
            enforce_eager=eager,
            vllm=arguments,
        )

    async def _sample(self, findings: Findings, engine: Engine, kind: str) -> float:
        """Measure tokens/s, which is returned, sample from the initial weights, and check that seeds repeat."""
        options = engine._llm.vllm_config
        findings.figures["model runner"] = "V2" if options.use_v2_model_runner else "V1"
        findings.figures["asynchronous scheduling"] = str(options.scheduler_config.async_scheduling)
        sampling = SamplingConfig(max_tokens=self._sizes.response)

        def responses() -> list[Coroutine[Any, Any, Completion]]:
            return [engine.generate(prompt, sampling) for prompt in self._prompts]

        await asyncio.gather(*responses())  # kernels are compiled at first use
        began = time.perf_counter()
        generated = sum(completion.num_tokens for completion in await asyncio.gather(*responses()))
        speed = generated / (time.perf_counter() - began)
        findings.figures[f"{kind}, tokens/s"] = speed
        sampled = await sample_responses(engine, self._prompts)
        self._sampled.append(Sampled(kind, 0, sampled[:COMPARED]))
        again = await sample_responses(engine, self._prompts)
        same = [np.array_equal(a.response_ids, b.response_ids) for a, b in zip(sampled, again, strict=True)]
        findings.figures[f"{kind}, responses of {len(same)} that equal seeds repeat in a batch"] = sum(same)
        # Alone, a request meets the same shapes again, so that no rounding may differ.
        first, second, other = [await engine.generate(self._prompts[0], sampling, seed=seed) for seed in (1, 1, 2)]
        repeats = np.array_equal(first.token_ids, second.token_ids)
        findings.require(repeats, f"{kind}: the same seed gives other tokens.")
        differ = not np.array_equal(first.token_ids, other.token_ids)
        findings.require(differ, f"{kind}: another seed gives the same tokens.")
        return speed

    async def _follow_regex(self, findings: Findings, engine: Engine) -> None:
        """Sample guided responses: tokens of the expression, and log-probabilities over the tokens that it allows."""
        sampling = SamplingConfig(max_tokens=16, guided_regex=GUIDED)
        answers = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in self._prompts))
        end = self._sizes.model.vocabulary - 1
        for answer in answers:
            *words, last = answer.token_ids.tolist()
            follows = last == end and re.fullmatch(GUIDED, "".join(f"w{word}" for word in words))
            certain = follows and np.allclose(answer.logprobs[[0, -2, -1]], 0.0, atol=CERTAIN)
            if not certain:
                findings.faults.append(
                    f"A response guided by {GUIDED} has the tokens {[*words, last]} with log-probabilities "
                    f"{answer.logprobs.round(4).tolist()}."
                )
                return

    async def _update(self, findings: Findings, engine: Engine, version: int) -> None:
        """Replace the weights when the first of many responses has ended, others are in flight and others wait."""
        prompts = [*self._prompts, *self._prompts]
        parts = (self._sizes.response, self._longest // 2, self._longest)
        lengths = [parts[number % 3] for number in range(len(prompts))]
        flying = [
            asyncio.create_task(engine.generate(prompt, SamplingConfig(max_tokens=length)))
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
        update = await engine.update_weights(self._folders[version] / "model.safetensors", version)
        completions = await asyncio.gather(*flying)
        findings.figures[f"update {version}, pause, s"] = update.pause_seconds
        findings.figures[f"update {version}, from call to return, s"] = update.total_seconds
        findings.require(
            update.contents == self._contents[version - 1], f"The engine loaded other weights than update {version}."
        )
        findings.faults += sorted({fault for one in completions if (fault := find_span_fault(one, version))})
        in_flight = [one for one in completions if len(one.versions) > 1]
        findings.figures[f"update {version}, responses in flight of {len(flying)}"] = len(in_flight)
        findings.require(bool(in_flight), f"No response was in flight at update {version}.")
        old, new = [], []
        for prompt, one in zip(prompts, completions, strict=True):
            beginning = take_first_span(prompt, one)
            if len(beginning.response_ids) < SHORTEST:
                continue
            if len(one.versions) > 1:
                old.append(beginning)
            elif one.versions[0].version == version:
                new.append(beginning)
        after = await sample_responses(engine, self._prompts[:COMPARED])
        self._sampled += [
            Sampled(f"in flight at update {version}", version - 1, old[:COMPARED], rival=version),
            Sampled(f"waiting at update {version}", version, new[:COMPARED], rival=version - 1),
            Sampled(f"after update {version}", version, after),
        ]

    async def _compare_speed(self, findings: Findings, ours: float, *, eager: bool) -> None:
        """Measure tokens/s of bare vLLM, which also returns the log-probabilities of sampled responses as prompts."""
        sampled = self._sampled[0].responses
        with tempfile.TemporaryDirectory(prefix="vllm-") as sockets:
            bare = BareEngine(self._folders[0], self._options(eager=eager), sockets)
            try:
                sampling = SamplingConfig(max_tokens=self._sizes.response)
                await bare.tokens_per_second(self._prompts, sampling)
                speed = await bare.tokens_per_second(self._prompts, sampling)
                scored = [await bare.compute_logprobs(sequence) for sequence in sampled]
            finally:
                bare.shutdown()
        findings.figures["bare vLLM, tokens/s"] = speed
        findings.figures["of bare vLLM's tokens/s"] = ours / speed
        self._sampled.append(Sampled("as prompts", 0, scored))

    async def _sample_in_fp8(self, findings: Findings) -> None:
        """Sample with weights in FP8 that were replaced once."""
        options = self._options(eager=True, quantization="fp8")
        async with run_engine(self._folders[0], options, updatable=True) as engine:
            update = await engine.update_weights(self._folders[1] / "model.safetensors", 1)
            findings.figures["FP8, pause of an update, s"] = update.pause_seconds
            responses = await sample_responses(engine, self._prompts[:COMPARED])
        self._sampled.append(Sampled("FP8", 1, responses, rival=0, coarse=True))

    def _compare(self, findings: Findings) -> None:
        """Compare log-probabilities with forward passes of the weights that sampled the tokens, in float32.

        Weights that could have sampled them instead must be further away, for each response.
        """
        errors: dict[tuple[str, int], list[float]] = {}
        for version, folder in enumerate(self._folders):
            model = load_plain_model(folder)
            for sampled in self._sampled:
                if sampled.responses and version in (sampled.version, sampled.rival):
                    exact = compute_exact_logprobs(model, sampled.responses)
                    errors[sampled.kind, version] = compute_mean_errors(sampled.responses, exact)
                    if version == sampled.version:
                        _require_rounding(findings, model, sampled, exact)
            del model
            release()
        for sampled in self._sampled:
            if sampled.responses and sampled.rival is not None:
                pairs = zip(errors[sampled.kind, sampled.version], errors[sampled.kind, sampled.rival], strict=True)
                wrong = sum(own >= other for own, other in pairs)
                findings.require(
                    wrong == 0,
                    f"{sampled.kind}: {wrong} of {len(sampled.responses)} responses are of version {sampled.rival} of "
                    f"the weights, and say that they are of version {sampled.version}.",
                )


def _require_rounding(findings: Findings, model: PreTrainedModel, sampled: Sampled, exact: list[torch.Tensor]) -> None:
    """Record an engine's error and the plain forward pass's, and require that the former is rounding."""
    error = compute_typical_error(collect_engine_logprobs(sampled.responses), exact)
    usual = compute_typical_error(compute_plain_logprobs(model, sampled.responses), exact)
    findings.figures[f"{sampled.kind}: engine's error, nats"] = error
    findings.figures[f"{sampled.kind}: the plain forward pass's, nats"] = usual
    findings.require(
        sampled.coarse or error <= compute_tolerance(usual, TIMES_PLAIN_OF_ENGINE),
        f"{sampled.kind}: the engine is off by {error:.2g} nats, and the plain forward pass by {usual:.2g}.",
    )


def save_noisy(source: Path, destination: Path, *, seed: int) -> Contents:
    """Write a model folder with the weights of another and noise on each, and return the contents of its tensors."""
    device = "cuda" if torch.cuda.is_available() else "cpu"  # a core makes 10^8 numbers a second
    random = torch.Generator(device).manual_seed(seed)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        noise = torch.empty(tensor.shape, device=device).normal_(std=WEIGHTS_STD, generator=random)
        tensors[name] = tensor + noise.to("cpu", tensor.dtype)
    destination.mkdir()
    copy_all_but_weights(source, destination, str(next(iter(tensors.values())).dtype).removeprefix("torch."))
    save_file(tensors, destination / "model.safetensors", metadata={"format": "pt"})
    return compute_contents(tensors)


def find_span_fault(completion: Completion, version: int) -> str | None:
    """Return what is wrong with a response's spans of versions at the update to `version`, or None.

    They must contain each token once, and have no version but the one before the update and, after it, the new one.
    """
    spans = completion.versions
    ends = [0, *(span.end for span in spans)]
    whole = ends[-1] == completion.num_tokens and all(span.start == end for span, end in zip(spans, ends, strict=False))
    if not whole or not all(span.start < span.end for span in spans):
        return f"Update {version}: spans {spans} of {completion.num_tokens} tokens do not add up."
    versions = [span.version for span in spans]
    rises = all(a < b for a, b in pairwise(versions))
    if not rises or not set(versions) <= {version - 1, version}:
        return f"Update {version}: a response has tokens of the versions {versions}."
    return None


def take_first_span(prompt: list[int], completion: Completion) -> Sequence:
    """Return a response up to the first change of weights: what follows has keys and values of both."""
    end = completion.versions[0].end if completion.versions else 0
    return Sequence(prompt, completion.token_ids[:end], completion.logprobs[:end], 0.0)


def compute_mean_errors(sampled: list[Sequence], exact: list[torch.Tensor]) -> list[float]:
    """Return the mean difference of each response's log-probabilities from the exact ones, nats."""
    return [
        float((own - right).abs().mean()) for own, right in zip(collect_engine_logprobs(sampled), exact, strict=True)
    ]
