"""Formats the pods of a run and their resource requests as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.inputs.stage_pods import PodRequest
from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.kubernetes.pods import PodConfig

HEAD = ("pods on a cluster", "number", "cores", "memory", "disk", SHARED_MEMORY, "GPUs")


def format_pod_table(requests: Sequence[PodRequest]) -> str:
    """Return the table with a line for each pod and sizes in GiB. `-` means the cluster's default."""
    rows = [HEAD, *((request.name, request.number, *_format_amounts(request.pod)) for request in requests)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join("  " + "  ".join(_format_cells(row, widths)).rstrip() for row in rows)


def _format_cells(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the padded cells of a row. The first two contain words and are left-aligned, numbers are right-aligned."""
    return [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _format_amounts(pod: PodConfig) -> list[str]:
    sizes = (pod.memory_gib, pod.disk_gib, pod.shared_memory_gib)
    return [f"{pod.cpu}", *(f"{size} GiB" if size else "-" for size in sizes), f"{pod.gpus or '-'}"]
