"""The lineage of a run's outputs: their digests, what they were made from, and how to make them again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.tables.schemas import StageSummary

DIGEST_DIGITS = 12
"""Digits of a digest that the page has."""


@dataclass(frozen=True)
class Output:
    """An output of a run with its origin.

    Attributes:
        name: the output's name.
        digest: the digest of its content.
        provenance: the origin that its footer records (`tasks.lineage.provenance`).
    """

    name: str
    digest: str
    provenance: Mapping[str, Any]

    def inputs(self) -> Iterator[tuple[str, str]]:
        """Yield the name and digest of every input that the output was made from."""
        for name, given in sorted(self.provenance.get("inputs", {}).items()):
            digests = [given] if isinstance(given, str) else given
            yield from ((name if len(digests) == 1 else f"{name} {i + 1}", digest) for i, digest in enumerate(digests))


def rows(outputs: list[Output]) -> list[dict[str, str]]:
    """Return the outputs as rows for the page; an input that is another output carries that output's name.

    The image is left out where all outputs were made in one.
    """
    named = {output.digest: output.name for output in outputs}
    made_in = {output.provenance["image"] for output in outputs if "image" in output.provenance}

    def labelled(name: str, digest: str) -> str:
        known = named.get(digest, name)
        return f"{name} {digest[:DIGEST_DIGITS]}" + (f" ({known})" if known != name else "")

    return [
        {
            "name": output.name,
            "digest": output.digest[:DIGEST_DIGITS],
            "made_from": ", ".join(labelled(*given) for given in output.inputs()),
            "spec": output.provenance.get("spec_digest", "")[:DIGEST_DIGITS],
            "seed": _seed(output.provenance.get("seed")),
            "code": output.provenance.get("code_version", "")[:DIGEST_DIGITS],
            "image": output.provenance.get("image", "") if len(made_in) > 1 else "",
        }
        for output in outputs
    ]


def _seed(seed: int | dict[str, int] | None) -> str:
    if isinstance(seed, dict):
        return ", ".join(map(str, sorted(set(seed.values()))))
    return "" if seed is None else str(seed)


def images(summaries: list[StageSummary]) -> str:
    """Return the image in which all stages ran, or a line for every image with its stages."""
    by_image: dict[str, dict[str, None]] = {}
    for summary in summaries:
        by_image.setdefault(summary.image or "unknown", {})[summary.stage.partition(":")[0]] = None
    if len(by_image) == 1:
        return next(iter(by_image))
    return "\n".join(f"{image} ({', '.join(stages)})" for image, stages in by_image.items())


def model_card(title: str, base: str, headline: str, files: Mapping[str, str], functions: Collection[str] = ()) -> str:
    """Return the `README.md` of a policy, with the front matter that the hub reads.

    Args:
        title: the run's title.
        base: the initial checkpoint.
        headline: the result of evaluation.
        files: the content of the three files, by the option of the pipeline that takes them.
        functions: import paths of the user's functions, verifiers and environments, whose code the card does not hold.
    """
    base_model = f"base_model: {base.partition('@')[0]}\n" if "/" in base else ""
    options = " ".join(f"--{name} {name}.yaml" for name in files)
    code = f" It also takes the code of {', '.join(f'`{name}`' for name in sorted(functions))}." if functions else ""
    contents = "\n".join(f"`{name}.yaml`:\n\n```yaml\n{text.rstrip()}\n```\n" for name, text in files.items())
    return f"""---
library_name: transformers
pipeline_tag: text-generation
{base_model}tags: [reinforcement-learning, rlvr, grpo]
---
# {title}

{base}, trained by reinforcement learning with verifiable rewards.

**Evaluation.** {headline}

**To make it again**, with these files, in a checkout of rlvr-flyte:{code}

```
pyflyte run workflows/rlvr.py rlvr {options}
```

{contents}"""
