"""Defines the pydantic models of `mixture:`: the prompts of each domain and source to train on and to hold out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tasks.config.loading import Config


class Share(Config):
    """The share of the training prompts of one domain, of one source within it, or of one stratum of a source."""

    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Optional. Share relative to the weights on the same level. If 0, no prompts are used for training, but some may
    be held out. If null, the share depends on the number of prompts, `temperature` and `emphasis`."""
    quota: int | None = Field(default=None, ge=1)
    """Optional. Exact number of prompts. Too few available prompts are an error, never a smaller mixture. If null,
    there is no quota."""
    emphasis: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Optional. Factor of the share that results from the mixture's `temperature`: 1.2 for a fifth more. If null, it is
    1."""

    @model_validator(mode="after")
    def _check_weight_or_quota(self) -> Share:
        if self.weight is not None and self.quota is not None:
            raise ValueError(f"give a weight ({self.weight}) or a quota ({self.quota}), not both")
        return self


Count = Annotated[int, Field(ge=0, strict=True)]
Portion = Annotated[float, Field(gt=0, lt=1)]


def _check_number_or_share(value: Any) -> Any:
    """Reject with one message any value that is neither a number nor a share."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if is_number or (isinstance(value, float) and 0 < value < 1):
        return value
    raise ValueError("must be a number of prompts (a whole number from 0 on) or a share of them (between 0 and 1)")


HeldOut = Annotated[Count | Portion, BeforeValidator(_check_number_or_share)]
"""A number of prompts (an integer), or a share (a number between 0 and 1): the prompts whose hash is below it.

A number of prompts is met exactly, so some prompts change sides if a source grows. With a share, the side of a prompt
depends only on that prompt, not on the other prompts, and the number varies.
"""


class DomainShare(Share):
    """A domain's share of the mixture."""

    heldout: HeldOut | None = None
    """Optional. Number of its prompts to hold out, or the share of them. If null, the mixture's `heldout` is used."""
    max_repeats: int | None = Field(default=None, ge=1)
    """Optional. Maximum number of entries of one of its prompts in the mixture. If null, the mixture's `max_repeats` is
    used."""


class Strata(Config):
    """Divides a source into strata by one of its columns."""

    by: str
    """Column that names each prompt's stratum. The source must keep it (`columns.keep`)."""
    shares: dict[str, Share] = Field(default={})
    """Shares of strata within the source, by that column's values."""


class SourceShare(Share):
    """A source's share of its domain."""

    heldout: HeldOut | None = None
    """Optional. Number of its prompts to hold out, or the share of them, as part of its domain's number. If null, it is
    in proportion to the source's size."""
    max_repeats: int | None = Field(default=None, ge=1)
    """Optional. Maximum number of entries of one of its prompts in the mixture. If null, its domain's `max_repeats` is
    used."""
    strata: Strata | None = None
    """Optional. Division of the source into strata. If null, it is not divided."""


Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["inf"]
"""The temperature of shares without weights. Infinity is text, because JSON has no number for it."""


class Limit(Config):
    """The maximum number of prompts of a source to train on or hold out, if it reads more rows (`top_up`)."""

    source: str
    """Name of the source."""
    prompts: int = Field(ge=1)
    """Maximum number of prompts."""
    seed: int
    """Seed of the source's sample. The prompts whose rows come first in it are kept."""


class Limits(Config):
    """The limits of the sources that have one after the difficulty filter."""

    limits: list[Limit] = []  # noqa: RUF012 (pydantic copies defaults)
    """A limit for each such source."""


class MixtureSpec(Config):
    """The mixture: prompts to hold out, and shares of domains, of their sources, and of the sources' strata.

    Prompts are held out first. Quotas are met exactly. The rest of `size` is divided among the others by weight. If
    none of them has a weight, it is divided by the number of their prompts, `temperature` and `emphasis`. Either all
    members without a quota have a weight, or none of them. A share larger than what is available is an error that names
    it.

    For shares that are roughly equal across domains with some emphasis, as in Olmo 3, use `temperature: inf` and, for
    example, `domains: {math: {emphasis: 1.2}, precise_if: {emphasis: 1.2}}`.

    Similar prompts (`cleaning.near_duplicates.action: keep_together`, and prompts with the same text) have the same
    hash, and none of them is trained on if another is held out.
    """

    seed: int = 0
    """Seed of the selection of held-out and training prompts, and of their order."""
    size: int | None = Field(default=None, ge=1)
    """Optional. Number of entries of the mixture, which are the prompts to train on. If null, as many as the
    proportions of the weights allow."""
    heldout: HeldOut = 0
    """Number of prompts of each domain, or the share of them, that are held out for evaluation and never trained on,
    unless the domain has its own value. With a share, no prompt changes sides if a source grows; a number is exact."""
    temperature: Temperature = 1.0
    """Temperature T of shares without weights, at each level: the weight of n prompts is n^(1/T). With 1, shares are in
    proportion to the prompts; with inf, they are equal; in between, small members are up-sampled relative to large
    ones."""
    max_repeats: int = Field(default=1, ge=1)
    """Maximum number of entries of a prompt in the mixture, so that a share may be larger than the number of its
    prompts."""
    domains: dict[str, DomainShare] = Field(default={})
    """Shares of domains."""
    sources: dict[str, SourceShare] = Field(default={})
    """Shares of sources within their domain."""

    @model_validator(mode="before")
    @classmethod
    def _is_no_data_file(cls, data: Any) -> Any:
        if isinstance(data, dict) and "mixture" in data:
            raise ValueError("this is a data file: give a file with what is below its key `mixture`, and nothing else")
        return data
