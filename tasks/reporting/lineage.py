"""Where a run's outputs came from: what each is, what it was made from, and how to make them again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DIGEST = re.compile(r"[0-9a-f]{32,64}")
SHOWN_DIGITS = 12
"""Of a digest, on the page."""


@dataclass(frozen=True)
class Output:
    """An output of a run.

    Attributes:
        name: of the output.
        digest: of what it holds.
        made_from: the digests of what it was made from, by name.
    """

    name: str
    digest: str
    made_from: dict[str, str]


def output(name: str, digest: str, metadata: Mapping[str, Any]) -> Output:
    """An output with the digests among its `metadata`, at any depth."""
    return Output(name, digest, dict(_digests(metadata)))


def _digests(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in metadata.items():
        if isinstance(value, dict):
            yield from _digests(value)
        elif isinstance(value, list):
            yield from _digests({f"{key} {i + 1}": each for i, each in enumerate(value)})
        elif isinstance(value, str) and DIGEST.fullmatch(value):
            yield key, value


def rows(outputs: list[Output]) -> list[dict[str, str]]:
    """The outputs for the page; what was made from another one of them says so by its name."""
    named = {each.digest: each.name for each in outputs}
    return [
        {
            "name": each.name,
            "digest": each.digest[:SHOWN_DIGITS],
            "made_from": ", ".join(
                f"{key} {digest[:SHOWN_DIGITS]}"
                + (f" ({named[digest]})" if named.get(digest, key) not in (key, each.name) else "")
                for key, digest in sorted(each.made_from.items())
            ),
        }
        for each in outputs
    ]


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
