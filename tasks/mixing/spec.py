"""The pydantic models behind `mixture:`: the prompts of each domain and source to train on, and those to hold out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tasks.config import Config


class Share(Config):
    """The share of the training prompts of one domain, of one source within it, or of one stratum of a source."""

    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Share relative to the weights beside it; 0 leaves it out of training, but not out of the held-out prompts. None:
    by the number of its prompts, `temperature` and `emphasis`."""
    quota: int | None = Field(default=None, ge=1)
    """Exact number of prompts; fewer available ones are an error, never a smaller mixture. None: no quota."""
    emphasis: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Factor of the share that it would have by the mixture's `temperature`: 1.2 for a fifth more; None: 1."""

    @model_validator(mode="after")
    def _weight_or_quota(self) -> Share:
        if self.weight is not None and self.quota is not None:
            raise ValueError(f"give a weight ({self.weight}) or a quota ({self.quota}), not both")
        return self


Count = Annotated[int, Field(ge=0, strict=True)]
Portion = Annotated[float, Field(gt=0, lt=1)]


def _number_or_share(value: Any) -> Any:
    """One sentence for what is neither."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if is_number or (isinstance(value, float) and 0 < value < 1):
        return value
    raise ValueError("must be a number of prompts (a whole number from 0 on) or a share of them (between 0 and 1)")


HeldOut = Annotated[Count | Portion, BeforeValidator(_number_or_share)]
"""A number of prompts (a whole number), or the prompts whose hash is below a share (a number between 0 and 1).

A number of prompts is met exactly, so that a source that grows moves some across. By a share, each prompt's side
depends on that prompt alone, whatever comes or goes beside it, and the number follows.
"""


class DomainShare(Share):
    """A domain's share of the mixture."""

    heldout: HeldOut | None = None
    """Number of its prompts to hold out, or the share of them; None: the mixture's `heldout`."""
    max_repeats: int | None = Field(default=None, ge=1)
    """Entries in the mixture that a prompt of it may have; None: the mixture's `max_repeats`."""


class Strata(Config):
    """The division of a source into strata, by one of its columns."""

    by: str
    """Column that names each prompt's stratum, one that the source keeps (`columns.keep`)."""
    shares: dict[str, Share] = Field(default={})
    """Shares of strata within the source, by that column's values."""


class SourceShare(Share):
    """A source's share of its domain."""

    heldout: HeldOut | None = None
    """Number of its prompts to hold out, or the share of them, as part of its domain's; None: in proportion to its
    size.
    """
    max_repeats: int | None = Field(default=None, ge=1)
    """Entries in the mixture that a prompt of it may have; None: its domain's `max_repeats`."""
    strata: Strata | None = None
    """Division of the source into strata; None: it is not divided."""


Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["inf"]
"""The temperature of shares without weights; the infinite one is text, because JSON has no number for it."""


class Limit(Config):
    """The most prompts of a source that are trained on or held out, where more rows than these were read (`top_up`)."""

    source: str
    """Name of the source."""
    prompts: int = Field(ge=1)
    """Number of prompts, at most."""
    seed: int
    """Seed of the source's sample; the prompts whose rows come first in it stay."""


class Limits(Config):
    """The limits of the sources that have one after the difficulty filter."""

    limits: list[Limit] = []  # noqa: RUF012 (pydantic copies defaults)
    """A limit for each such source."""


class MixtureSpec(Config):
    """The mixture: held out first, then shared among domains, within each domain among its sources, and so on.

    A quota is taken as it stands. What is left of `size` goes to the others by weight; where none of them has a
    weight, by what they have, `temperature` and `emphasis`. Weights are given to all that have no quota, or to none of
    them. A share larger than what is available is an error that names it.

    Roughly equal across domains with some emphasis, as Olmo 3 mixes: `temperature: inf` and, say,
    `domains: {math: {emphasis: 1.2}, precise_if: {emphasis: 1.2}}`.

    Prompts that are alike (`cleaning.near_duplicates.action: keep_together`, and those of the same text) have one hash,
    and none of them is trained on where another is held out.
    """

    seed: int = 0
    """Seed of the choice of held-out and taken prompts, and of their order."""
    size: int | None = Field(default=None, ge=1)
    """Entries of the mixture, which are the prompts to train on; None: as many as the weights' proportions allow."""
    heldout: HeldOut = 0
    """Number of prompts of each domain, or the share of them, that are held out for evaluation and never trained on,
    unless the domain has its own. By a share, a source that grows moves no prompt across; a number is exact."""
    temperature: Temperature = 1.0
    """Temperature T of shares without weights, at each level: a member of n prompts weighs n^(1/T). 1: in proportion to
    the prompts; inf: the same for all; in between: small members are up-sampled relative to large ones."""
    max_repeats: int = Field(default=1, ge=1)
    """Entries in the mixture that a prompt may have, so that a share may be larger than its prompts."""
    domains: dict[str, DomainShare] = Field(default={})
    """Shares of domains."""
    sources: dict[str, SourceShare] = Field(default={})
    """Shares of sources within their domain."""
