"""Where the rows of a source come from: the pydantic models behind `loader:`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tasks.config import Config, close_match
from tasks.sourcing.generators import instructions

Paths = str | list[str]
Scalar = bool | int | float | str
Setting = Scalar | list[Scalar]


class JsonlLoader(Config):
    """Lines of JSON objects. Blank lines are passed over; a malformed line is set aside."""

    kind: Literal["jsonl"]
    path: Paths = Field(description="a path, a glob or a list of them, as fsspec reads it; relative to the working dir")


class ParquetLoader(Config):
    """Parquet files, read batch by batch."""

    kind: Literal["parquet"]
    path: Paths = Field(description="a path, a glob or a list of them, as fsspec reads it; relative to the working dir")


class HuggingFaceLoader(Config):
    """A data set of the Hugging Face hub at a pinned revision, or local files through the same library, streamed."""

    kind: Literal["huggingface"]
    dataset: str | None = None
    revision: str | None = None
    config: str | None = None
    files: Paths | None = None
    split: str = "train"

    @model_validator(mode="after")
    def _hub_or_files(self) -> HuggingFaceLoader:
        if (self.dataset is None) == (self.files is None):
            raise ValueError("give either dataset (a hub id) or files (local paths), not both or neither")
        if self.dataset is not None and self.revision is None:
            raise ValueError(f"dataset {self.dataset!r} needs a revision (a commit hash), so that runs can be repeated")
        if self.files is not None and (self.revision is not None or self.config is not None):
            raise ValueError("revision and config belong to a hub data set, not to files")
        return self


class ReasoningGymLoader(Config):
    """A procedural generator of reasoning-gym, seeded by the source; gives the columns `prompt` and `ground_truth`."""

    kind: Literal["reasoning_gym"]
    dataset: str = Field(description="a reasoning-gym data set, such as chain_sum")
    size: int = Field(ge=1, description="how many questions to generate")
    config: dict[str, Setting] = Field(default={}, description="the data set's own settings")

    @field_validator("config")
    @classmethod
    def _leaves_size_and_seed_alone(cls, config: dict[str, Setting]) -> dict[str, Setting]:
        taken = {"seed", "size"} & config.keys()
        if taken:
            raise ValueError(f"{sorted(taken)} are set by the loader's size and the source's seed")
        return config


class InstructionsLoader(Config):
    """Topics with sampled constraints; gives the columns `prompt`, `instruction_ids` and `kwargs`.

    The constraints are IFEval's and IF-RLVR's training ones; without a list, all that need no NLTK data to be judged.
    """

    kind: Literal["instructions"]
    size: int = Field(ge=1, description="how many distinct prompts to generate")
    constraints: list[str] = Field(default=list(instructions.DEFAULT_CONSTRAINTS), min_length=1)
    min_constraints: int = Field(default=1, ge=1, le=5)
    max_constraints: int = Field(default=5, ge=1, le=5)

    @field_validator("constraints")
    @classmethod
    def _known_constraints(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in instructions.CONSTRAINTS:
                accepted = sorted(instructions.CONSTRAINTS)
                raise ValueError(f"unknown constraint {name!r}{close_match(name, accepted)}; accepted: {accepted}")
        if len(set(names)) < len(names):
            raise ValueError(f"a constraint stands twice in {names}")
        return names

    @model_validator(mode="after")
    def _range_in_order(self) -> InstructionsLoader:
        if self.min_constraints > self.max_constraints:
            raise ValueError(
                f"min_constraints {self.min_constraints} is larger than max_constraints {self.max_constraints}"
            )
        alone = (
            sorted(set(self.constraints) & set(instructions.ALONE)) if "constraints" in self.model_fields_set else []
        )
        if self.min_constraints > 1 and alone:
            raise ValueError(f"{alone} can only stand alone, but min_constraints is {self.min_constraints}")
        return self


class FunctionsLoader(Config):
    """Tiny Python functions with assertions; gives the columns `prompt` and `tests`."""

    kind: Literal["functions"]
    size: int = Field(ge=1, description="how many distinct prompts to generate")
    tests: int = Field(default=4, ge=3, le=20)


class TopicsLoader(Config):
    """Short tasks without a right answer, for chat; gives the column `prompt`."""

    kind: Literal["topics"]
    size: int = Field(ge=1, description="how many distinct prompts to draw")


Loader = Annotated[
    JsonlLoader
    | ParquetLoader
    | HuggingFaceLoader
    | ReasoningGymLoader
    | InstructionsLoader
    | FunctionsLoader
    | TopicsLoader,
    Field(discriminator="kind"),
]
