"""Formats the results of `make gpu-check`: a table on the terminal, and the table of docs/clusters.md.

`python3 -m tasks.gpu_check.page FILE [PAGE]` writes the latter between the markers of the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.failures import MistakeError
from tasks.gpu_check.machine import NO_GPU
from tasks.gpu_check.parts import PARTS, VARIANTS, variant_check
from tasks.gpu_check.results import Result, format_number
from tasks.machine.error_report import run_command
from tasks.storage.durable import write_whole

PAGE = Path("docs/clusters.md")
BEGIN, END = "<!-- gpu-check: begin -->", "<!-- gpu-check: end -->"
"""Lines of the page between which the table is."""

TRAINED = ("trained tokens/s", "MFU", "step, s", "peak memory, GB", "peak memory by plan, GB")
SHOWN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("attention", "policy", "log-probabilities"), ("attention",)),
    **dict.fromkeys(("training", "training without recomputing", "LoRA"), TRAINED),
    **{variant_check(name): ("median error, nats", *TRAINED) for name in VARIANTS},
}
"""Measurements of checks that are in the page's table; of the other checks, all are."""


def summary(results: Mapping[str, Sequence[Result]]) -> str:
    """Return a table with a line for each part, as text; `results` are by the part's letter."""
    lines = ["part                            passed  failed  skipped  seconds"]
    for letter, of_part in results.items():
        counts = [sum(one.status == status for one in of_part) for status in ("passed", "failed", "skipped")]
        seconds = sum(one.seconds for one in of_part)
        passed, failed, skipped = counts
        lines.append(f"{letter} {PARTS[letter].title:28} {passed:7} {failed:7} {skipped:8} {seconds:8.1f}")
        lines += [f"    {one.status}: {one.name}: {one.reason}" for one in of_part if one.status != "passed"]
    return "\n".join(lines)


def format_page_table(file: Path) -> str:
    """Return the table of the page for a file of results, as Markdown.

    Raises:
        MistakeError: the file is not one of a GPU's results.
    """
    try:
        recorded = json.loads(file.read_text())
        machine, checks = recorded["machine"], recorded["checks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MistakeError(f"{file}: must be a file that make gpu-check JSON=FILE has written ({error!r})") from error
    if machine["gpu"] == NO_GPU:
        raise MistakeError(f"{file}: was measured without a GPU; the page contains measurements of GPUs only")
    seconds = sum(check["seconds"] for check in checks)
    known = [f"{name} {machine[name]}" for name in ("torch", "cuda", "vllm", "ray", "deepspeed") if name in machine]
    lines = [f"On one {machine['gpu']} ({', '.join(known)}; {seconds:.0f} s in all):", "", "| | check | s | measured |"]
    lines.append("|---|---|---|---|")
    return "\n".join([*lines, *map(_format_row, checks)])


def _format_row(check: dict[str, Any]) -> str:
    """Return a line of the table: of a check that failed or was skipped the reason, otherwise its measurements."""
    shown = SHOWN.get(check["name"], tuple(check["figures"]))
    figures = {name: value for name, value in check["figures"].items() if name in shown}
    measured = "; ".join(f"{name.strip()}: {format_number(value)}" for name, value in figures.items())
    not_passed = "" if check["status"] == "passed" else f"{check['status']}: {check['reason']} "
    text = (not_passed + measured).strip() or check["status"]
    return f"| {check['part']} | {check['name']} | {check['seconds']:.0f} | {text.replace('|', '/')} |"


def write_page(file: Path, page: Path) -> None:
    """Replace what is between the markers of a page by the table for a file of results.

    Raises:
        MistakeError: the page does not contain each of the markers once, or the file is not one of a GPU's results.
    """
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise MistakeError(f"{page}: must contain the lines {BEGIN} and {END} once")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    with write_whole(page) as partial:
        partial.write_text(f"{before}{BEGIN}\n{format_page_table(file)}\n{END}{after}")


def main(arguments: Sequence[str]) -> None:
    """Write the table for the file that `arguments` names to the page, by default docs/clusters.md."""
    if len(arguments) not in (1, 2):
        raise MistakeError("python3 -m tasks.gpu_check.page FILE [PAGE]: give the file of the results")
    write_page(Path(arguments[0]), Path(arguments[1]) if arguments[1:] else PAGE)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
