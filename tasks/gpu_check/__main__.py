"""Checks one GPU without any download: `python -m tasks.gpu_check [--dry] [--only NAMES] [--json FILE]`.

The learner's checks need torch, transformers, peft and DeepSpeed. Parts whose other packages are not installed (vLLM,
Ray, flytekit) are skipped.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from tasks.machine.error_report import run_command

FILE = Path("outputs/gpu_check.json")
"""File of the results, if the command names no other."""


@click.command()
@click.option("--dry", is_flag=True, help="Run all checks with tiny shapes, on CPUs too.")
@click.option("--only", metavar="NAMES", help="Checks, or letters of parts (A to F), separated by commas.")
@click.option(
    "--variants",
    metavar="NAMES",
    help="Variants of the learner to time, separated by commas. By default all of part B.",
)
@click.option(
    "--json", "file", type=click.Path(path_type=Path), default=FILE, show_default=True, help="File for all results."
)
def main(dry: bool, only: str | None, variants: str | None, file: Path) -> None:
    """Check learner, engine and whole runs on this machine's GPU.

    Each part has a separate process and time limit. After each part all results are written to the file, as JSON,
    and what its processes printed is in a folder next to it.

    Exits with 1 if a check failed.
    """
    from tasks.gpu_check.launching import collect_machine_facts, launch, write_all
    from tasks.gpu_check.machine import NO_GPU
    from tasks.gpu_check.page import summary
    from tasks.gpu_check.part import PartTask
    from tasks.gpu_check.parts import PARTS, TIMES_DRY, selected
    from tasks.gpu_check.results import Result, format_table

    chosen = selected(_split_names(only), _split_names(variants))
    machine = collect_machine_facts()
    if not dry and machine["gpu"] == NO_GPU:
        raise SystemExit("Error: torch sees no GPU here; --dry runs all checks on CPUs with tiny shapes")
    click.echo("\n".join(f"{name:12} {value}" for name, value in machine.items()))
    output = file.with_name(f"{file.stem}_parts").absolute()
    output.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[Result]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for letter, names in chosen.items():
            seconds = PARTS[letter].seconds * (TIMES_DRY if dry else 1)
            task = PartTask(letter, names, dry, Path(folder), output, seconds)
            click.echo(f"{letter}: {PARTS[letter].title}, at most {seconds} s", err=True)
            results[letter] = launch(task)
            write_all(file, machine, results)
            click.echo("".join(f"   {one.name}: {one.status}\n" for one in results[letter]), err=True, nl=False)
    click.echo(format_table([one for of_part in results.values() for one in of_part]))
    click.echo(summary(results))
    failed = [one.name for of_part in results.values() for one in of_part if one.status == "failed"]
    sys.exit(1 if failed else 0)


def _split_names(text: str | None) -> list[str] | None:
    """Return the names in a text that are separated by commas, or None without a text."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    run_command(main)
