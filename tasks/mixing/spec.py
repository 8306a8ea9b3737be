"""What to mix: how many prompts of each domain and source to train on, and how many to hold out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tasks.config import Config
from tasks.tables.schemas import Domain


class Share(Config):
    """The share of the training prompts of one domain, of one source within it, or of one stratum of a source."""

    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Its share relative to the weights beside it; 0 leaves it out of training (not out of the held-out)."""
    quota: int | None = Field(default=None, ge=1)
    """Exactly this many prompts. Fewer available ones are an error, never a smaller mixture."""
    emphasis: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Its share relative to what it would be by the mixture's `temperature`: 1.2 for a fifth more."""

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
"""So many prompts (a whole number), or those whose hash is below this share (a number between 0 and 1).

A number of prompts is met exactly, and so a source that grows moves some across. By a share each prompt's side is its
own, whatever comes or goes beside it, and the number follows.
"""


class DomainShare(Share):
    """A domain's share of the mixture."""

    heldout: HeldOut | None = None
    """Of its prompts, in place of the mixture's `heldout`."""
    max_repeats: int | None = Field(default=None, ge=1)
    """Of its prompts, in place of the mixture's."""


class Strata(Config):
    """How a source is divided."""

    by: str
    """The column that names each prompt's stratum, one that the source keeps (`columns.keep`)."""
    shares: dict[str, Share] = Field(default={})
    """Of strata within the source, by that column's values."""


class SourceShare(Share):
    """A source's share of its domain."""

    heldout: HeldOut | None = None
    """Of its prompts, as part of its domain's. Without it, the source gives in proportion to its size."""
    max_repeats: int | None = Field(default=None, ge=1)
    """Of its prompts, in place of its domain's."""
    strata: Strata | None = None
    """How it is divided in turn; None: not at all."""


Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["inf"]
"""Of shares without weights; text for the infinite one, which JSON has no number for."""


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
    """Chooses the prompts that are held out and taken, and their order."""
    size: int | None = Field(default=None, ge=1)
    """How many prompts to train on. None takes all that there are, as far as the weights' proportions allow."""
    heldout: HeldOut = 0
    """How many prompts of each domain, or which share of them, unless it says otherwise, are held out for evaluation
    and never trained on. By a share a source that grows moves no prompt across; a number is exact."""
    temperature: Temperature = 1.0
    """T of shares without weights, at each level: one of n prompts weighs n^(1/T). 1: in proportion to what there is;
    inf: the same for all; between: the small ones are up-sampled relative to the large."""
    max_repeats: int = Field(default=1, ge=1)
    """How often a prompt may stand in the mixture, so that a share may be larger than what there is."""
    domains: dict[Domain, DomainShare] = Field(default={})
    """Shares of domains."""
    sources: dict[str, SourceShare] = Field(default={})
    """Shares of sources within their domain."""
