"""The quickstart's model and prompts, for benchmarks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tasks.generation.models import ModelSpec, prepare_model
from tasks.inputs.files import load_quickstart
from tasks.machine import precision
from tasks.mixing.mix import mix
from tasks.mixing.spec import MixtureSpec
from tasks.sourcing.prompts import build_prompts
from tasks.tables.parquet import build_table, write_table
from tasks.tables.schemas import GRADED, MIXTURE, canonical_json


def model(folder: Path) -> Path:
    """The quickstart's initial checkpoint, converted once."""
    path = folder / "model"
    return path if path.exists() else prepare_model(ModelSpec(), path)


def prompts() -> pa.Table:
    """The quickstart's prompts."""
    data, *_ = load_quickstart()
    return pa.concat_tables([build_prompts(source, data.max_prompt_chars).prompts for source in data.sources])


def peer_type() -> dict[str, object]:
    """Options of TRL's `GRPOConfig`: float32 weights, as it has by default, and products in the processor's fast type.

    Weights in bfloat16 would round the steps of its optimizer away. Our learner has float32 master weights.
    """
    dtype = precision.resolve("auto", gpu=False)
    return {"bf16": dtype == "bfloat16", "model_init_kwargs": {"dtype": "float32"}}


VARIES = {
    "instruction_ids": ["keywords:letter_frequency"],
    "kwargs": [{"letter": "c", "let_frequency": 3, "let_relation": "at least"}],
}
"""About half of the model's responses of up to 64 tokens hold three letters c, whatever the prompt."""


def mixture(folder: Path) -> Path:
    """Those prompts with a reward that differs within every group: all that is sampled is trained on, as in TRL."""
    table = prompts()
    constants = {
        "verifier": "precise_if",
        "ground_truth": canonical_json(VARIES),
        "pass_rate": 0.5,
        "mean_score": 0.5,
        "num_rollouts": 8,
        "mean_tokens": 40.0,
    }
    rows = [row | constants for row in table.to_pylist()]
    mixed = mix(build_table(rows, GRADED, "benchmark"), MixtureSpec())
    return write_table(folder / "mixture.parquet", mixed.train, MIXTURE)
