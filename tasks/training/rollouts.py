"""What the controller handles: prompts, and the groups of responses sampled from them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from tasks.generation.engine import Completion, VersionSpan
from tasks.schemas import Message


@dataclass(frozen=True)
class Prompt:
    """A row of the mixture, tokenised. `ground_truth` is the parsed JSON value."""

    prompt_id: str
    domain: str
    messages: list[Message]
    verifier: str
    ground_truth: Any
    token_ids: list[int]


@dataclass
class Group:
    """All responses to one prompt that are compared with each other (a GRPO group).

    Times are seconds since the run began; `scores` stand in the order of `completions`.
    """

    number: int
    prompt: Prompt
    actor: int
    sampled_at: float
    policy_version: int
    completions: list[Completion] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    finished_at: float | None = None

    @property
    def first_version(self) -> int:
        """The oldest policy that sampled a token of this group."""
        versions = [span.version for completion in self.completions for span in completion.versions]
        return min(versions, default=self.policy_version)

    @property
    def last_version(self) -> int:
        """The newest policy that sampled a token of this group."""
        versions = [span.version for completion in self.completions for span in completion.versions]
        return max(versions, default=self.policy_version)

    @property
    def zero_variance(self) -> bool:
        """Whether all scores are equal, so that the group carries no gradient."""
        return max(self.scores) == min(self.scores)

    def to_json(self) -> dict[str, Any]:
        """Everything but the prompt's content, which the mixture holds."""
        return asdict(self) | {"prompt": self.prompt.prompt_id}

    @classmethod
    def from_json(cls, record: dict[str, Any], prompts: dict[str, Prompt]) -> Group:
        """The inverse of `to_json`; raises `ValueError` when the mixture lacks the prompt."""
        if record["prompt"] not in prompts:
            raise ValueError(f"the checkpoint holds a group of prompt {record['prompt']}, which the mixture lacks")
        completions = [
            Completion(**{**item, "versions": [VersionSpan(**span) for span in item["versions"]]})
            for item in record["completions"]
        ]
        return cls(**{**record, "prompt": prompts[record["prompt"]], "completions": completions})


def read_prompts(mixture: pa.Table, tokenizer: Any) -> list[Prompt]:
    """The rows of a mixture as prompts, in their order, with the chat template applied.

    Args:
        mixture: a table of `schemas.MIXTURE`.
        tokenizer: a Hugging Face tokenizer with a chat template.
    """
    return [
        Prompt(
            prompt_id=row["prompt_id"],
            domain=row["domain"],
            messages=row["messages"],
            verifier=row["verifier"],
            ground_truth=json.loads(row["ground_truth"]),
            token_ids=tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=False),
        )
        for row in mixture.sort_by("order").to_pylist()
    ]
