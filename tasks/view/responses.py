"""Finds the tables of responses of a run, and reads their narrow columns, which decide the log of each response.

    RUN/rollouts.parquet                 responses of the initial checkpoint (difficulty)
    RUN/evaluation_rollouts.parquet      responses of every policy to every benchmark
    RUN/responses/*.parquet              responses of training that `fetch EXECUTION responses` brought
    <run folder>/rollouts/*.parquet      the same of a local run; `summary.json` has the address

Only narrow columns are read here. Texts are read when a log is written, a row group at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.failures import MistakeError
from tasks.storage.run_folders import check_run

PROMPT_TABLES = ("prompts", "mixture", "graded", "heldout", "evaluation_prompts")
"""Tables of a run that may contain the prompt of a response."""
FETCHED = "responses"
"""Name of the folder of a run's results with training's responses from a cluster."""
TOKENS = {"token_ids", "engine_logprobs", "learner_logprobs", "loss_mask", "routes"}
"""Names of columns with a value for each token, which are not read."""
RESPONSES = "responses"
"""Key of `summary.json` with the address of training's responses."""


class ViewError(MistakeError):
    """Raised if there is nothing to view, or no viewer. The message says what to do."""


@dataclass(frozen=True)
class Rows:
    """Rows of a table in one row group: the file, the row group's number, and the rows' numbers in it."""

    file: str
    row_group: int
    rows: list[int]


@dataclass
class ResponseTables:
    """The tables with responses of a run.

    Attributes:
        run: the folder.
        training: files of training's responses, in order.
        difficulty: the table of the initial checkpoint's rollouts, or None.
        evaluation: the table of an evaluation's rollouts, or None.
        prompts: tables of prompts.
        ledger: the table of groups, or None.
        elsewhere: address of training's responses that this machine cannot read, or an empty text.
    """

    run: Path
    training: list[Path] = field(default_factory=list)
    difficulty: Path | None = None
    evaluation: Path | None = None
    prompts: list[Path] = field(default_factory=list)
    ledger: Path | None = None
    elsewhere: str = ""


def find_responses(run: Path) -> ResponseTables:
    """Return the tables of a folder of results (`outputs/latest`) or of a training run (`outputs/runs/NAME`).

    Raises:
        MistakeError: the folder does not exist or contains no responses.
    """
    check_run(run)
    tables = ResponseTables(
        run, prompts=[path for name in PROMPT_TABLES if (path := run / f"{name}.parquet").is_file()]
    )
    tables.ledger = path if (path := run / "ledger.parquet").is_file() else None
    tables.difficulty = path if (path := run / "rollouts.parquet").is_file() else None
    tables.evaluation = path if (path := run / "evaluation_rollouts.parquet").is_file() else None
    address = _find_address(run)
    for folder in (run / FETCHED, run / "rollouts", Path(address)) if address else (run / FETCHED, run / "rollouts"):
        tables.training = tables.training or sorted(folder.glob("*.parquet"))
    if address and not tables.training:
        tables.elsewhere = address
    if not (tables.training or tables.difficulty or tables.evaluation):
        where = f": training has written to {address}, which is not on this machine" if address else ""
        raise ViewError(f"{run} contains no responses{where}; name a run such as outputs/latest or outputs/runs/NAME")
    return tables


def _find_address(run: Path) -> str:
    """Return the address of training's responses in a run's summary, or an empty text."""
    path = run / "summary.json"
    return str(json.loads(path.read_text()).get(RESPONSES) or "") if path.is_file() else ""


def read_columns(path: Path, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the number of each row group of a file and these columns of it, if the file has them.

    Raises:
        ViewError: the file cannot be read, or is not such a table.
    """
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in names if name in file.schema_arrow.names]
            for number in range(file.metadata.num_row_groups):
                yield number, file.read_row_group(number, columns=names)
    except (OSError, pa.ArrowException) as error:
        raise ViewError(f"{path} cannot be read as a table of responses: {str(error).splitlines()[0]}") from error


def read_rows(part: Rows, cache: dict[tuple[str, int], pa.Table]) -> list[dict[str, Any]]:
    """Return rows of a table without the tokens of turns. `cache` keeps the last row group that was read."""
    key = (part.file, part.row_group)
    if key not in cache:
        cache.clear()
        with pq.ParquetFile(part.file) as file:
            cache[key] = file.read_row_group(part.row_group, columns=_drop_token_columns(file.schema))
    return cache[key].take(pa.array(part.rows, pa.int64())).to_pylist()


def _drop_token_columns(schema: pq.ParquetSchema) -> list[str]:
    paths = [schema.column(number).path for number in range(len(schema))]
    return [path for path in paths if not TOKENS.intersection(path.split("."))]
