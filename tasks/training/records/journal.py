"""Writes a run's metrics as one JSON line per step (the journal), and the same values for TensorBoard."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tasks.failures import MistakeError
from tasks.storage.durable import write_whole
from tasks.tables.json_lines import read_json_lines
from tasks.training.records.ledger import cut_back
from tasks.training.records.run_state import RunState

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

VALIDATION = "validation/"
"""Prefix of the names of validation metrics."""


class Metrics(Protocol):
    """A receiver of the metrics of each step."""

    def record(self, metrics: dict[str, float]) -> None:
        """Record the metrics of step `metrics["step"]`."""

    def add_validation(self, figures: dict[str, float]) -> None:
        """Add the metrics of a validation to the metrics of the last step."""

    def sync(self) -> int:
        """Flush the metrics to the disk and return their length in bytes, for a checkpoint."""


class Journal:
    """Appends each step's metrics to the files `metrics.jsonl` and `tensorboard/` of a run folder.

    Args:
        folder: the run folder. Existing lines of `metrics.jsonl` are kept. If there is no `tensorboard/`, as in a copy
            of a checkpoint, it is written from these lines.

    Attributes:
        path: path of `metrics.jsonl`.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        self._file = self.path.open("ab")
        self._board_folder = folder / "tensorboard"
        self._board = self._open_board()

    def _open_board(self) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        rows, lacks_board = self.rows(), not self._board_folder.exists()
        # After a resume, purge_step hides the events of lost steps.
        purged_from = int(max((row["step"] for row in rows), default=-1)) + 1
        board = SummaryWriter(str(self._board_folder), purge_step=purged_from)
        for row in rows if lacks_board else ():
            _draw(board, row)
        board.flush()
        return board

    def record(self, metrics: dict[str, float]) -> None:
        """Append the metrics of step `metrics["step"]`. Every value is a finite number."""
        self._file.write(json.dumps(metrics, allow_nan=False).encode() + b"\n")
        self._file.flush()
        _draw(self._board, metrics)
        self._board.flush()

    def add_validation(self, figures: dict[str, float]) -> None:
        """Add the metrics of a validation to the last line.

        If the last line has a validation already, that is moved to the line before, unless it has one too. A checkpoint
        may have recorded shorter lines, so `cut_back_rows` counts lines and not bytes. TensorBoard's files are
        rewritten.
        """
        rows = self.rows()
        others = {name: value for name, value in rows[-1].items() if name.startswith(VALIDATION)}
        if others and len(rows) > 1 and not any(name.startswith(VALIDATION) for name in rows[-2]):
            rows[-2] |= others
        rows[-1] = {name: value for name, value in rows[-1].items() if name not in others} | figures
        self.close()
        shutil.rmtree(self._board_folder)
        with write_whole(self.path, durable=True) as partial:
            partial.write_text("".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows))
        self._file = self.path.open("ab")
        self._board = self._open_board()

    def rows(self) -> list[dict[str, float]]:
        """Return the metrics of all steps so far, earlier attempts included."""
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


def _draw(board: SummaryWriter, metrics: dict[str, float]) -> None:
    for name, value in metrics.items():
        if name != "step":
            board.add_scalar(name, value, int(metrics["step"]))


def cut_back_records(folder: Path, state: RunState) -> None:
    """Truncate the ledger and the metrics in a run folder to their lengths at the checkpoint with this state."""
    cut_back(folder / "ledger.jsonl", state.ledger_bytes)
    cut_back_rows(folder / "metrics.jsonl", state.version)


def cut_back_rows(path: Path, rows: int) -> None:
    """Truncate the file `metrics.jsonl` to its first `rows` lines, one for each step before a checkpoint.

    Raises:
        MistakeError: the file has fewer lines.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    complete = sum(line.endswith(b"\n") for line in lines)
    if complete < rows:
        raise MistakeError(f"{path} holds {complete} steps, the checkpoint recorded {rows}: the run folder was changed")
    cut_back(path, sum(map(len, lines[:rows])))
