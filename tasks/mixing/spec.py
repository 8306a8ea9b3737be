"""What to mix: how many prompts of each domain and source to train on, and how many to hold out."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from tasks.config import Config
from tasks.schemas import Domain


class Share(Config):
    """How much of the training prompts one domain, or one source within its domain, makes up.

    Attributes:
        weight: its share relative to the weights beside it; 0 leaves it out of training (not out of the held-out).
        quota: exactly this many prompts. Fewer available ones are an error, never a smaller mixture.
    """

    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    quota: int | None = Field(default=None, ge=1)

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
    """A domain's share of the mixture.

    Attributes:
        heldout: of its prompts, in place of the mixture's `heldout`.
    """

    heldout: HeldOut | None = None


class SourceShare(Share):
    """A source's share of its domain.

    Attributes:
        heldout: of its prompts, as part of its domain's. Without it, the source gives in proportion to its size.
    """

    heldout: HeldOut | None = None


class MixtureSpec(Config):
    """The mixture: held out first, then shared among domains, then within each domain among its sources.

    A quota is taken as it stands. What is left of `size` goes to the others by weight; where none of them has a
    weight, in proportion to what they have. Weights are given to all that have no quota, or to none of them. A share
    larger than what is available is an error that names it.

    Prompts that are alike (`cleaning.near_duplicates.action: keep_together`, and those of the same text) have one hash,
    and none of them is trained on where another is held out.

    Attributes:
        seed: chooses the prompts that are held out and taken, and their order.
        size: how many prompts to train on. None takes all that there are, as far as the weights' proportions allow.
        heldout: how many prompts of each domain, or which share of them, unless it says otherwise, are held out for
            evaluation and never trained on. By a share a source that grows moves no prompt across; a number is exact.
        domains: shares of domains.
        sources: shares of sources within their domain.
    """

    seed: int = 0
    size: int | None = Field(default=None, ge=1)
    heldout: HeldOut = 0
    domains: dict[Domain, DomainShare] = Field(default={})
    sources: dict[str, SourceShare] = Field(default={})
