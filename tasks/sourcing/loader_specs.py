"""Defines the pydantic models of `loader:`, which specify the origin of a source's rows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tasks.config.cache_keys import ByContent
from tasks.config.fields import FilesInFile
from tasks.config.loading import Config, close_match
from tasks.sourcing.generators import instructions
from tasks.storage.sent_files import FilePath

Paths = FilePath | list[FilePath]
Scalar = bool | int | float | str
Setting = Scalar | list[Scalar]


class JsonlLoader(Config):
    """Files with one JSON object per line, compressed (gzip, bzip2, xz, zstd, lz4, zip of one file) or not.

    Blank lines are skipped; malformed lines are dropped.
    """

    kind: Literal["jsonl"]
    """The loader of JSON Lines files."""
    path: ByContent[FilesInFile[Paths]]
    """A path, a glob or a list of them, as fsspec reads it (`data/*.jsonl`, `s3://bucket/rows.jsonl.gz`). A relative
    path is relative to this file. If a file of that exact name exists, it is used, even if the name contains `[` or
    `*`. As in a shell, a glob skips files and folders whose names begin with a dot, unless it has the dot."""


class ParquetLoader(Config):
    """Parquet files, read batch by batch."""

    kind: Literal["parquet"]
    """The loader of Parquet files."""
    path: ByContent[FilesInFile[Paths]]
    """A path, a glob or a list of them, as fsspec reads it (`data/*.parquet`, `s3://bucket/rows.parquet`). A relative
    path is relative to this file. If a file of that exact name exists, it is used, even if the name contains `[` or
    `*`. As in a shell, a glob skips files and folders whose names begin with a dot, unless it has the dot."""


class CsvLoader(Config):
    """CSV files with names of columns in their first row, compressed or not; cells of a .tsv are separated by tabs.

    Cells are read as text, so that `007` and `None` are unchanged; a blank cell is the empty string.
    """

    kind: Literal["csv"]
    """The loader of CSV files."""
    path: ByContent[FilesInFile[Paths]]
    """A path, a glob or a list of them, as fsspec reads it (`data/*.csv`, `s3://bucket/rows.csv`). A relative path is
    relative to this file. If a file of that exact name exists, it is used, even if the name contains `[` or `*`. As in
    a shell, a glob skips files and folders whose names begin with a dot, unless it has the dot."""


class HuggingFaceLoader(Config):
    """A dataset of the Hugging Face hub at a pinned revision, or files selected by their extensions, streamed.

    JSON integers are exact. CSV cells are read as text, so that `007` and `None` are unchanged; a blank cell is the
    empty string.
    """

    kind: Literal["huggingface"]
    """The loader of hub datasets."""
    dataset: str | None = None
    """Id of a dataset on the hub, such as `openai/gsm8k`. Give either this or `files`."""
    revision: str | None = None
    """Revision of the dataset: a commit hash, so that a later run reads the same data. A branch or a tag is replaced by
    its commit when a run starts. Required with `dataset`."""
    config: str | list[str] | None = None
    """Optional. Configuration of the dataset, such as `main`, or a list of them, which are read one after another. `*`
    and `?` match any text and any character of a name (`"*"`: all). If null, the default configuration is used."""
    config_column: str | None = None
    """Optional. Name of a column that is added to every row with the name of its configuration, for `columns.keep` and
    `strata.by`. If null, no column is added."""
    files: ByContent[FilesInFile[Paths | None]] = None
    """A path, a glob or a list of them, as fsspec reads it; a relative path is relative to this file. Names end in
    .jsonl, .ndjson, .json, .parquet, .csv or .tsv, followed by .gz or a similar extension if the file is compressed.
    Give either this or `dataset`."""
    split: str = "train"
    """Split of the dataset to read. Files have no splits."""

    @model_validator(mode="after")
    def _check_hub_or_files(self) -> HuggingFaceLoader:
        if (self.dataset is None) == (self.files is None):
            raise ValueError("give either dataset (a hub id) or files (local paths), not both or neither")
        if self.dataset is not None and self.revision is None:
            raise ValueError(f"dataset {self.dataset!r} needs a revision (a commit hash), so that runs can be repeated")
        if self.files is not None and (self.revision is not None or self.config is not None):
            raise ValueError("revision and config belong to a hub data set, not to files")
        if self.config_column is not None and self.config is None:
            raise ValueError("config_column contains the names of configurations: give config")
        if self.config == []:
            raise ValueError("config is an empty list; leave it out for the default one")
        return self

    @property
    def configs(self) -> list[str | None]:
        """The configurations to read, in order. None is the default one."""
        return list(self.config) if isinstance(self.config, list) else [self.config]


class ReasoningGymLoader(Config):
    """A generator of reasoning-gym, seeded by the source. It produces the columns `prompt` and `ground_truth`."""

    kind: Literal["reasoning_gym"]
    """The generators of reasoning-gym."""
    dataset: str
    """Name of a reasoning-gym dataset, such as `chain_sum`."""
    size: int = Field(ge=1)
    """Number of questions to generate."""
    config: dict[str, Setting] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Settings of the dataset, as reasoning-gym names them, without `size` and `seed`, which the loader sets."""

    @field_validator("config")
    @classmethod
    def _check_config(cls, config: dict[str, Setting]) -> dict[str, Setting]:
        taken = {"seed", "size"} & config.keys()
        if taken:
            raise ValueError(f"{sorted(taken)} are set by the loader's size and the source's seed")
        return config


class InstructionsLoader(Config):
    """Topics with sampled constraints. It produces the columns `prompt`, `instruction_ids` and `kwargs`.

    The constraints are IFEval's and IF-RLVR's training constraints. By default all whose checkers need no NLTK data are
    used.
    """

    kind: Literal["instructions"]
    """The generator of instruction-following prompts."""
    size: int = Field(ge=1)
    """Number of distinct prompts to generate."""
    constraints: list[str] = Field(default=list(instructions.DEFAULT_CONSTRAINTS), min_length=1)
    """Ids of the constraints to sample from, such as `punctuation:no_comma`. By default all whose checkers need no NLTK
    data."""
    min_constraints: int = Field(default=1, ge=1, le=5)
    """Minimum number of constraints of a prompt."""
    max_constraints: int = Field(default=5, ge=1, le=5)
    """Maximum number of constraints of a prompt. The number is sampled uniformly from this range."""

    @field_validator("constraints")
    @classmethod
    def _check_constraints(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in instructions.CONSTRAINTS:
                accepted = sorted(instructions.CONSTRAINTS)
                raise ValueError(f"unknown constraint {name!r}{close_match(name, accepted)}; accepted: {accepted}")
        if len(set(names)) < len(names):
            raise ValueError(f"a constraint occurs twice in {names}")
        return names

    @model_validator(mode="after")
    def _check_range(self) -> InstructionsLoader:
        if self.min_constraints > self.max_constraints:
            raise ValueError(
                f"min_constraints {self.min_constraints} is larger than max_constraints {self.max_constraints}"
            )
        alone = (
            sorted(set(self.constraints) & set(instructions.ALONE)) if "constraints" in self.model_fields_set else []
        )
        if self.min_constraints > 1 and alone:
            raise ValueError(f"{alone} can only be used alone, but min_constraints is {self.min_constraints}")
        return self


class FunctionsLoader(Config):
    """Tiny Python functions with assertions. It produces the columns `prompt` and `tests`."""

    kind: Literal["functions"]
    """The generator of tiny programming tasks."""
    size: int = Field(ge=1)
    """Number of distinct prompts to generate."""
    tests: int = Field(default=4, ge=3, le=20)
    """Number of assertions of a prompt."""


class TopicsLoader(Config):
    """Short tasks without a right answer, for chat. It produces the column `prompt`."""

    kind: Literal["topics"]
    """The generator of short open tasks."""
    size: int = Field(ge=1)
    """Number of distinct prompts to sample."""


class GuessingLoader(Config):
    """Prompts of the environment `guess_number`. It produces the columns `prompt`, `low` and `high`."""

    kind: Literal["guessing"]
    """The generator of number guessing games."""
    size: int = Field(ge=1)
    """Number of distinct ranges to sample."""
    numbers: int = Field(default=10, ge=2)
    """Size of a range."""
    highest: int = Field(default=1000, ge=2)
    """Largest number of any range. The smallest is 1."""
    examples: int = Field(default=0, ge=0)
    """Number of finished example games with other ranges that precede the question in every prompt, as user and
    assistant turns in the wording of `guess_number`. They show a model that would comment on its guesses to answer with
    a number only, and how to use the answers. If 0, the prompt is only the question."""

    @model_validator(mode="after")
    def _has_ranges_for_examples(self) -> GuessingLoader:
        others = max(self.highest - self.numbers, 0)
        if self.examples > others:
            raise ValueError(
                f"examples = {self.examples}: each is of another range than the prompt's, and in addition there are "
                f"{others} of {self.numbers} numbers up to {self.highest}"
            )
        return self


def _reject_format(loader: Any) -> Any:
    """Reject the name of a file format as a kind, and name the loader that reads that format."""
    kind = loader.get("kind") if isinstance(loader, dict) else None
    if kind == "json":
        raise ValueError(f"kind = {kind!r}: files of JSON are read by {{kind: huggingface, files: PATH}}")
    return loader


Loader = Annotated[
    JsonlLoader
    | ParquetLoader
    | CsvLoader
    | HuggingFaceLoader
    | ReasoningGymLoader
    | InstructionsLoader
    | FunctionsLoader
    | TopicsLoader
    | GuessingLoader,
    Field(discriminator="kind"),
    BeforeValidator(_reject_format),
]
