"""Computes win rates of a policy over a baseline's answers, plain and length-controlled, from preferences by prompt.

The length-controlled rate is not a mean over prompts, so its interval is from a jackknife that leaves out a tenth of
the prompts at a time (Kott 2001, "The Delete-a-Group Jackknife"). A difference uses the same tenths for both policies.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tasks.evaluation.length_controlled import Preferences, estimate_length_controlled
from tasks.evaluation.spec import ComparedBenchmark
from tasks.failures import MistakeError
from tasks.statistics.intervals import Estimate, compute_t_quantile, estimate_jackknife_gain
from tasks.storage.addresses import AddressRefusedError
from tasks.storage.sent_files import SentFile, SentFileError, read_file

WIN_RATE, LENGTH_CONTROLLED = "win_rate", "length_controlled_win_rate"
"""Names of the metrics."""
ROW, DIFFERENCE = "source_row", "length_difference"
"""Columns of a prompt's row in its source, and of the length of the reference minus the policy's mean, in
characters."""
GROUPS = 10
"""Number of groups of prompts. The jackknife leaves out one at a time."""
COLUMNS = ("index", "preference", "std_delta_len", "instruction_difficulty")
"""Columns that are read from the authors' file."""


@dataclass(frozen=True)
class LengthControl:
    """The authors' data for the regression.

    Attributes:
        difficulties: difficulty of the instruction by its row in the source.
        baseline: comparisons of the baseline with its own verbose and concise answers.
    """

    difficulties: Mapping[int, float]
    baseline: Preferences


def load_length_controls(benchmarks: Sequence[ComparedBenchmark]) -> dict[str, LengthControl]:
    """Return the authors' data by benchmark, for the benchmarks that name a file.

    Raises:
        MistakeError: any error of `read_text` and `read_length_control`.
    """
    files = {benchmark.name: benchmark.length_control for benchmark in benchmarks}
    return {name: read_length_control(read_text(file), str(file)) for name, file in files.items() if file is not None}


def read_text(file: str | SentFile) -> str:
    """Return the text of a file.

    Raises:
        MistakeError: it cannot be read.
    """
    try:
        return read_file(file).decode("utf-8")
    except (OSError, ValueError, ImportError, AddressRefusedError, SentFileError) as error:
        raise MistakeError(f"{file}: length_control cannot be read: {error}") from None


def read_length_control(text: str, path: str) -> LengthControl:
    """Parse a file in the format of AlpacaEval's authors (`df_gamed.csv`), one comparison of the baseline per row.

    Raises:
        MistakeError: a missing column, a cell that is not a number, or no rows.
    """
    rows = list(csv.DictReader(io.StringIO(text)))
    missing = [name for name in COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise MistakeError(f"{path}: length_control: it has no rows with the column {missing[0]!r}")
    try:
        columns = {name: np.array([float(row[name]) for row in rows]) for name in COLUMNS}
        baseline = Preferences(columns["preference"], columns["std_delta_len"], columns["instruction_difficulty"])
    except ValueError as error:
        raise MistakeError(f"{path}: length_control: {error}") from None
    pairs = zip(columns["index"].astype(int).tolist(), columns["instruction_difficulty"].tolist(), strict=True)
    return LengthControl(dict(pairs), baseline)


def check_difficulties(control: LengthControl, rows: Mapping[str, int], benchmark: str) -> None:
    """Check that every prompt of a benchmark has a difficulty. `rows` contains the row of each prompt in the source.

    Raises:
        MistakeError: a prompt has no difficulty.
    """
    unknown = sorted(set(rows.values()) - control.difficulties.keys())
    if unknown:
        raise MistakeError(
            f"benchmark {benchmark!r}: length_control has no difficulty of row {unknown[0]} ({len(unknown)} such rows)"
        )


@dataclass(frozen=True)
class LengthControlledRate:
    """The length-controlled win rate as a metric of per-prompt tables, with the same methods as a mean over prompts.

    Attributes:
        prompts: mask of the prompts that it is computed over.
        control: the authors' data.
    """

    prompts: np.ndarray
    control: LengthControl
    name: str = LENGTH_CONTROLLED

    def estimate(self, frame: pd.DataFrame) -> Estimate:
        """Return a policy's rate."""
        value, error = self._estimate_jackknife(lambda chosen: self._compute_rate(frame, chosen))
        if error is None:
            return Estimate(value, 0.0, 1.0, self._count)
        half = compute_t_quantile(GROUPS - 1) * error
        return Estimate(value, max(0.0, value - half), min(1.0, value + half), self._count)

    def difference(self, frame: pd.DataFrame, other: pd.DataFrame) -> Estimate:
        """Return the rate of a policy minus the rate of another."""
        value, error = self._estimate_jackknife(
            lambda chosen: self._compute_rate(frame, chosen) - self._compute_rate(other, chosen)
        )
        if error is None:
            return Estimate(value, -1.0, 1.0, self._count, p_value=1.0)
        return estimate_jackknife_gain(value, error, GROUPS, self._count)

    @property
    def _count(self) -> int:
        return int(np.sum(self.prompts))

    def _compute_rate(self, frame: pd.DataFrame, chosen: np.ndarray) -> float:
        part = frame[chosen]
        difficulties = part[ROW].map(dict(self.control.difficulties)).to_numpy(dtype=float)
        preferences = Preferences(part["score"].to_numpy(), part[DIFFERENCE].to_numpy(), difficulties)
        return estimate_length_controlled(preferences, self.control.baseline).rate

    def _estimate_jackknife(self, statistic: Callable[[np.ndarray], float]) -> tuple[float, float | None]:
        """Return a statistic of the prompts with its standard error, or None if there are too few for the groups."""
        numbers = np.flatnonzero(self.prompts)
        value = statistic(self.prompts)
        if len(numbers) < 2 * GROUPS:
            return value, None
        group = np.arange(len(numbers)) % GROUPS
        without = []
        for left_out in range(GROUPS):
            chosen = np.full(len(self.prompts), False)
            chosen[numbers[group != left_out]] = True
            without.append(statistic(chosen))
        return value, float(np.sqrt((GROUPS - 1) / GROUPS * np.sum((np.array(without) - value) ** 2)))
