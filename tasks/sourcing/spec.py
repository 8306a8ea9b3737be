"""What to source: the pydantic models behind `data_specs/*.yaml`.

A spec is checked in full when it is loaded. What needs the data itself (a column that a file lacks, a data set that
does not exist) is checked when the source is opened, before its rows are read.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, get_args

from pydantic import Field, GetPydanticSchema, ValidationInfo, field_validator, model_validator

from tasks.config import Config
from tasks.sourcing.columns import (
    COLUMNS_OF,
    DOMAIN_OF,
    MODES_OF,
    NO_COLUMNS,
    VERIFIERS,
    VERIFIERS_OF,
    Columns,
    Verifier,
)
from tasks.sourcing.loader_specs import Loader
from tasks.tables.schemas import Domain

IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")

VERIFIER_OF_LOADER: dict[str, Verifier] = {"instructions": "precise_if", "functions": "code", "topics": "chat_open"}
"""The generators whose prompts only one verifier can judge."""

Where = Annotated[dict, GetPydanticSchema(lambda _, handler: handler(dict[str, Any]))]
"""Accepted values of columns, or lists of them.

It is `dict[str, Any]` for pydantic, and a plain `dict` for flytekit, which of `Any` warns that it would pickle values.
"""


class RewardSpec(Config):
    """A reward beside that of the source's verifier: a function of the user's own, or another verifier."""

    function: str | None = None
    """Import path of a function with TRL's signature (`tasks.verifiers.functions`), found in the working directory or
    the Python path, such as `rewards.format_reward`."""
    verifier: Verifier | None = None
    """One of the verifiers, which reads the same columns as the source's own."""
    weight: float = 1.0
    """What the reward is multiplied with; below 0 for a penalty."""
    columns: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Columns of the rows that the function gets as keyword arguments, beside `ground_truth`."""

    @model_validator(mode="after")
    def _one_judge(self) -> RewardSpec:
        if (self.function is None) == (self.verifier is None):
            raise ValueError("give either function (an import path) or verifier, not both or neither")
        if self.function is not None and not IMPORT_PATH.fullmatch(self.function):
            raise ValueError(f"function must be an import path such as rewards.format_reward, got {self.function!r}")
        if self.columns and self.function is None:
            raise ValueError("columns are for a function; a verifier reads the source's")
        if self.weight == 0 or not math.isfinite(self.weight):
            raise ValueError(f"weight must be a finite number other than 0, got {self.weight}")
        return self


class RowVerifier(Config):
    """The verifier of each row, by what one of its columns says; a row that says anything else is set aside."""

    column: str
    """Where a row says it: text, or a list of one."""
    names: dict[str, Verifier] = Field(min_length=1)
    """The verifier for each of the data set's names, such as `{ifeval: precise_if}`."""


class SourceSpec(Config):
    """One source of prompts."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="a name without spaces")
    """Unique within its `DataSpec`; becomes the column `source`."""
    domain: Domain | None = Field(default=None, description=f"one of {', '.join(get_args(Domain))}")
    """What the prompts exercise; with `row_verifier` the domain of each row's verifier."""
    verifier: Verifier | None = Field(default=None, description=f"one of {', '.join(VERIFIERS)}")
    """What scores the responses; must be one of its domain's."""
    row_verifier: RowVerifier | None = None
    """In place of both, for a published mixture whose rows name their verifiers."""
    loader: Loader = Field(description="a mapping with a key kind and what that loader needs")
    """Where the rows come from."""
    mode: str | None = None
    """Of the verifier: `sympy` (the default), `gsm8k` or `exact` for math, `strict` (the default) or `loose` for
    precise_if."""
    weight: float = Field(default=1.0, gt=0)
    """Of the verifier's reward, where there are others beside it."""
    rewards: list[RewardSpec] = []  # noqa: RUF012 (pydantic copies defaults)
    """Others beside it; the response's reward is the weighted sum."""
    transform: str | None = None
    """Import path of a function that rewrites rows (`tasks.sourcing.transforms`)."""
    where: Where = {}  # noqa: RUF012 (pydantic copies defaults)
    """Which rows are used: values of columns, or lists of them. Other rows are passed over."""
    columns: Columns = Columns()
    """What the columns mean."""
    limit: int | None = Field(default=None, ge=1)
    """Keep at most this many rows: a sample without replacement that depends on `seed` and on the row's position only.
    It is drawn before unusable rows and duplicates are set aside. None keeps every row."""
    seed: int = 0
    """Of the sample and of the generators; the spec's own where it is not given."""

    @model_validator(mode="after")
    def _judged_one_way(self) -> SourceSpec:
        if self.row_verifier is not None:
            if self.domain is not None or self.verifier is not None:
                raise ValueError("row_verifier stands in place of domain and verifier, not beside them")
            return self
        if self.domain is None or self.verifier is None:
            missing = "domain" if self.domain is None else "verifier"
            accepted = ", ".join(get_args(Domain) if self.domain is None else VERIFIERS)
            raise ValueError(f"{missing}: required key is missing; one of {accepted}; or give row_verifier")
        if self.verifier not in VERIFIERS_OF[self.domain]:
            accepted = ", ".join(VERIFIERS_OF[self.domain])
            raise ValueError(f"verifier {self.verifier!r} does not fit domain {self.domain!r}, which takes {accepted}")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> SourceSpec:
        wanted = VERIFIER_OF_LOADER.get(self.loader.kind)
        if wanted is not None and self.verifier != wanted:
            raise ValueError(f"the loader {self.loader.kind!r} makes prompts for the verifier {wanted!r} only")
        every = {name for names in COLUMNS_OF.values() for name in names}
        unread = (self.columns.model_fields_set & every) - {
            name for each in self.verifiers for name in COLUMNS_OF[each]
        }
        if any(getattr(self.columns, name) != Columns.model_fields[name].default for name in unread):
            read_by = self.verifier or ", ".join(sorted(self.verifiers))
            raise ValueError(f"columns {sorted(unread)} are not read by the verifier {read_by!r}")
        if "{tests}" in (self.columns.template or "") and "code" not in self.verifiers:
            raise ValueError("columns.template: {tests} is for the verifier 'code' only")
        return self

    @field_validator("transform")
    @classmethod
    def _transform_is_a_path(cls, transform: str | None) -> str | None:
        if transform is not None and not IMPORT_PATH.fullmatch(transform):
            raise ValueError("must be an import path such as my_transforms.split")
        return transform

    @model_validator(mode="after")
    def _rewards_fit(self) -> SourceSpec:
        modes = MODES_OF.get(self.verifier, ()) if self.verifier is not None else ()
        if self.mode is not None and self.mode not in modes:
            accepted = ", ".join(modes) or "none"
            raise ValueError(f"mode {self.mode!r} is none of verifier {self.verifier!r}; accepted: {accepted}")
        if self.weight != 1.0 and not self.rewards:
            raise ValueError("weight is for a source with other rewards beside its verifier's")
        if self.rewards and self.weight + math.fsum(reward.weight for reward in self.rewards) <= 0:
            raise ValueError("the weights of the verifier and of the rewards must sum to more than 0")
        return self

    @property
    def verifiers(self) -> set[Verifier]:
        """The verifiers of the source's rows, and those among its other rewards."""
        own = self.row_verifier.names.values() if self.row_verifier else [self.verifier]
        return {each for each in (*own, *(reward.verifier for reward in self.rewards)) if each is not None}

    @property
    def domains(self) -> set[Domain]:
        """What the source's rows exercise."""
        if self.row_verifier is None:
            return {self.domain} if self.domain is not None else set()
        return {DOMAIN_OF[each] for each in self.row_verifier.names.values()}

    def paths(self) -> list[str]:
        """The columns that the source's rows must have, and paths into them."""
        columns = self.columns
        settings = [name for each in sorted(self.verifiers) for name in COLUMNS_OF[each] if name not in NO_COLUMNS]
        named = [getattr(columns, name) for name in dict.fromkeys(settings)]
        handed = [name for reward in self.rewards for name in reward.columns]
        told = [self.row_verifier.column] if self.row_verifier else []
        every = (columns.prompt, *named, *columns.keep, *handed, *told, *self.where)
        return [name for name in dict.fromkeys(every) if name is not None]


class EvaluationSet(Config):
    """Questions that no policy may be trained on: prompts that hold one are set aside (`cleaning.contamination`)."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="a name without spaces")
    """Unique among evaluation sets and sources."""
    loader: Loader = Field(description="a mapping with a key kind and what that loader needs")
    """Where the questions come from."""
    prompt: str = "prompt"
    """The column that holds them, or the path into one."""
    where: Where = {}  # noqa: RUF012 (pydantic copies defaults)
    """Which rows are read, as for a source."""

    @property
    def source(self) -> SourceSpec:
        """The questions as a source, whose answers nobody reads."""
        return SourceSpec(
            name=self.name,
            domain="chat",
            verifier="chat_open",
            loader=self.loader,
            where=self.where,
            columns=Columns(prompt=self.prompt),
        )

    @model_validator(mode="after")
    def _is_a_source(self) -> EvaluationSet:
        if self.loader.kind in {*VERIFIER_OF_LOADER, "reasoning_gym"}:
            raise ValueError(f"the loader {self.loader.kind!r} makes prompts up; an evaluation set is read")
        return self


class DataSpec(Config):
    """The sources of one data set."""

    name: str = Field(description="a name for the data set")
    """Of the data set."""
    seed: int = 0
    """For the sources that do not give their own."""
    max_prompt_chars: int = Field(default=16_000, ge=1)
    """A longer prompt, all messages counted, is set aside."""
    evaluation_sets: list[EvaluationSet] = []  # noqa: RUF012 (pydantic copies defaults)
    """What must not be among the prompts."""
    sources: list[SourceSpec] = Field(min_length=1, description="a list of at least one source")
    """At least one, with unique names."""

    @field_validator("sources")
    @classmethod
    def _unique_and_seeded(cls, sources: list[SourceSpec], info: ValidationInfo) -> list[SourceSpec]:
        evaluated: list[EvaluationSet] = info.data.get("evaluation_sets", [])
        names = [*(each.name for each in evaluated), *(source.name for source in sources)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"names of sources and evaluation sets must be unique; {twice} stand more than once")
        seed = info.data.get("seed", 0)
        return [
            source if "seed" in source.model_fields_set else source.model_copy(update={"seed": seed})
            for source in sources
        ]


class SourceBatch(Config):
    """Sources that are read in one task."""

    sources: list[SourceSpec] = Field(min_length=1)
    """What to read and how."""
    contents: list[str]
    """The digest of what each of them reads (`loaders.fingerprint`), so that changed files miss the cache."""

    @property
    def name(self) -> str:
        """What the batch is called: its source, or how many there are."""
        return self.sources[0].name if len(self.sources) == 1 else f"{len(self.sources)}-sources"
