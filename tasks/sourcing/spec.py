"""What to source: the pydantic models behind `data_specs/*.yaml`.

A spec is checked in full when it is loaded. What needs the data itself (a column that a file lacks, a data set that
does not exist) is checked when the source is opened, before its rows are read.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tasks.config import Config, close_match
from tasks.schemas import Domain
from tasks.sourcing.generators import instructions

Verifier = Literal["math", "code", "precise_if", "chat_reference", "chat_open"]
VERIFIERS: tuple[Verifier, ...] = get_args(Verifier)

MODES_OF: dict[Verifier, tuple[str, ...]] = {"math": ("sympy", "gsm8k", "exact"), "precise_if": ("strict", "loose")}

VERIFIERS_OF: dict[Domain, tuple[Verifier, ...]] = {
    "math": ("math",),
    "code": ("code",),
    "precise_if": ("precise_if",),
    "chat": ("chat_reference", "chat_open"),
}

COLUMNS_OF: dict[Verifier, tuple[str, ...]] = {
    "math": ("ground_truth", "ground_truth_pattern"),
    "code": ("tests", "setup"),
    "precise_if": ("instruction_ids", "kwargs"),
    "chat_reference": ("ground_truth", "ground_truth_pattern"),
    "chat_open": (),
}
"""The column settings that only some verifiers read."""

Paths = str | list[str]
Scalar = bool | int | float | str
Setting = Scalar | list[Scalar]


class JsonlLoader(Config):
    """Lines of JSON objects. Blank lines are passed over; a malformed line is set aside as a rejected row."""

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

VERIFIER_OF_LOADER: dict[str, Verifier] = {"instructions": "precise_if", "functions": "code", "topics": "chat_open"}
"""The generators whose prompts only one verifier can judge."""


class Columns(Config):
    """Which column of a row means what; the defaults are the columns that the generators give.

    Attributes:
        prompt: the prompt: text, or a list of messages `{role, content}` that ends with the user's.
        system: a system prompt (the text itself, not a column) put before every prompt.
        template: text in which `{prompt}` (and `{tests}`, for code) is replaced; applied to the last user message.
        ground_truth: the expected answer: text, a number, or for math also a list of texts of which one must match.
        ground_truth_pattern: regular expression that finds the answer inside that column: its group if it has one,
            its last match if it has several (GSM8K: `#### (.+)`).
        instruction_ids: list of constraint ids (`tasks.verifiers.instructions.arguments`).
        kwargs: list of the arguments of these constraints; nulls in them are dropped.
        tests: list of assertions, or of `{input, output}` pairs for standard input and output.
        setup: code that runs before the assertions; no column means none.
        keep: columns that are carried along in the prompt's metadata.
    """

    prompt: str = "prompt"
    system: str | None = None
    template: str | None = None
    ground_truth: str = "ground_truth"
    ground_truth_pattern: str | None = None
    instruction_ids: str = "instruction_ids"
    kwargs: str = "kwargs"
    tests: str = "tests"
    setup: str | None = None
    keep: list[str] = []  # noqa: RUF012 (pydantic copies defaults)

    @field_validator("template")
    @classmethod
    def _template_holds_the_prompt(cls, template: str | None) -> str | None:
        if template is not None and "{prompt}" not in template:
            raise ValueError("must contain {prompt}")
        return template

    @field_validator("ground_truth_pattern")
    @classmethod
    def _pattern_compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
            if groups > 1:
                raise ValueError(f"has {groups} groups; at most one may hold the answer")
        return pattern


class RewardSpec(Config):
    """A reward beside that of the source's verifier: a function of the user's own, or another verifier.

    Attributes:
        function: import path of a function with TRL's signature (`tasks.verifiers.functions`), found in the working
            directory or the Python path, such as `rewards.format_reward`.
        verifier: one of the verifiers, which reads the same columns as the source's own.
        weight: what the reward is multiplied with; below 0 for a penalty.
        columns: columns of the rows that the function gets as keyword arguments, beside `ground_truth`.
    """

    function: str | None = None
    verifier: Verifier | None = None
    weight: float = 1.0
    columns: list[str] = []  # noqa: RUF012 (pydantic copies defaults)

    @model_validator(mode="after")
    def _one_judge(self) -> RewardSpec:
        if (self.function is None) == (self.verifier is None):
            raise ValueError("give either function (an import path) or verifier, not both or neither")
        if self.function is not None and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", self.function):
            raise ValueError(f"function must be an import path such as rewards.format_reward, got {self.function!r}")
        if self.columns and self.function is None:
            raise ValueError("columns are for a function; a verifier reads the source's")
        if self.weight == 0 or not math.isfinite(self.weight):
            raise ValueError(f"weight must be a finite number other than 0, got {self.weight}")
        return self


class SourceSpec(Config):
    """One source of prompts.

    Attributes:
        name: unique within its `DataSpec`; becomes the column `source`.
        domain: what the prompts exercise.
        verifier: what scores the responses; must be one of its domain's.
        mode: of the verifier: `sympy` (the default), `gsm8k` or `exact` for math, `strict` (the default) or `loose` for
            precise_if.
        weight: of the verifier's reward, where there are others beside it.
        rewards: others beside it; the response's reward is the weighted sum.
        loader: where the rows come from.
        columns: what their columns mean.
        limit: keep at most this many rows: a sample without replacement that depends on `seed` and on the row's
            position only. It is drawn before unusable rows and duplicates are set aside. None keeps every row.
        seed: of the sample and of the generators; the spec's own where it is not given.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="a name without spaces")
    domain: Domain = Field(description=f"one of {', '.join(get_args(Domain))}")
    verifier: Verifier = Field(description=f"one of {', '.join(VERIFIERS)}")
    loader: Loader = Field(description="a mapping with a key kind and what that loader needs")
    mode: str | None = None
    weight: float = Field(default=1.0, gt=0)
    rewards: list[RewardSpec] = []  # noqa: RUF012 (pydantic copies defaults)
    columns: Columns = Columns()
    limit: int | None = Field(default=None, ge=1)
    seed: int = 0

    @model_validator(mode="after")
    def _parts_fit(self) -> SourceSpec:
        if self.verifier not in VERIFIERS_OF[self.domain]:
            accepted = ", ".join(VERIFIERS_OF[self.domain])
            raise ValueError(f"verifier {self.verifier!r} does not fit domain {self.domain!r}, which takes {accepted}")
        wanted = VERIFIER_OF_LOADER.get(self.loader.kind, self.verifier)
        if self.verifier != wanted:
            raise ValueError(f"the loader {self.loader.kind!r} makes prompts for the verifier {wanted!r} only")
        every = {name for names in COLUMNS_OF.values() for name in names}
        unread = (self.columns.model_fields_set & every) - {
            name for each in self.verifiers for name in COLUMNS_OF[each]
        }
        if any(getattr(self.columns, name) != Columns.model_fields[name].default for name in unread):
            raise ValueError(f"columns {sorted(unread)} are not read by the verifier {self.verifier!r}")
        if "{tests}" in (self.columns.template or "") and self.verifier != "code":
            raise ValueError("columns.template: {tests} is for the verifier 'code' only")
        return self

    @model_validator(mode="after")
    def _rewards_fit(self) -> SourceSpec:
        if self.mode is not None and self.mode not in MODES_OF.get(self.verifier, ()):
            accepted = ", ".join(MODES_OF.get(self.verifier, ())) or "none"
            raise ValueError(f"mode {self.mode!r} is none of verifier {self.verifier!r}; accepted: {accepted}")
        if self.weight != 1.0 and not self.rewards:
            raise ValueError("weight is for a source with other rewards beside its verifier's")
        if self.rewards and self.weight + math.fsum(reward.weight for reward in self.rewards) <= 0:
            raise ValueError("the weights of the verifier and of the rewards must sum to more than 0")
        return self

    @property
    def verifiers(self) -> set[Verifier]:
        """The source's verifier, and those among its other rewards."""
        return {self.verifier, *(reward.verifier for reward in self.rewards if reward.verifier is not None)}

    def column_names(self) -> list[str]:
        """The columns that the source's rows must have."""
        columns = self.columns
        settings = [name for each in sorted(self.verifiers) for name in COLUMNS_OF[each]]
        named = [getattr(columns, name) for name in dict.fromkeys(settings) if name != "ground_truth_pattern"]
        handed = [name for reward in self.rewards for name in reward.columns]
        return [name for name in dict.fromkeys((columns.prompt, *named, *columns.keep, *handed)) if name is not None]


class DataSpec(Config):
    """The sources of one data set.

    Attributes:
        name: of the data set.
        seed: for the sources that do not give their own.
        max_prompt_chars: a longer prompt, all messages counted, is set aside.
        sources: at least one, with unique names.
    """

    name: str = Field(description="a name for the data set")
    seed: int = 0
    max_prompt_chars: int = Field(default=16_000, ge=1)
    sources: list[SourceSpec] = Field(min_length=1, description="a list of at least one source")

    @field_validator("sources")
    @classmethod
    def _unique_and_seeded(cls, sources: list[SourceSpec], info: ValidationInfo) -> list[SourceSpec]:
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"source names must be unique; {twice} stand more than once")
        seed = info.data.get("seed", 0)
        return [
            source if "seed" in source.model_fields_set else source.model_copy(update={"seed": seed})
            for source in sources
        ]


class SourceBatch(Config):
    """Sources that are read in one task.

    Attributes:
        sources: what to read and how.
        contents: the digest of what each of them reads (`loaders.fingerprint`), so that changed files miss the cache.
    """

    sources: list[SourceSpec] = Field(min_length=1)
    contents: list[str]

    @property
    def name(self) -> str:
        """What the batch is called: its source, or how many there are."""
        return self.sources[0].name if len(self.sources) == 1 else f"{len(self.sources)}-sources"
