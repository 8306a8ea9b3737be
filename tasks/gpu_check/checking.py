"""Lists the checks that compute in the process of their part: the learner's, an engine's, and time sharing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from tasks.gpu_check import engine, learning, time_sharing, values, weights
from tasks.gpu_check.parts import VARIANTS, variant_check
from tasks.gpu_check.results import Findings
from tasks.gpu_check.sizes import choose_sizes, save_random_model
from tasks.gpu_check.timing import release
from tasks.gpu_check.variants import VariantChecks
from tasks.machine import precision

if TYPE_CHECKING:
    from tasks.gpu_check.part import PartTask

WITHOUT_MODEL = {"attention", "policy", "log-probabilities", "liger", "weights", "FP8"}
"""Checks that do not need the model that all parts share."""


def make_checks(task: PartTask) -> dict[str, Callable[[Findings], None]]:
    """Return the checks of a part, by name; the first one writes the model if it is needed and not there."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype: torch.dtype = getattr(torch, precision.resolve("auto", gpu=device.type == "cuda"))
    sizes, folder = choose_sizes(dry=task.dry), task.folder / "model"
    learner = learning.LearnerChecks(sizes, folder)
    variants = VariantChecks(sizes, folder, learner)
    every: dict[str, Callable[[Findings], None]] = {
        "attention": lambda findings: values.check_attention(findings, sizes, device, dtype),
        "policy": lambda findings: values.check_policy(findings, sizes, device, dtype, task.folder / "small"),
        "log-probabilities": lambda findings: values.check_logprobs(findings, sizes, device, dtype),
        "liger": lambda findings: values.check_liger(findings, sizes, device, dtype),
        "weights": lambda findings: weights.check_weights(findings, sizes, device, dtype),
        "FP8": lambda findings: learning.check_fp8(findings, sizes),
        "engine": engine.EngineCheck(sizes, folder),
        "training": learner.check_training,
        "offloading": learner.check_offloading,
        "training without recomputing": learner.check_without_recomputing,
        "LoRA": learner.check_lora,
        **{variant_check(name): variants.make_check(name) for name in VARIANTS},
        "time sharing": time_sharing.TurnsCheck(sizes, folder, learner),
    }
    chosen = {name: _start_with_free_memory(every[name]) for name in task.checks}
    if folder.exists() or not chosen.keys() - WITHOUT_MODEL:
        return chosen
    return {"model": lambda findings: save_random_model(folder, sizes.model, dtype)} | chosen


def _start_with_free_memory(check: Callable[[Findings], None]) -> Callable[[Findings], None]:
    def run(findings: Findings) -> None:
        release()
        check(findings)

    return run
