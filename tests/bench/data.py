"""The data stages on many rows: CPU seconds and memory of each, compared with polars and `datasets` on the same rows.

    python -m tests.bench.data <stages|polars|datasets>:<rows> <folder>

The stages run as in a pipeline, with their checks of what they read, their decks and their lineage. The others do the
parts of the work that they have: they read the rows, drop the ones without an answer, keep the first of the prompts
with the same text except for case and white space, and write Parquet; then, as the whole work, they do this again, drop
prompts that are too short or too long, and shuffle.

Memory is that of the process alone, without the pages of files that the system can drop.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

SAMPLE_SECONDS = 0.05
FEWEST_WORDS, MOST_WORDS = 60, 290
TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


class Meter:
    """Measures the CPU seconds and the peak of memory of parts of this process."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {"start_seconds": time.process_time()}
        self._peak = 0.0
        threading.Thread(target=self._sample, daemon=True).start()

    def run(self, name: str, part: Callable[[], Any]) -> Any:
        """Run a part, measure `<name>_seconds` and `<name>_mib`, and return what the part returns."""
        self._peak = 0.0
        started = time.process_time()
        result = part()
        self.found |= {f"{name}_seconds": time.process_time() - started, f"{name}_mib": max(self._peak, _own_mib())}
        return result

    def _sample(self) -> None:
        while True:
            self._peak = max(self._peak, _own_mib())
            time.sleep(SAMPLE_SECONDS)


def _own_mib() -> float:
    memory = psutil.Process().memory_info()
    return (memory.rss - getattr(memory, "shared", 0)) / 2**20


def stages(folder: Path) -> dict[str, float]:
    """Run the stages one after another, each on what the one before wrote."""
    from tasks.cleaning.spec import CleaningSpec, Filters
    from tasks.cleaning.task import merge_sources, screen_prompts
    from tasks.difficulty.task import take_all
    from tasks.mixing.spec import MixtureSpec
    from tasks.mixing.task import check_mixture, mix_prompts

    meter = Meter()
    spec = CleaningSpec(filters=Filters(min_words=FEWEST_WORDS, max_words=MOST_WORDS))
    exact = spec.duplication.model_copy(update={"near_duplicates": None})
    mixture = MixtureSpec(heldout=0.02)
    questions = _sourced(folder, "questions").prompts
    rows = meter.run("sourcing", lambda: _sourced(folder, "rows"))
    shared: dict[str, Any] = {"sources": ["rows"], "control_tokens": TOKENS}
    meter.run(
        "exact_merging",
        lambda: merge_sources(prompts=[rows.prompts], set_aside=[rows.set_aside], spec=exact, **shared),
    )
    screened = meter.run(
        "screening",
        lambda: screen_prompts(
            prompts=rows.prompts,
            evaluation_sets=[questions],
            spec=spec.screening(evaluated=True),
            control_tokens=TOKENS,
        ),
    )
    gone = [rows.set_aside, screened.set_aside]
    merged = meter.run(
        "merging",
        lambda: merge_sources(prompts=[screened.prompts], set_aside=gone, spec=spec.duplication, **shared),
    )
    gone = [merged.set_aside]
    meter.run("check_of_the_mixture", lambda: check_mixture(prompts=merged.prompts, spec=mixture, set_aside=gone))
    _, selected, *_ = take_all(prompts=merged.prompts, set_aside=merged.set_aside)
    mixed = meter.run("mixing", lambda: mix_prompts(graded=selected, spec=mixture, set_aside=gone))
    print(*(each.summary.headline for each in (rows, screened, merged, mixed)), sep="\n")
    return meter.found


def _sourced(folder: Path, name: str) -> Any:
    from tasks.flyte.stages import config_digest
    from tasks.sourcing.loaders import add_fingerprint
    from tasks.sourcing.spec import SourceBatch, SourceSpec
    from tasks.sourcing.task import source_prompts

    source = {
        "name": name,
        "domain": "math",
        "verifier": "math",
        "loader": {"kind": "jsonl", "path": str(folder / f"{name}.jsonl")},
        "columns": {"prompt": "question", "ground_truth": "answer"},
    }
    batch = SourceBatch(sources=[add_fingerprint(SourceSpec.model_validate(source))])
    return source_prompts(batch=batch, content=config_digest(batch), max_prompt_chars=8000)


def by_polars(folder: Path, *, whole: bool) -> None:
    """Do a peer's work by polars."""
    import polars

    question = polars.col("question")
    key = question.str.to_lowercase().str.replace_all(r"\s+", " ").str.strip_chars()
    rows = polars.read_ndjson(folder / "rows.jsonl").filter(polars.col("answer") != "")
    if whole:
        rows = rows.filter(question.str.count_matches(r"\w+").is_between(FEWEST_WORDS, MOST_WORDS))
    rows = rows.with_columns(key=key).unique("key", keep="first", maintain_order=True).drop("key")
    if whole:
        rows = rows.sample(fraction=1, shuffle=True, seed=1)
    rows.write_parquet(folder / "rows.parquet", compression="zstd")


def by_datasets(folder: Path, *, whole: bool) -> None:
    """Do a peer's work by `datasets`."""
    import datasets

    seen = set[str]()

    def stays(question: str, answer: str) -> bool:
        key = " ".join(question.lower().split())
        if not answer or key in seen:
            return False
        if whole and not FEWEST_WORDS <= len(re.findall(r"\w+", question)) <= MOST_WORDS:
            return False
        seen.add(key)
        return True

    with TemporaryDirectory(dir=folder) as cache:
        file = str(folder / "rows.jsonl")
        rows = datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache)
        rows = rows.filter(stays, input_columns=["question", "answer"])
        if whole:
            rows = rows.shuffle(seed=1)
        rows.to_parquet(folder / "rows.parquet")


PEERS = {"polars": by_polars, "datasets": by_datasets}


def main(what: str, count: int, folder: Path) -> dict[str, float]:
    """Measure the stages or a peer on `count` rows, which another process makes."""
    made = "import sys; from pathlib import Path; from tests.bench.data_rows import write_rows as write; "
    subprocess.run([sys.executable, "-c", f"{made}write({count}, Path({str(folder)!r}))"], check=True)
    if what == "stages":
        return stages(folder)
    meter, work = Meter(), PEERS[what]
    meter.run("exact_merging", lambda: work(folder, whole=False))
    meter.run("whole", lambda: work(folder, whole=True))
    return meter.found


if __name__ == "__main__":
    name, _, rows_asked = sys.argv[1].partition(":")
    with TemporaryDirectory(dir=Path(sys.argv[2]).absolute()) as scratch:
        os.environ |= {"FLYTE_SDK_LOCAL_SANDBOX": f"{scratch}/flyte", "FLYTE_LOCAL_CACHE_ENABLED": "false"}
        print(json.dumps(main(name, int(rows_asked), Path(scratch))))
