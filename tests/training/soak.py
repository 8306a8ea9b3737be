"""`make soak`: a tiny model is trained for thousands of steps, and nothing grows and nothing is left behind.

The run is a real one: Ray, a vLLM engine, a learner rank, verifiers, checkpoints. `SOAK_STEPS` is another number of
steps than 2,000, at least 400.
"""

import json
import os
import tempfile
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest

from tasks.recipe.run import TrainingConfig
from tasks.tables.parquet import read_table
from tasks.tables.schemas import LEDGER
from tests.training.driven import metrics, run
from tests.training.mixtures import mixture
from tests.training.processes import SHARED, held_by_tree

pytestmark = [pytest.mark.engine, pytest.mark.timeout(7200)]

STEPS = int(os.environ.get("SOAK_STEPS", "2000"))
EVERY = STEPS // 40
WARM_UP = 0.25
"""Share of the steps in which memory may grow: allocators find their size, caches of bounded size fill."""
GROWTH_MB = 20.0
"""What one role may grow per 1,000 steps after that: allocators' pages come and go by some MB."""
RECIPE = TrainingConfig.model_validate(
    {
        "steps": STEPS,
        "groups_per_step": 1,
        "sampling": {"samples": 4, "max_tokens": 8},
        "optimizer": {"learning_rate": 1e-6},  # the policy stays what it is, and its prompts as hard as they are
        "learner": {"cpu_threads": 1, "micro_batch_tokens": 256},
        "actors": {"engine": {"max_model_len": 64, "max_num_seqs": 8, "cpu_threads": 1}},
        "checkpoint_every": 50,
        "alarms": {"max_truncated": None},
        "stall_seconds": 240,
    }
)
WORDS = ("sea", "river", "rain", "dog", "fox", "sum", "word", "answer")


def watch(folder, figures):
    """Write down every so many steps what the run holds."""
    if (figures["step"] + 1) % EVERY == 0:
        held = held_by_tree(psutil.Process(), Path(tempfile.gettempdir()))
        with (folder / "held.jsonl").open("a") as file:
            file.write(json.dumps({"step": figures["step"] + 1, **held}) + "\n")


@pytest.fixture(scope="module")
def temporary():
    """A folder for all temporary files of the run, Ray's too; sockets in it have short names."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="soak", dir="/tmp") as folder:
        patch.setenv("TMPDIR", folder)
        patch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


@pytest.fixture(scope="module")
def soaked(tiny_model, temporary, tmp_path_factory):
    """The folder of the run that has ended."""
    folder = tmp_path_factory.mktemp("runs") / uuid.uuid4().hex
    folder.mkdir()
    prompts = mixture(tmp_path_factory.mktemp("mixture"), [f"Write a sentence about the {word}" for word in WORDS])
    assert run(RECIPE, tiny_model, prompts, folder, watch=watch) == 0  # and no process is left
    print(table(samples(folder)))
    return folder


def samples(folder):
    return [json.loads(line) for line in (folder / "held.jsonl").read_text().splitlines()]


def table(rows):
    """What was held at a tenth of the run, at half of it and at its end."""
    shown = [rows[len(rows) // 10 - 1], rows[len(rows) // 2 - 1], rows[-1]]
    lines = [f"{'at step':24}" + "".join(f"{row['step']:>12}" for row in shown)]
    for unit in ("mb", "handles", "threads", "processes"):
        for role in sorted({role for row in rows for role in row["roles"]}):
            lines.append(f"{unit + ' ' + role:32}" + "".join(f"{of(row, role, unit):12.0f}" for row in shown))
    for name in ("shared_mb", "temporary_mb", "temporary_files"):
        lines.append(f"{name:32}" + "".join(f"{row[name]:12.0f}" for row in shown))
    return "\n".join(lines)


def of(row, role, unit):
    return row["roles"].get(role, {}).get(unit, 0)


def growth(rows, value):
    """Of a line through what was held after the warm-up, per 1,000 steps."""
    after = rows[int(len(rows) * WARM_UP) :]
    slope, _ = np.polyfit([row["step"] for row in after], [value(row) for row in after], 1)
    return 1000 * slope


def test_memory_is_flat(soaked):
    rows = samples(soaked)
    grown = {role: growth(rows, lambda row, role=role: of(row, role, "mb")) for role in rows[-1]["roles"]}
    print({role: f"{value:+.1f} MB per 1,000 steps" for role, value in grown.items()})
    assert {role: value for role, value in grown.items() if value > GROWTH_MB} == {}
    assert growth(rows, lambda row: row["shared_mb"]) < GROWTH_MB


@pytest.mark.parametrize("unit", ["handles", "threads", "processes"])
def test_what_is_open_stays_as_it_is(soaked, unit):
    rows = samples(soaked)
    grown = {role: growth(rows, lambda row, role=role: of(row, role, unit)) for role in rows[-1]["roles"]}
    assert {role: value for role, value in grown.items() if value > 2} == {}
    assert growth(rows, lambda row: len(row["shared"])) < 1
    assert growth(rows, lambda row: row["temporary_files"]) < 2


def test_nothing_is_left_behind(soaked, temporary):
    assert [name for row in samples(soaked) for name in row["shared"] if Path(name).exists()] == []
    left = {path.name for path in temporary.iterdir()}
    assert left <= {"ray"}  # its logs, by session
    assert soaked.name not in " ".join(path.name for path in SHARED.iterdir())


def test_every_step_was_trained_once(soaked):
    assert [row["step"] for row in metrics(soaked)] == list(range(STEPS))
    rows = read_table(soaked / "ledger.parquet", LEDGER).to_pylist()
    assert sorted(row["step"] for row in rows if row["fate"] == "trained") == list(range(STEPS))
    assert len({row["group"] for row in rows}) == len(rows)
