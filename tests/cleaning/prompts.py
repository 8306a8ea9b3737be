"""Prompts by hand, and cleaning them in one call."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.cleaning.merging import Merger
from tasks.cleaning.spec import DuplicatesSpec
from tasks.tables.parquet import build_table, write_table
from tasks.tables.schemas import PROMPTS, canonical_json, prompt_id
from tests.paths import DATA

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data at {DATA} (set RLVR_TEST_DATA)")


def prompt(text, *, source="s", row=0, truth="1", verifier="math", domain="math", system=None):
    """A row of `PROMPTS`; `text` is what the user asks, or a list of messages."""
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    return {
        "prompt_id": prompt_id(messages, verifier, truth),
        "domain": domain,
        "source": source,
        "messages": messages,
        "verifier": verifier,
        "ground_truth": canonical_json(truth),
        "metadata": "{}",
        "cluster": None,
        "environment": None,
        "row": row,
    }


def table(*rows):
    return build_table(rows, PROMPTS, "prompts by hand")


def source(name, *texts, **same):
    """A table of one source."""
    return table(*(prompt(text, source=name, row=row, **same) for row, text in enumerate(texts)))


def merged(folder: Path, tables, order, **spec):
    """What stays of the tables, and what is set aside."""
    files = [write_table(folder / f"{number}.parquet", each, PROMPTS) for number, each in enumerate(tables)]
    parts = list(Merger(files, order, DuplicatesSpec.model_validate(spec)).parts())
    kept = pa.concat_tables([PROMPTS.empty_table(), *(part for part, _ in parts)])
    return kept, [row for _, gone in parts for row in gone.to_pylist()]


def gsm8k(split):
    """The questions of GSM8K as a source."""
    lines = (DATA / f"gsm8k_{split}.jsonl").read_text().splitlines()
    return source(split, *(json.loads(line)["question"] for line in lines))
