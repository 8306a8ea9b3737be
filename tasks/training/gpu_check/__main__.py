"""Checks a machine's GPU without any download: `python -m tasks.training.gpu_check [--dry] [--json FILE]`.

It needs torch, transformers, peft and DeepSpeed, and uses liger-kernel and vLLM if they are installed, but not Ray.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click


@click.command()
@click.option("--dry", is_flag=True, help="Run all checks with tiny shapes, on CPUs too.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all results, as JSON.")
def main(dry: bool, file: Path | None) -> None:
    """Check the learner's values, memory and speed on this machine's GPU.

    It takes a few minutes.

    Exits with 1 if attention differs from eager attention, log-probabilities differ from the reference, peak memory
    differs by more than 15% from what `plan` computes, or a check raised an error.
    """
    import torch

    from tasks.machine.quiet import silence_libraries, silence_progress_bars
    from tasks.training.gpu_check.checking import machine_facts, run_checks
    from tasks.training.gpu_check.results import table
    from tasks.training.gpu_check.sizes import FULL, TINY

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


if __name__ == "__main__":
    main()
