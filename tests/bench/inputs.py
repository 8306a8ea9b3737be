"""The quickstart's model and prompts, for benchmarks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tasks.generation.models import ModelSpec, prepare_model
from tasks.mixing.mix import mix
from tasks.mixing.spec import MixtureSpec
from tasks.schemas import GRADED, MIXTURE, write_table
from tasks.sourcing.prompts import build_prompts, merge
from tasks.spec import quickstart


def model(folder: Path) -> Path:
    """The quickstart's initial checkpoint, converted once."""
    path = folder / "model"
    return path if path.exists() else prepare_model(ModelSpec(), path)


def prompts() -> pa.Table:
    """The quickstart's prompts."""
    data, *_ = quickstart()
    merged, _ = merge([build_prompts(source, data.max_prompt_chars).prompts for source in data.sources])
    return merged


def mixture(folder: Path) -> Path:
    """Those prompts as a training mixture, as if each had a pass rate of 0.3."""
    table = prompts()
    for name, value in (("pass_rate", 0.3), ("num_rollouts", 8), ("mean_tokens", 40.0)):
        table = table.append_column(GRADED.field(name), pa.array([value] * table.num_rows, GRADED.field(name).type))
    mixed = mix(table, MixtureSpec(), upstream={}, code_version="benchmark")
    return write_table(folder / "mixture.parquet", mixed.train, MIXTURE)
