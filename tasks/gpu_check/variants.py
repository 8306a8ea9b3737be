"""Compares variants of the learner: their speed, their memory, and whether they compute the same policy."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tasks.gpu_check.learning import LearnerChecks
from tasks.gpu_check.parts import PACKAGES, VARIANTS
from tasks.gpu_check.results import Findings, SkippedError
from tasks.gpu_check.sizes import Sizes
from tasks.gpu_check.timing import release
from tasks.model_check.comparison import TIMES_PLAIN_OF_ENGINE, compute_tolerance, compute_typical_error
from tasks.model_check.forward import compute_exact_logprobs, compute_plain_logprobs, load_plain_model
from tasks.recipe.run import TrainingConfig
from tasks.sizing.rank_memory import estimate_learner_memory
from tasks.sizing.roofline import GB
from tasks.training.learner.packing import pack

LONGEST = 4096
"""Number of tokens of the longest sequence that is compared: plain attention has a matrix of its square."""


class VariantChecks:
    """The checks of all variants; what they are compared with is computed once."""

    def __init__(self, sizes: Sizes, folder: Path, learner: LearnerChecks) -> None:
        """`folder` contains the model, and `learner` trains it."""
        self._sizes = sizes
        self._folder = folder
        self._learner = learner
        self._reference: tuple[Tensor, float] | None = None

    def make_check(self, name: str) -> Callable[[Findings], None]:
        """Return the check of a variant: the same policy as the model's own forward pass, tokens/s, MFU, peak memory.

        A variant is skipped if its package, its program or a GPU is missing, or if it needs more memory than is free.
        """
        variant = VARIANTS[name]

        def check(findings: Findings) -> None:
            if variant.package and not importlib.util.find_spec(variant.package):
                raise SkippedError(f"no {PACKAGES[variant.package]}")
            if variant.program and not shutil.which(variant.program):
                raise SkippedError(f"no {variant.program}")
            if variant.needs_gpu and not torch.cuda.is_available():
                raise SkippedError("no GPU")
            self._learner.close()
            config = self._learner.config(self._sizes.row, more=variant.learner)
            self._check_memory(config)
            exact, usual = self._exact()
            trainer = self._learner.build(findings, config)
            sequences = self._learner.sequences(self._sizes.row)
            [[row]] = pack(sequences, self._sizes.row_tokens)
            [values] = trainer.logprobs([row])
            numbers = row.sequence_ids[0]
            short = [torch.from_numpy(values[numbers == i]) for i, one in enumerate(sequences) if one.length <= LONGEST]
            error = compute_typical_error(short, [exact])
            findings.figures["median error, nats"] = error
            findings.figures["the plain forward pass's, nats"] = usual
            findings.require(
                error <= compute_tolerance(usual, TIMES_PLAIN_OF_ENGINE),
                f"Log-probabilities differ from float32 by {error:.2g} nats, a plain forward pass by {usual:.2g}.",
            )
            peak = max(self._learner.measure(findings, trainer, self._sizes.row, mfu=True))
            if torch.cuda.is_available():
                findings.figures["peak memory, GB"] = peak / GB
            self._learner.close()

        return check

    def _check_memory(self, config: TrainingConfig) -> None:
        """Raise `SkippedError` if `plan` computes more memory for the learner than the GPU has free."""
        needed = estimate_learner_memory(self._sizes.model, config).total
        if torch.cuda.is_available() and (free := torch.cuda.mem_get_info()[0]) < needed:
            raise SkippedError(f"it needs {needed / GB:.0f} GB by plan, and {free / GB:.0f} GB are free")

    def _exact(self) -> tuple[Tensor, float]:
        """Return log-probabilities in float32, `[n]`, and the error of the plain forward pass, nats."""
        if self._reference is None:
            sequences = [one for one in self._learner.sequences(self._sizes.row) if one.length <= LONGEST]
            model = load_plain_model(self._folder)
            exact = torch.cat(compute_exact_logprobs(model, sequences))
            self._reference = exact, compute_typical_error(compute_plain_logprobs(model, sequences), [exact])
            del model
            release()
        return self._reference
