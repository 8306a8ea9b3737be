"""Where a run's outputs came from: what each is, what it was made from, and how to make them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.tables.schemas import StageSummary

SHOWN_DIGITS = 12
"""Of a digest, on the page."""


@dataclass(frozen=True)
class Output:
    """An output of a run.

    Attributes:
        name: of the output.
        digest: of what it holds.
        provenance: what its footer says of where it came from (`tasks.lineage.provenance`).
    """

    name: str
    digest: str
    provenance: Mapping[str, Any]

    def inputs(self) -> Iterator[tuple[str, str]]:
        """The digests of what it was made from, by name."""
        for name, given in sorted(self.provenance.get("inputs", {}).items()):
            digests = [given] if isinstance(given, str) else given
            yield from ((name if len(digests) == 1 else f"{name} {i + 1}", each) for i, each in enumerate(digests))


def rows(outputs: list[Output]) -> list[dict[str, str]]:
    """The outputs for the page; what was made from another says so by its name. One image for all is not repeated."""
    named = {each.digest: each.name for each in outputs}
    made_in = {each.provenance["image"] for each in outputs if "image" in each.provenance}

    def told(name: str, digest: str) -> str:
        known = named.get(digest, name)
        return f"{name} {digest[:SHOWN_DIGITS]}" + (f" ({known})" if known != name else "")

    return [
        {
            "name": each.name,
            "digest": each.digest[:SHOWN_DIGITS],
            "made_from": ", ".join(told(*given) for given in each.inputs()),
            "spec": each.provenance.get("spec_digest", "")[:SHOWN_DIGITS],
            "seed": _seed(each.provenance.get("seed")),
            "code": each.provenance.get("code_version", "")[:SHOWN_DIGITS],
            "image": each.provenance.get("image", "") if len(made_in) > 1 else "",
        }
        for each in outputs
    ]


def _seed(seed: int | dict[str, int] | None) -> str:
    if isinstance(seed, dict):
        return ", ".join(map(str, sorted(set(seed.values()))))
    return "" if seed is None else str(seed)


def images(summaries: list[StageSummary]) -> str:
    """In which images the stages ran: one, or a line for each with its stages."""
    found: dict[str, dict[str, None]] = {}
    for summary in summaries:
        found.setdefault(summary.image or "unknown", {})[summary.stage.partition(":")[0]] = None
    if len(found) == 1:
        return next(iter(found))
    return "\n".join(f"{image} ({', '.join(stages)})" for image, stages in found.items())


def model_card(title: str, base: str, headline: str, recipe: str, data: str) -> str:
    """The `README.md` of a policy, with the front matter that the hub reads.

    Args:
        title: of the run.
        base: the initial checkpoint.
        headline: what evaluation found.
        recipe: the training file as it was given.
        data: the data file as it was given.
    """
    base_model = f"base_model: {base.partition('@')[0]}\n" if "/" in base else ""
    return f"""---
library_name: transformers
pipeline_tag: text-generation
{base_model}tags: [reinforcement-learning, rlvr, grpo]
---
# {title}

{base}, trained by reinforcement learning with verifiable rewards.

**Evaluation.** {headline}

**To make it again**, with these two files:

```
pyflyte run workflows/rlvr.py rlvr --data data.yaml --training training.yaml
```

`training.yaml`:

```yaml
{recipe.rstrip()}
```

`data.yaml`:

```yaml
{data.rstrip()}
```
"""
