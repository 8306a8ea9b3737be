"""The data stages hold a few parts of their tables in memory, whatever the number of rows."""

import json
from contextlib import contextmanager

import pyarrow as pa
import pytest

from tasks.cleaning.spec import CleaningSpec, DuplicatesSpec, Filters
from tasks.cleaning.task import merge_sources, screen_prompts
from tasks.difficulty.task import take_all
from tasks.flyte.stages import config_digest
from tasks.mixing import choosing
from tasks.mixing.spec import MixtureSpec
from tasks.mixing.task import check_mixture, mix_prompts
from tasks.sourcing import prompts
from tasks.sourcing.loaders import add_fingerprint
from tasks.sourcing.spec import SourceBatch, SourceSpec
from tasks.sourcing.task import source_prompts
from tasks.tables import parquet, row_groups

ROWS, CHARS, PART = 4000, 10_000, 100
MOST = ROWS * CHARS // 3
"""Maximum number of bytes of a stage. The prompts have three times as many."""


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setenv("FLYTE_LOCAL_CACHE_ENABLED", "false")
    monkeypatch.setattr(prompts, "BATCH", PART)
    monkeypatch.setattr(row_groups, "ROW_GROUP", 2 * PART)
    monkeypatch.setattr(parquet, "PART_BYTES", PART * CHARS)
    for module in (parquet, choosing):
        monkeypatch.setattr(module, "BATCH_ROWS", PART)


@contextmanager
def held():
    """A pool of memory that counts what Arrow takes."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


@pytest.mark.long
def test_no_data_stage_holds_all_rows(tmp_path, small_parts):
    file = tmp_path / "rows.jsonl"
    with file.open("w") as lines:
        for row in range(ROWS):
            text = f"Question {row}: " + f"{row * row} words " * (CHARS // 15)
            lines.write(json.dumps({"prompt": text[:CHARS], "ground_truth": "1"}) + "\n")
    loader = {"kind": "jsonl", "path": str(file)}
    source = {"name": "s", "domain": "math", "verifier": "math", "loader": loader}
    batch = SourceBatch(sources=[add_fingerprint(SourceSpec.model_validate(source))])
    peaks = {}

    def run(name, stage):
        with held() as pool:
            result = stage()
            peaks[name] = pool.max_memory()
        return result

    content = config_digest(batch)
    read = run("sourcing", lambda: source_prompts(batch=batch, content=content, max_prompt_chars=2 * CHARS))
    screening = CleaningSpec(filters=Filters(max_words=CHARS)).screening(evaluated=False)
    screened = run(
        "screening",
        lambda: screen_prompts(prompts=read.prompts, evaluation_sets=[], spec=screening, control_tokens=["<|end|>"]),
    )
    merged = run(
        "merging",
        lambda: merge_sources(
            prompts=[screened.prompts],
            set_aside=[read.set_aside],
            sources=["s"],
            spec=DuplicatesSpec(near_duplicates=None),
            control_tokens=["<|end|>"],
        ),
    )
    mixture, gone = MixtureSpec(heldout=0.5), [merged.set_aside]
    run("check", lambda: check_mixture(prompts=merged.prompts, spec=mixture, set_aside=gone))
    _, selected, *_ = take_all(prompts=merged.prompts, set_aside=merged.set_aside)
    mixed = run("mixing", lambda: mix_prompts(graded=selected, spec=mixture, set_aside=gone))
    left = sum(parquet.read_table(table.path, parquet.read_columns(table.path)).num_rows for table in mixed[:2])
    assert left == ROWS
    assert {name: peak for name, peak in peaks.items() if not 0 < peak < MOST} == {}
