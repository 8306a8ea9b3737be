"""What the controller handles: prompts, and the groups of responses sampled from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.generation.engine import Completion, VersionSpan
from tasks.schemas import Message
from tasks.training.objective import ObjectiveConfig, ShapingConfig, shaped_reward
from tasks.verifiers import Reward, Score


@dataclass(frozen=True)
class Prompt:
    """A row of the mixture, tokenised. `ground_truth` is the parsed JSON value."""

    prompt_id: str
    domain: str
    messages: list[Message]
    verifier: str
    ground_truth: Any
    token_ids: list[int]


class Unjudged(NamedTuple):
    """A response that could not be judged: how many tokens it has, and why there is no judgement."""

    num_tokens: int
    reason: str


@dataclass
class Group:
    """All responses to one prompt that are compared with each other (a GRPO group).

    Times are seconds since the run began. In the order of `completions` stand `scores`, which training maximises,
    `rewards`, what those are made of (empty where the verifier's score is all), and whether each is right (`passed`).
    Judged groups differ in size: a response without a judgement is in `unjudged` and nowhere else.
    """

    number: int
    prompt: Prompt
    actor: int
    sampled_at: float
    policy_version: int
    completions: list[Completion] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    finished_at: float | None = None
    rewards: list[tuple[Reward, ...]] = field(default_factory=list)
    passed: list[bool] = field(default_factory=list)
    unjudged: list[Unjudged] = field(default_factory=list)

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

    def judged(self, scores: list[Score], shaping: ShapingConfig) -> None:
        """Take the judgements of all completions, in their order, and shape the rewards.

        A completion whose `Score.error` is set leaves the group for `unjudged`.
        """
        pairs = list(zip(self.completions, scores, strict=True))
        self.unjudged = [Unjudged(len(c.token_ids), score.error) for c, score in pairs if score.error is not None]
        judged = [(completion, score) for completion, score in pairs if score.error is None]
        self.completions = [completion for completion, _ in judged]
        self.scores = [shaped_reward(score.reward, len(c.token_ids), c.truncated, shaping) for c, score in judged]
        self.rewards = [score.rewards for _, score in judged]
        self.passed = [score.passed for _, score in judged]

    def teaches_nothing(self, objective: ObjectiveConfig) -> str:
        """Why the group carries no gradient; empty where it does.

        All scores are equal or, for GDPO, each of the rewards' values; or no response is left in the loss.
        """
        if objective.shaping.filter_truncated and all(completion.truncated for completion in self.completions):
            return "every response was truncated"
        if objective.reward_aggregation == "sum_then_normalize":
            return f"every score is {self.scores[0]:g}" if max(self.scores) == min(self.scores) else ""
        columns = zip(*self.components(), strict=True)
        varies = any(len({part.value for part in column if part.value is not None}) > 1 for column in columns)
        return "" if varies else "no reward varies"

    def components(self) -> list[tuple[Reward, ...]]:
        """The rewards of each completion; its score as the only one where there are no others."""
        return [
            rewards or (Reward("score", 1.0, score),) for rewards, score in zip(self.rewards, self.scores, strict=True)
        ]

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
        rewards = [tuple(Reward(*part) for part in each) for each in record["rewards"]]
        unjudged = [Unjudged(*each) for each in record["unjudged"]]
        rebuilt = {"completions": completions, "rewards": rewards, "unjudged": unjudged}
        return cls(**{**record, **rebuilt, "prompt": prompts[record["prompt"]]})


def why_unjudged(reasons: Sequence[str], samples: int) -> str:
    """One line about a group of which `samples` responses were sampled; empty where all were judged."""
    return f"{len(reasons)} of {samples} responses could not be judged: {reasons[0]}" if reasons else ""


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
