"""Every mistake and fault is one sentence on the terminal: `make test` runs a sample of them, `make test-all` all."""

import os
import signal
import subprocess

import pytest

from tests.mistakes import commands, files, machines, training
from tests.mistakes.case import Case, every, run, seen, started_process, wrong
from tests.training.mixtures import mixture

CASES = every(files.CASES, commands.CASES, training.CASES, machines.CASES)
SAMPLE = sum(case.sampled for case in CASES)


def mounts_disks():
    """Whether a process here may mount a disk of its own."""
    command = ("unshare", "--mount", "mount", "-t", "tmpfs", "disk", "/mnt")
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    words = ("sea", "river", "rain", "dog")
    return mixture(tmp_path_factory.mktemp("mixture"), [f"Write a sentence about the {word}" for word in words])


def test_the_table_is_complete_and_its_sample_is_small():
    assert len(CASES) >= 60
    assert SAMPLE == 5


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.sampled else (pytest.mark.complete, pytest.mark.separate))
        for case in CASES
    ],
)
def test_a_mistake_is_one_sentence(case, tmp_path, tiny_model, prompts):
    if case.within and not mounts_disks():
        pytest.skip("no process here may mount a disk (unshare --mount)")
    outcome = run(case, tmp_path, tiny_model, prompts, seconds=280)
    faults = wrong(outcome, case, tmp_path)
    assert not faults, f"{faults}\n" + "\n".join(outcome.lines)


@pytest.mark.complete
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_sigterm_ends_a_run_as_ctrl_c_does_and_the_same_command_goes_on(tmp_path, tiny_model, prompts):
    case = Case("a run is terminated", training.RUN.replace("steps=2", "steps=4"), ())
    with started_process(case, tmp_path, tiny_model, prompts) as process:
        step = tmp_path / "run" / "checkpoints" / "step_00000001"
        before = os.times().elapsed
        while not step.exists() and process.poll() is None and os.times().elapsed - before < 250:
            signal.sigtimedwait([], 0.2)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    lines = seen(output)
    assert process.returncode in (1, 130, 143), output
    assert len(lines) <= 3, lines
    assert not any("SIGTERM received" in line or "@  " in line for line in lines)
    again = run(case, tmp_path, tiny_model, prompts, seconds=300)
    assert again.status == 0, again.lines
