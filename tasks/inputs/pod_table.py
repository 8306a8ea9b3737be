"""Formats the pods of a run and their resource requests as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.inputs.stage_pods import PodRequest
from tasks.inputs.text_table import table_lines
from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.kubernetes.pods import PodConfig

HEAD = ("pods on a cluster", "number", "cores", "memory", "disk", SHARED_MEMORY, "GPUs")


def format_pod_table(requests: Sequence[PodRequest]) -> str:
    """Return the table with a line for each pod and sizes in GiB. `-` means the cluster's default."""
    rows = [HEAD, *((request.name, request.number, *_format_amounts(request.pod)) for request in requests)]
    return "\n".join(table_lines(rows, words=2))


def _format_amounts(pod: PodConfig) -> list[str]:
    sizes = (pod.memory_gib, pod.disk_gib, pod.shared_memory_gib)
    return [f"{pod.cpu}", *(f"{size} GiB" if size else "-" for size in sizes), f"{pod.gpus or '-'}"]
