"""Checks a machine's GPU without any download: `python -m tasks.training.gpu_check [--dry] [--json FILE]`.

It needs torch, transformers, peft and DeepSpeed, and uses liger-kernel and vLLM if they are installed, but not Ray.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click
import torch

from tasks.machine import precision
from tasks.machine.quiet import silence_libraries, silence_progress_bars
from tasks.training.gpu_check import learning, time_sharing, values
from tasks.training.gpu_check.results import Findings, Result, carry_out, table
from tasks.training.gpu_check.sizes import FULL, TINY, Sizes, save_random_model
from tasks.training.gpu_check.timing import release

LIBRARIES = ("torch", "transformers", "peft", "deepspeed", "liger-kernel", "vllm")
"""Packages whose versions are printed."""


@click.command()
@click.option("--dry", is_flag=True, help="Run all checks with tiny shapes, on CPUs too.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all results, as JSON.")
def main(dry: bool, file: Path | None) -> None:
    """Check attention, log-probabilities, memory and speed of the learner on this machine's GPU, in a few minutes.

    Exits with 1 if attention differs from eager attention, log-probabilities differ from the reference, peak memory
    differs by more than 15% from what `plan` computes, or a check raised an error.
    """
    if not (dry or torch.cuda.is_available()):
        raise SystemExit("Error: torch sees no GPU here; --dry runs all checks on CPUs with tiny shapes")
    silence_libraries()
    silence_progress_bars()
    machine = machine_facts()
    click.echo("\n".join(f"{name:12} {value}" for name, value in machine.items()))
    results = run_checks(TINY if dry else FULL)
    click.echo(table(results))
    if file:
        file.write_text(json.dumps({"machine": machine, "checks": [asdict(result) for result in results]}, indent=2))
    failed = [result.name for result in results if result.status == "failed"]
    click.echo(f"{len(failed)} of {len(results)} checks failed{': ' + ', '.join(failed) if failed else ''}")
    sys.exit(1 if failed else 0)


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


if __name__ == "__main__":
    main()
