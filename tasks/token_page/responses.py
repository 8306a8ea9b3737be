"""Reads the tokens of a training step's responses from the files of a run.

RUN/rollouts/*.parquet     of a training run, outputs/runs/NAME
RUN/responses/*.parquet    of results that were fetched from a cluster
RUN/summary.json           of other results: `responses` has the address of the files
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.failures import MistakeError
from tasks.tables.json_lines import read_json_lines
from tasks.tables.parquet import read_batches, validate
from tasks.training.records.kept_tokens import TOKEN_COLUMNS
from tasks.training.records.response_files import TRAINING_ROLLOUTS
from tasks.view.responses import find_responses

BATCH = 64
"""Number of responses that are read at a time: with 30,000 tokens each they take 30 MB."""
_NARROW = pa.schema([TRAINING_ROLLOUTS.field(name) for name in ("group", "prompt_id", "fate", "step")])
_ABOUT = ("group", "sample", "prompt_id", "finish_reason", "score", "passed", "detail")
_READ = pa.schema([*(TRAINING_ROLLOUTS.field(name) for name in _ABOUT), *TOKEN_COLUMNS])


@dataclass(frozen=True)
class TokenRow:
    """A response with its tokens.

    Attributes:
        about: its columns other than lists.
        ids: `[n]`, token ids.
        engine: `[n]`, log-probabilities of the engine, nats.
        learner: `[n]`, log-probabilities of the learner, nats, 0 outside the mask.
        mask: `[n]`, true for tokens in the loss.
        advantages: `[n]`, 0 for a response that no step was taken on.
    """

    about: dict[str, Any]
    ids: NDArray[np.int32]
    engine: NDArray[np.float32]
    learner: NDArray[np.float32]
    mask: NDArray[np.bool_]
    advantages: NDArray[np.float32]

    @property
    def differences(self) -> NDArray[np.float32]:
        """`[n]`, the learner's log-probability minus the engine's, nats; 0 outside the mask."""
        return np.where(self.mask, self.learner - self.engine, np.float32(0))


@dataclass
class StepRead:
    """Contains the responses of a training step whose tokens are in the run's files (`keep_tokens`).

    Attributes:
        folder: the folder of the files of responses.
        step: number of the step.
        prompt: beginning of the ids of the prompts that were read, or "" for all.
        groups: number of groups that the step trained on.
        rows: the responses with tokens, by group and sample.
        mismatch: the metric `mismatch` of the step, nats, or None if it is not known.
    """

    folder: Path
    step: int
    prompt: str = ""
    groups: int = 0
    rows: list[TokenRow] = field(default_factory=list)
    mismatch: float | None = None


def read_step(run: Path, step: int, prompt: str = "") -> StepRead:
    """Read the tokens of a step's responses to the prompts whose ids begin with `prompt`.

    Raises:
        MistakeError: the run has no responses on this machine, kept no tokens, or kept none of the step or prompt.
        TableError: a file cannot be read.
    """
    folder = find_response_folder(run)
    files = sorted(folder.glob("*.parquet"))
    read = StepRead(folder, step, prompt, mismatch=_read_mismatch(run, folder, step))
    groups: set[int] = set()
    steps: set[int] = set()
    for file in files:
        has_step = False
        for table in read_batches(file, _NARROW):
            trained = table.filter(pc.equal(table.column("fate"), "trained"))
            of_step = trained.filter(pc.equal(trained.column("step"), step))
            steps |= set(pc.unique(trained.column("step")).to_pylist())
            groups |= set(of_step.column("group").to_pylist())
            has_step = has_step or of_step.num_rows > 0
        if has_step:
            read.rows += _read_rows(file, step, prompt)
    read.groups = len(groups)
    read.rows.sort(key=lambda row: (row.about["group"], row.about["sample"]))
    if not read.rows:
        raise MistakeError(_why_none(run, read, files, steps))
    return read


def find_response_folder(run: Path) -> Path:
    """Return the folder of a run's files of training's responses.

    Raises:
        MistakeError: the folder is not a run, or its responses are not on this machine.
    """
    tables = find_responses(run)
    if tables.training:
        return tables.training[0].parent
    if tables.elsewhere:
        raise MistakeError(f"{run}: its responses are in {tables.elsewhere}, which is not on this machine")
    raise MistakeError(
        f"{run} contains no responses of training, but others: name its run folder, such as outputs/runs/NAME, which "
        "has them if keep_rollouts is true"
    )


def find_tokenizer_folder(run: Path, responses: Path) -> Path:
    """Return the folder of an exported policy, which has the run's tokenizer.

    Raises:
        MistakeError: no policy has been exported yet.
    """
    exported = sorted((responses.parent / "policies").glob("*"))
    for folder in (run / "policy", responses.parent / "policy", *exported):
        if (folder / "tokenizer_config.json").is_file():
            return folder
    raise MistakeError(
        f"{run} has exported no policy yet, whose tokenizer decodes the tokens: name the initial model with --model"
    )


def _read_rows(file: Path, step: int, prompt: str) -> list[TokenRow]:
    """Return the responses with tokens of a step in a file."""
    rows: list[TokenRow] = []
    with pq.ParquetFile(file) as opened:
        names = [name for name in (*_READ.names, "fate", "step") if name in opened.schema_arrow.names]
        for batch in opened.iter_batches(BATCH, columns=names):
            table = pa.Table.from_batches([batch])
            of_step = pc.and_(pc.equal(table.column("fate"), "trained"), pc.equal(table.column("step"), step))
            chosen = validate(table.filter(of_step).select([n for n in names if n in _READ.names]), _READ, str(file))
            chosen = chosen.filter(pc.is_valid(chosen.column("token_ids")))
            chosen = chosen.filter(pc.starts_with(chosen.column("prompt_id"), prompt))
            rows += [_make_row(chosen.slice(number, 1)) for number in range(chosen.num_rows)]
    return rows


def _make_row(table: pa.Table) -> TokenRow:
    [about] = table.select([*_ABOUT, "advantage"]).to_pylist()
    ids = _read_array(table, "token_ids", np.int32, 0)
    advantages = _read_array(table, "token_advantages", np.float32, len(ids))
    if about["advantage"] is not None:
        advantages[:] = about["advantage"]
    return TokenRow(
        about,
        ids,
        _read_array(table, "engine_logprobs", np.float32, len(ids)),
        _read_array(table, "learner_logprobs", np.float32, len(ids)),
        _read_array(table, "loss_mask", np.bool_, len(ids)),
        advantages,
    )


def _read_array(table: pa.Table, name: str, kind: Any, length: int) -> NDArray[Any]:
    """Return a list of the only row as an array, or `length` zeros if it is null."""
    scalar = table.column(name)[0]
    if not scalar.is_valid:
        return np.zeros(length, kind)
    return scalar.values.to_numpy(zero_copy_only=False).astype(kind)


def _read_mismatch(run: Path, folder: Path, step: int) -> float | None:
    for path in (run / "metrics.jsonl", folder.parent / "metrics.jsonl"):
        if path.is_file():
            return next((row.get("mismatch") for row in read_json_lines(path) if row.get("step") == step), None)
    return None


def _why_none(run: Path, read: StepRead, files: list[Path], steps: set[int]) -> str:
    """Return the reason why a step has no tokens."""
    if read.step not in steps:
        known = f"its responses are of the steps {min(steps)} to {max(steps)}" if steps else "it has trained no step"
        return f"{run} has no step {read.step}: {known}"
    if read.prompt and read_step(run, read.step).rows:
        return f"{run}: step {read.step} has no tokens of a prompt whose id begins with {read.prompt!r}"
    if any(_has_tokens(file) for file in files):
        return (
            f"{run}: no group of step {read.step} is among those whose tokens were kept; a larger keep_tokens keeps "
            "more, and 1 all"
        )
    return f"{run} kept no tokens: set keep_tokens in its recipe, the share of the groups whose tokens are written"


def _has_tokens(file: Path) -> bool:
    ids = pa.schema([TRAINING_ROLLOUTS.field("token_ids")])
    return any(table.column("token_ids").null_count < table.num_rows for table in read_batches(file, ids))
