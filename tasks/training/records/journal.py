"""The journal: a run's metrics as one JSON line per step, and the same numbers for TensorBoard."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

from tasks.tables.json_lines import read_json_lines


class Metrics(Protocol):
    """A receiver of the metrics of each step."""

    def record(self, metrics: dict[str, float]) -> None:
        """Record the metrics of step `metrics["step"]`."""

    def sync(self) -> int:
        """Flush the metrics to the disk and return their length in bytes, for a checkpoint."""


class Journal:
    """The files `metrics.jsonl` and `tensorboard/` of a run folder, to which each step's metrics are appended.

    Args:
        folder: the run folder; lines that `metrics.jsonl` has already are kept.

    Attributes:
        path: of `metrics.jsonl`.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "metrics.jsonl"
        self._file = self.path.open("ab")
        steps = [row["step"] for row in self.rows()]
        # purge_step hides, after a resume, the events of steps that were lost
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=max(steps, default=-1) + 1)

    def record(self, metrics: dict[str, float]) -> None:
        """Append the metrics of step `metrics["step"]`; every value is a finite number."""
        self._file.write(json.dumps(metrics, allow_nan=False).encode() + b"\n")
        self._file.flush()
        for name, value in metrics.items():
            if name != "step":
                self._board.add_scalar(name, value, int(metrics["step"]))
        self._board.flush()

    def rows(self) -> list[dict[str, float]]:
        """Return the metrics of all steps so far, including those of earlier attempts."""
        return read_json_lines(self.path)

    def sync(self) -> int:
        """Flush the lines to the disk and return the length of `metrics.jsonl` in bytes, for a checkpoint."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close both files."""
        self._file.close()
        self._board.close()
