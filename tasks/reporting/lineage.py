"""Describes the lineage of a run's outputs: their digests, their inputs, and how to reproduce them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.nested_values import changed
from tasks.tables.schemas import StageSummary

DIGEST_DIGITS = 12
"""Number of digits of a digest that the page shows."""


@dataclass(frozen=True)
class Output:
    """An output of a run and its provenance.

    Attributes:
        name: the output's name.
        digest: digest of its content.
        provenance: the provenance recorded in its footer (`tasks.lineage.provenance`).
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
    """Return the outputs as rows for the page. An input that is itself an output is shown under that output's name.

    The image is omitted if all outputs were made in the same image.
    """
    named = {output.digest: output.name for output in outputs}
    made_in = {output.provenance["image"] for output in outputs if "image" in output.provenance}

    def format_input(name: str, digest: str) -> str:
        known = named.get(digest, name)
        return f"{name} {digest[:DIGEST_DIGITS]}" + (f" ({known})" if known != name else "")

    return [
        {
            "name": output.name,
            "digest": output.digest[:DIGEST_DIGITS],
            "made_from": ", ".join(format_input(*given) for given in output.inputs()),
            "spec": output.provenance.get("spec_digest", "")[:DIGEST_DIGITS],
            "seed": _format_seed(output.provenance.get("seed")),
            "code": output.provenance.get("code_version", "")[:DIGEST_DIGITS],
            "image": output.provenance.get("image", "") if len(made_in) > 1 else "",
        }
        for output in outputs
    ]


def _format_seed(seed: int | dict[str, int] | None) -> str:
    if isinstance(seed, dict):
        return ", ".join(map(str, sorted(set(seed.values()))))
    return "" if seed is None else str(seed)


def images(summaries: list[StageSummary]) -> str:
    """Return the image that all stages ran in, or one line per image with its stages."""
    by_image: dict[str, dict[str, None]] = {}
    for summary in summaries:
        by_image.setdefault(summary.image or "unknown", {})[summary.stage.partition(":")[0]] = None
    if len(by_image) == 1:
        return next(iter(by_image))
    return "\n".join(f"{image} ({', '.join(stages)})" for image, stages in by_image.items())


def drop_folders(value: Any) -> Any:
    """Return options with the names of the files and folders of this machine instead of their absolute paths."""
    return changed(value, _name_of_path)


def _name_of_path(value: Any) -> Any:
    is_path = isinstance(value, str) and value.startswith("/") and "\n" not in value and os.path.lexists(value)
    return Path(value).name if is_path else value


def render_model_card(
    title: str, base: str, headline: str, files: Mapping[str, str], functions: Collection[str] = ()
) -> str:
    """Return the `README.md` of a policy, with the front matter that the hub reads.

    Args:
        title: the run's title.
        base: the initial checkpoint.
        headline: the result of the evaluation.
        files: contents of the three files, by the pipeline option that takes each.
        functions: import paths of the user's functions, verifiers and environments. The card does not contain their
            code.
    """
    base_model = f"base_model: {base.partition('@')[0]}\n" if "/" in base else ""
    options = " ".join(f"--{name} {name}.yaml" for name in files)
    code = f" and with the code of {', '.join(f'`{name}`' for name in sorted(functions))}" if functions else ""
    contents = "\n".join(f"`{name}.yaml`:\n\n```yaml\n{text.rstrip()}\n```\n" for name, text in files.items())
    return f"""---
library_name: transformers
pipeline_tag: text-generation
{base_model}tags: [reinforcement-learning, rlvr, grpo]
---
# {title}

{base}, trained by reinforcement learning with verifiable rewards.

**Evaluation.** {headline}

**Licence.** That of the initial checkpoint and of the data apply; this run adds none.

**To reproduce it**, with these files in a checkout of rlvr-flyte{code}:

```
rlvr run {options}
```

{contents}"""
