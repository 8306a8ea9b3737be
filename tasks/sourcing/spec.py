"""Defines the pydantic models of `data_specs/*.yaml`: sources of prompts, and evaluation sets.

A spec is fully validated when it is loaded. Errors that depend on the data (a column is missing, a dataset does not
exist) are found when the source is opened, before its rows are read.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from tasks.config.fields import UserCode
from tasks.config.loading import Config, close_match
from tasks.sourcing.columns import (
    COLUMNS_OF,
    DOMAIN_OF,
    IN_REWARDS,
    MODES_OF,
    NO_COLUMNS,
    OF_ANY_DOMAIN,
    VERIFIERS,
    VERIFIERS_OF,
    BuiltInVerifier,
    Columns,
    RewardVerifier,
    Verifier,
    list_columns,
)
from tasks.sourcing.environment_options import EnvironmentOptions
from tasks.sourcing.fields import IMPORT_PATH, Where
from tasks.sourcing.loader_specs import Loader
from tasks.tables.schemas import DOMAINS
from tasks.verifiers.scores import is_own

VERIFIER_OF_LOADER: dict[str, BuiltInVerifier] = {
    "instructions": "precise_if",
    "functions": "code",
    "topics": "chat_open",
}
"""The generators whose prompts can only be scored by one verifier."""


def _check_factor(value: Any) -> Any:
    """Reject with one message any value that is neither a factor nor `inf`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or value == "inf" or (is_number and 1 < value < math.inf):
        return value
    raise ValueError("must be a number above 1, or inf")


TopUp = Annotated[Annotated[float, Field(gt=1, allow_inf_nan=False)] | Literal["inf"], BeforeValidator(_check_factor)]
"""A multiple of a source's limit. Infinity is text, because JSON has no number for it."""


class RewardSpec(Config):
    """A reward of a source: a function, an additional verifier, or a reward model."""

    function: UserCode[str | None] = None
    """Import path of a function with TRL's signature (`tasks.verifiers.functions`), such as `rewards.format_reward`, in
    the folder of this file, the working directory or on the Python path. Give exactly one of this, `verifier` and
    `reward_model`."""
    verifier: UserCode[RewardVerifier | None] = None
    """Name of an additional verifier, or the import path of your own. It reads the same columns as the source's
    verifier. Give exactly one of this, `function` and `reward_model`."""
    reward_model: str | None = None
    """Name of one of `verifiers.reward_models` of the data file. Give exactly one of this, `function` and
    `verifier`."""
    weight: float = 1.0
    """Weight of the reward in the sum; below 0 for a penalty."""
    columns: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Columns of the row that are passed to the function as keyword arguments, in addition to `ground_truth`."""
    group: bool = False
    """If true, the function is called once for all responses to a prompt (a ranking, their diversity) and returns a
    number or None for each of them. If false, it is called for each response separately."""

    @model_validator(mode="after")
    def _check_one_judge(self) -> RewardSpec:
        if [self.function, self.verifier, self.reward_model].count(None) != 2:
            raise ValueError("give one of function (an import path), verifier and reward_model, and no other")
        if self.function is not None and not IMPORT_PATH.fullmatch(self.function):
            raise ValueError(f"function must be an import path such as rewards.format_reward, got {self.function!r}")
        if self.columns and self.function is None:
            raise ValueError(
                "only a function has columns; a verifier reads the source's, and a reward model reads none"
            )
        if self.group and self.function is None:
            raise ValueError("group is for a function; a verifier scores each response alone")
        if self.weight == 0 or not math.isfinite(self.weight):
            raise ValueError(f"weight must be a finite number other than 0, got {self.weight}")
        return self


class RowVerifier(Config):
    """Selects the verifier of each row by the value of one of its columns. A row with another value is dropped."""

    column: str
    """Column that names the row's verifier: text, or a list of one."""
    names: dict[str, BuiltInVerifier] = Field(min_length=1)
    """Verifier for each value of the column, such as `{ifeval: precise_if}`."""


class SourceSpec(Config):
    """One source of prompts."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the source, without spaces and unique in the data file. It becomes the column `source`."""
    domain: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Domain of the prompts: any name without spaces. `math`, `code`, `precise_if` and `chat` only accept verifiers of
    their domain. Not used with `row_verifier`; the domain is then that of the row's verifier."""
    verifier: UserCode[Verifier | None] = None
    """Verifier that scores the responses: `math`, `code`, `precise_if`, `chat_reference`, `chat_open`; or the import
    path of your own, such as `my_verifiers.chess`, a module in the folder of this file, the working directory or on the
    Python path (`tasks.verifiers.custom`); or `function` or `reward_model`, which use only `rewards`, and the first
    reward, which must be of that kind, decides whether a response passes; or `environment`, the reward that
    `environment` returns."""
    row_verifier: RowVerifier | None = None
    """Verifier of each row, instead of `domain` and `verifier`, for a published mixture whose rows name their
    verifiers."""
    loader: Loader
    """Origin of the rows: a mapping with the key `kind` and the options of that loader."""
    environment: EnvironmentOptions | None = None
    """Optional. Environment that responds between the turns of an episode. If null, prompts are answered in a single
    turn."""
    mode: str | None = None
    """Optional. Mode of the verifier: `sympy` (the default), `gsm8k` or `exact` for math, `strict` (the default),
    `loose` or `both` for precise_if, `grade` (the default) or `pairwise` for chat_reference. If null, the default is
    used. `both` scores like `strict` and also reports the proportions of constraints met, under the names `strict` and
    `loose`, for the four rates of IFEval. It is not useful in training: the reward is that of `strict`, and it takes
    more time. `pairwise` compares the response with the reference, as AlpacaEval 2 does: the score is the probability
    that the judge prefers the response."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of the verifier's reward in the sum, if there are `rewards`. Not used with `verifier: function` and
    `reward_model`."""
    rewards: list[RewardSpec] = []  # noqa: RUF012 (pydantic copies defaults)
    """Further rewards in addition to the verifier's, or all of them with `verifier: function` or `reward_model`.
    Training maximises the weighted sum. A score is the weighted mean, clipped to [0, 1]. Only the first reward decides
    whether a response passes; it is the verifier's if there is one."""
    transform: UserCode[str | None] = None
    """Optional. Import path of a function that rewrites rows (`tasks.sourcing.transforms`), such as
    `my_transforms.split`. If null, rows are used as they are."""
    where: Where = {}  # noqa: RUF012 (pydantic copies defaults)
    """Values of columns, or lists of them, that a row must have to be used; other rows are skipped. A list of one item
    in a row counts as the item."""
    columns: Columns = Columns()
    """Mapping of the row's columns to the parts of a prompt."""
    limit: int | None = Field(default=None, ge=1)
    """Optional. Maximum number of rows to read: a sample without replacement that depends only on `seed` and the row's
    number, taken before unusable rows and duplicates are dropped. If null, all rows are read."""
    top_up: TopUp | None = None
    """Optional. Rows to read as a multiple of `limit`, so that `limit` prompts remain after unusable rows, duplicates
    and the difficulty filter. If more remain, the prompts whose rows come first in the sample are kept. `inf`: all rows
    are read, and all prompts are sampled for difficulty. If null, `limit` rows are read, and fewer prompts remain."""
    seed: int = 0
    """Seed of the sample (`limit`) and of the generators. By default the seed of the data file."""
    fingerprint: str | None = None
    """Digest of everything that the source reads (rows, and the user's code). It is set before a run, so that a changed
    file misses the cache."""

    @property
    def rows_to_read(self) -> int | None:
        """The maximum number of rows to read, or None for all."""
        if self.limit is None or self.top_up == "inf":
            return None
        return math.ceil(self.limit * (self.top_up or 1))

    @model_validator(mode="after")
    def _check_top_up(self) -> SourceSpec:
        if self.top_up is not None and self.limit is None:
            raise ValueError("top_up is a multiple of limit: give limit")
        return self

    @model_validator(mode="after")
    def _check_one_way(self) -> SourceSpec:
        if self.row_verifier is not None:
            if self.domain is not None or self.verifier is not None:
                raise ValueError("row_verifier replaces domain and verifier; leave those out")
            return self
        if self.domain is None or self.verifier is None:
            missing = "domain" if self.domain is None else "verifier"
            accepted = ", ".join(DOMAINS if self.domain is None else VERIFIERS)
            other = "any other name" if self.domain is None else "the import path of a custom one"
            raise ValueError(f"{missing}: required key is missing; one of {accepted}, or {other}; or give row_verifier")
        if self.verifier == "environment" and self.environment is None:
            raise ValueError("verifier: environment needs the option environment, which gives the reward")
        fitting = {str(domain): names for domain, names in VERIFIERS_OF.items()}.get(self.domain)
        if fitting is not None and self.verifier in VERIFIERS and self.verifier not in (*fitting, *OF_ANY_DOMAIN):
            accepted = ", ".join((*fitting, *OF_ANY_DOMAIN))
            raise ValueError(
                f"verifier {self.verifier!r} does not fit domain {self.domain!r}, which accepts {accepted}, or a "
                "custom one; a domain with another name accepts any"
            )
        return self

    @model_validator(mode="after")
    def _check_parts(self) -> SourceSpec:
        wanted = VERIFIER_OF_LOADER.get(self.loader.kind)
        if wanted is not None and self.verifier != wanted:
            raise ValueError(f"the loader {self.loader.kind!r} generates prompts only for the verifier {wanted!r}")
        every = {name for names in COLUMNS_OF.values() for name in names}
        unread = (self.columns.model_fields_set & every) - {
            name for verifier in self._readers for name in list_columns(verifier)
        }
        if any(getattr(self.columns, name) != Columns.model_fields[name].default for name in unread):
            read_by = self.verifier or ", ".join(sorted(self.verifiers))
            raise ValueError(f"columns {sorted(unread)} are not read by the verifier {read_by!r}")
        if "{tests}" in (self.columns.template or "") and "code" not in self.verifiers:
            raise ValueError("columns.template: {tests} is for the verifier 'code' only")
        return self

    @field_validator("transform")
    @classmethod
    def _check_transform(cls, transform: str | None) -> str | None:
        if transform is not None and not IMPORT_PATH.fullmatch(transform):
            raise ValueError("must be an import path such as my_transforms.split")
        return transform

    @model_validator(mode="after")
    def _check_rewards(self) -> SourceSpec:
        modes = MODES_OF.get(self.verifier, ()) if self.verifier is not None else ()
        if self.mode is not None and self.mode not in modes:
            accepted = ", ".join(modes) or "none"
            raise ValueError(f"verifier {self.verifier!r} has no mode {self.mode!r}; accepted: {accepted}")
        if self.environment is not None and any(reward.group for reward in self.rewards):
            raise ValueError("with an environment, rewards score single responses: leave out group")
        if self.verifier == "environment" and self.rewards:
            raise ValueError("rewards are for a verifier; with verifier: environment, its reward is the only one")
        if self.verifier in IN_REWARDS:
            return self._check_judged_by_rewards(self.verifier)
        if self.weight != 1.0 and not self.rewards:
            raise ValueError("weight is for a source with other rewards in addition to its verifier's")
        if self.rewards and self.weight + math.fsum(reward.weight for reward in self.rewards) <= 0:
            raise ValueError("the weights of the verifier and of the rewards must sum to more than 0")
        return self

    def _check_judged_by_rewards(self, kind: str) -> SourceSpec:
        if not self.rewards or getattr(self.rewards[0], kind) is None:
            example = {"function": "my_rewards.score", "reward_model": "helpful"}[kind]
            raise ValueError(
                f"verifier: {kind} needs rewards: a list that begins with a {kind.replace('_', ' ')}, such as "
                f"rewards: [{{{kind}: {example}}}]"
            )
        if self.weight != 1.0:
            raise ValueError(f"weight is for a verifier; with verifier: {kind}, give each reward its own")
        if math.fsum(reward.weight for reward in self.rewards) <= 0:
            raise ValueError("the weights of the rewards must sum to more than 0")
        return self

    @property
    def verifiers(self) -> set[str]:
        """The verifiers of the source's rows and of its further rewards, without functions."""
        own = self.row_verifier.names.values() if self.row_verifier else [self.verifier]
        models = ["reward_model"] if self.reward_models else []
        return {name for name in (*own, *models, *(reward.verifier for reward in self.rewards)) if name is not None}

    @property
    def reward_models(self) -> list[str]:
        """The names of the reward models among the source's rewards."""
        return [reward.reward_model for reward in self.rewards if reward.reward_model is not None]

    @property
    def _readers(self) -> set[str]:
        """The verifiers whose columns are read. Functions next to reward models also get a ground truth."""
        return self.verifiers | ({"function"} if self.verifier in IN_REWARDS else set())

    def get_domain(self, verifier: str) -> str:
        """Return the domain of a row with this verifier."""
        return self.domain or {str(name): domain for name, domain in DOMAIN_OF.items()}[verifier]

    @property
    def code_of_the_user(self) -> set[str]:
        """The import paths of functions, verifiers and environment that are not part of this project."""
        functions = {reward.function for reward in self.rewards if reward.function is not None}
        environment = set(self.environment.code_of_the_user) if self.environment else set()
        return functions | environment | {name for name in self.verifiers if is_own(name)}

    @property
    def domains(self) -> set[str]:
        """The domains of the source's rows."""
        if self.row_verifier is None:
            return {self.domain} if self.domain is not None else set()
        return {DOMAIN_OF[name] for name in self.row_verifier.names.values()}

    def paths(self) -> list[str]:
        """Return the columns that the source's rows must have, and paths into them."""
        columns = self.columns
        settings = [name for verifier in sorted(self._readers) for name in list_columns(verifier)]
        named = [getattr(columns, name) for name in dict.fromkeys(settings) if name not in NO_COLUMNS]
        ours = {name for name in self._readers if name in VERIFIERS and name not in IN_REWARDS}
        is_needed = any("ground_truth" in list_columns(name) for name in ours)
        if not is_needed and columns.ground_truth == Columns().ground_truth:
            named = [name for name in named if name != columns.ground_truth]  # the column is optional
        handed = [name for reward in self.rewards for name in reward.columns]
        naming = [self.row_verifier.column] if self.row_verifier else []
        handed += self.environment.columns if self.environment else []
        every = (columns.prompt, *named, *columns.keep, *handed, *naming, *self.where)
        return [name for name in dict.fromkeys(every) if name is not None]


class EvaluationSet(Config):
    """Questions that no policy may be trained on. Prompts that contain one are dropped (`cleaning.contamination`)."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the set, unique among evaluation sets and sources."""
    loader: Loader
    """Origin of the questions: a mapping with the key `kind`, of a loader that reads files or the hub, and its
    options."""
    prompt: str = "prompt"
    """Column of the questions, or a path into one."""
    transform: UserCode[str | None] = None
    """Optional. Import path of a function that rewrites rows, as for a source. If null, rows are used as they are."""
    where: Where = {}  # noqa: RUF012 (pydantic copies defaults)
    """Values of columns, or lists of them, that a row must have to be read; other rows are skipped."""
    fingerprint: str | None = None
    """Digest of everything that is read, which is set before a run, as for a source."""

    @property
    def source(self) -> SourceSpec:
        """The questions as a source. Their answers are not read."""
        return SourceSpec(
            name=self.name,
            domain="chat",
            verifier="chat_open",
            loader=self.loader,
            transform=self.transform,
            where=self.where,
            columns=Columns(prompt=self.prompt),
            fingerprint=self.fingerprint,
        )

    @model_validator(mode="after")
    def _is_a_source(self) -> EvaluationSet:
        if self.loader.kind in {*VERIFIER_OF_LOADER, "reasoning_gym"}:
            raise ValueError(f"the loader {self.loader.kind!r} generates prompts, but an evaluation set must be read")
        return self


class DataSpec(Config):
    """The sources of one dataset."""

    name: str
    """Name of the dataset, used in titles."""
    seed: int = 0
    """Seed of the sources that do not give their own."""
    max_prompt_chars: int = Field(default=16_000, ge=1)
    """Maximum number of characters of all messages of a prompt. A longer prompt is dropped."""
    evaluation_sets: list[EvaluationSet] = []  # noqa: RUF012 (pydantic copies defaults)
    """Questions that must not be among the prompts."""
    sources: list[SourceSpec] = Field(min_length=1)
    """List of at least one source; their names are unique."""
    leave_out: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Names of sources to skip, for example because they cannot be opened. Every run logs a line about each."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        known = [source.name for source in self.sources]
        for name in self.leave_out:
            if name not in known:
                raise ValueError(f"leave_out: no source is called {name!r}{close_match(name, known)}")
        if not self.used_sources:
            raise ValueError("leave_out names every source: nothing would be read")
        return self

    @property
    def used_sources(self) -> list[SourceSpec]:
        """The sources to read: all except the ones in `leave_out`."""
        return [source for source in self.sources if source.name not in self.leave_out]

    @field_validator("sources")
    @classmethod
    def _check_and_seed(cls, sources: list[SourceSpec], info: ValidationInfo) -> list[SourceSpec]:
        evaluated: list[EvaluationSet] = info.data.get("evaluation_sets", [])
        names = [*(questions.name for questions in evaluated), *(source.name for source in sources)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"names of sources and evaluation sets must be unique; {twice} occur more than once")
        seed = info.data.get("seed", 0)
        return [
            source if "seed" in source.model_fields_set else source.model_copy(update={"seed": seed})
            for source in sources
        ]


class SourceBatch(Config):
    """Sources that are read in one task."""

    sources: list[SourceSpec] = Field(min_length=1)
    """The sources to read, each with its fingerprint."""

    @field_validator("sources")
    @classmethod
    def _check_fingerprints(cls, sources: list[SourceSpec]) -> list[SourceSpec]:
        for source in sources:
            if source.fingerprint is None:
                raise ValueError(f"source {source.name!r} has no fingerprint, without which changed rows are not seen")
        return sources
