"""Runs the checks of a machine's GPU, one after the other."""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from tasks.machine import precision
from tasks.training.gpu_check import learning, time_sharing, values, weights
from tasks.training.gpu_check.results import Findings, Result, carry_out
from tasks.training.gpu_check.sizes import Sizes, save_random_model
from tasks.training.gpu_check.timing import release

LIBRARIES = ("torch", "transformers", "peft", "deepspeed", "liger-kernel", "vllm")
"""Packages whose versions are printed."""


def run_checks(sizes: Sizes) -> list[Result]:
    """Run all checks, one after the other."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype: torch.dtype = getattr(torch, precision.resolve("auto", gpu=device.type == "cuda"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        learner = learning.LearnerChecks(sizes, folder)
        checks: dict[str, Callable[[Findings], None]] = {
            "attention": lambda findings: values.check_attention(findings, sizes, device, dtype),
            "policy": lambda findings: values.check_policy(findings, sizes, device, dtype, folder.with_name("small")),
            "log-probabilities": lambda findings: values.check_logprobs(findings, sizes, device, dtype),
            "liger": lambda findings: values.check_liger(findings, sizes, device, dtype),
            "weights": lambda findings: weights.check_weights(findings, sizes, device, dtype),
            "FP8": lambda findings: learning.check_fp8(findings, sizes),
            "model": lambda findings: save_random_model(folder, sizes.model, dtype),
            "training": learner.check_training,
            "offloading": learner.check_offloading,
            "training without recomputing": learner.check_without_recomputing,
            "LoRA": learner.check_lora,
            "time sharing": time_sharing.TurnsCheck(sizes, folder, learner),
        }
        results = []
        for name, check in checks.items():
            release()
            results.append(carry_out(name, check))
            print(f"{name}: {results[-1].status}", file=sys.stderr, flush=True)
        learner.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return results


def machine_facts() -> dict[str, str]:
    """Return the GPU, its memory, and the versions of Python and of libraries, by name."""
    facts = {"python": sys.version.split()[0]}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts |= {"gpu": properties.name, "gpu memory": f"{properties.total_memory / 1e9:.1f} GB"}
        facts["cuda"] = str(torch.version.cuda)
    else:
        facts["gpu"] = "none"
    return facts | {name: _version(name) or "not installed" for name in LIBRARIES}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
