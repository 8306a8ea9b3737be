"""Mixtures of a few prompts on which a random model sometimes succeeds."""

from tasks.tables.parquet import build_table, write_table
from tasks.tables.schemas import MIXTURE, canonical_json, prompt_id

HAS_AN_E = {
    "instruction_ids": ["keywords:letter_frequency"],
    "kwargs": [{"letter": "e", "let_frequency": 1, "let_relation": "at least"}],
}
"""About half of the tiny model's responses of 16 to 24 tokens hold the letter e."""


def mixture(folder, contents, order=None, verifier="precise_if", truth=HAS_AN_E, rates=None, environments=None):
    """Write a mixture of one-turn prompts; returns its path. `environments` has the column of that name."""
    rows = []
    for i, content in enumerate(contents):
        environment = environments[i] if environments else None
        messages = [{"role": "user", "content": content}]
        rows.append(
            {
                "prompt_id": prompt_id(messages, verifier, truth, environment),
                "domain": "precise_if",
                "source": "test",
                "messages": messages,
                "verifier": verifier,
                "ground_truth": canonical_json(truth),
                "metadata": "{}",
                "cluster": None,
                "environment": environment,
                "row": i,
                "pass_rate": rates[i] if rates else 0.5,
                "mean_score": rates[i] if rates else 0.5,
                "num_rollouts": 8,
                "mean_tokens": 16.0,
                "repeat": 0,
                "order": order[i] if order else i,
            }
        )
    return write_table(folder / "mixture.parquet", build_table(rows, MIXTURE, "mixture"), MIXTURE)
