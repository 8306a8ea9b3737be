"""What to mix: how many prompts of each domain and source to train on, and how many to hold out."""

from __future__ import annotations

from pydantic import Field, model_validator

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


class DomainShare(Share):
    """A domain's share of the mixture.

    Attributes:
        heldout: so many of its prompts are held out, in place of the mixture's `heldout`.
    """

    heldout: int | None = Field(default=None, ge=0)


class SourceShare(Share):
    """A source's share of its domain.

    Attributes:
        heldout: exactly this many of its prompts are held out, as part of its domain's. Without it, the
            source gives in proportion to its size.
    """

    heldout: int | None = Field(default=None, ge=0)


class MixtureSpec(Config):
    """The mixture: held out first, then shared among domains, then within each domain among its sources.

    A quota is taken as it stands. What is left of `size` goes to the others by weight; where none of them has a
    weight, in proportion to what they have. Weights are given to all that have no quota, or to none of them. A share
    larger than what is available is an error that names it.

    Attributes:
        seed: chooses the prompts that are held out and taken, and their order.
        size: how many prompts to train on. None takes all that there are, as far as the weights' proportions allow.
        heldout: how many prompts of each domain, unless it says otherwise, are held out for evaluation and never
            trained on.
        domains: shares of domains.
        sources: shares of sources within their domain.
    """

    seed: int = 0
    size: int | None = Field(default=None, ge=1)
    heldout: int = Field(default=0, ge=0)
    domains: dict[Domain, DomainShare] = Field(default={})
    sources: dict[str, SourceShare] = Field(default={})
