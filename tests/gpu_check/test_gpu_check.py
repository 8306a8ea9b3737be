"""The checks of a GPU: time sharing in a dry run, and what they do with a fault."""

import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tasks.gpu_check import learning, values, weights
from tasks.gpu_check.results import Findings, SkippedError, format_table, run_check
from tasks.gpu_check.sizes import FULL, TINY
from tasks.planning.measured import read_measured_rates
from tasks.storage.tensor_digest import compute_contents
from tasks.training.learner.attention import packed_attention
from tasks.training.learner.logprobs import token_logprobs
from tests.paths import ROOT

CPU = torch.device("cpu")
TURNS = """
import sys, tempfile
from pathlib import Path
from tasks.gpu_check import learning, time_sharing
from tasks.gpu_check.results import Findings
from tasks.gpu_check.sizes import TINY, save_random_model

if __name__ == "__main__":
    import torch

    folder = Path(sys.argv[1])
    save_random_model(folder, TINY.model, torch.float32)
    findings = Findings()
    time_sharing.TurnsCheck(TINY, folder, learning.LearnerChecks(TINY, folder))(findings)
    print(findings)
    sys.exit(1 if findings.faults else 0)
"""


@pytest.mark.complete
@pytest.mark.engine
def test_an_engine_and_a_learner_take_turns_in_a_dry_run(tmp_path):
    script = tmp_path / "turns.py"
    script.write_text(TURNS)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script, tmp_path / "model"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for figure in ("engine falls asleep, second time, s", "reload_states, s", "engine wakes and takes weights, second"):
        assert figure in done.stdout


def test_an_error_is_one_row_and_leaves_the_figures():
    def runs_out_of_memory(findings):
        findings.figures["step, s"] = 2.5
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 9 GiB")

    result = run_check("training", runs_out_of_memory)
    assert result.status == "failed"
    assert result.reason == "OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB"
    assert result.figures == {"step, s": 2.5}
    assert "2.5" in format_table([result])


def test_a_check_that_cannot_run_is_no_fault():
    def no_gpu(findings):
        raise SkippedError("there is no GPU.")

    assert run_check("FP8", no_gpu).status == "skipped"


def test_attention_with_a_window_too_long_by_one_token_is_a_fault(monkeypatch):
    def too_long(*arguments, sliding_window=None, **options):
        return packed_attention(*arguments, sliding_window=sliding_window and sliding_window + 1, **options)

    monkeypatch.setitem(values.FUNCTIONS, "packed_blocks", too_long)
    findings = Findings()
    values.check_attention(findings, TINY, CPU, torch.float32)
    assert len(findings.faults) == 4
    assert all(
        "packed_blocks differs from eager attention" in fault and "window 8" in fault for fault in findings.faults
    )


def test_a_wrong_temperature_is_a_fault(monkeypatch):
    def hotter(*arguments, temperature, **options):
        return token_logprobs(*arguments, temperature=1.01 * temperature, **options)

    monkeypatch.setattr(values, "token_logprobs", hotter)
    findings = Findings()
    values.check_logprobs(findings, TINY, CPU, torch.float32)
    assert findings.faults
    assert all("Log-probabilities differ from the reference" in fault for fault in findings.faults)


def test_the_rates_of_weights_are_those_that_a_plan_reads(tmp_path):
    result = run_check("weights", lambda findings: weights.check_weights(findings, TINY, CPU, torch.float32))
    assert (result.status, result.reason) == ("passed", "")
    for way in ("GPU to memory", "memory to GPU"):
        for kind in ("registered", "not registered"):
            assert result.figures[f"{way}, {kind}, GB/s"] > 0
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({"machine": {"gpu": "none"}, "checks": [dataclasses.asdict(result)]}))
    rates = read_measured_rates(file)
    assert (rates.write, rates.load) == (
        result.figures["learner to file, GB/s"] * 1e9,
        result.figures["file to engine, GB/s"] * 1e9,
    )


def test_a_file_with_other_weights_is_a_fault(monkeypatch):
    monkeypatch.setattr(
        weights, "compute_contents", lambda tensors: compute_contents(tensors | {"another": torch.ones(1)})
    )
    findings = Findings()
    weights.check_weights(findings, TINY, CPU, torch.float32)
    assert findings.faults == ["A file contains other weights than were written."]


def test_a_machine_with_too_little_shared_memory_is_skipped(monkeypatch):
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    result = run_check("weights", lambda findings: weights.check_weights(findings, TINY, CPU, torch.float32))
    assert result.status == "skipped"


@pytest.mark.parametrize(("peak", "faults"), [(11.4, 0), (8.6, 0), (11.6, 1), (8.4, 1)])
def test_peak_memory_may_be_15_percent_from_the_plan(peak, faults):
    for backward, update in ((peak, 1.0), (1.0, peak)):
        findings = Findings()
        learning.compare_peaks(findings, backward * 1e9, update * 1e9, 10e9)
        assert len(findings.faults) == faults
        assert findings.figures["peak memory, GB"] == peak


def test_sizes_are_those_of_a_1_5_billion_model_and_a_row_of_olmo_3():
    assert FULL.model.parameters == pytest.approx(1.54e9, rel=0.01)
    assert FULL.row_tokens == 35_840
    assert FULL.context == pytest.approx(sum(n * n for n in FULL.row) / 2 / 35_840)
    assert max(FULL.windows) < max(FULL.attention_row)


def test_dense_attention_by_hand():
    """Values are 0, 1, 2, 3; equal scores make each output the mean of what a token attends to."""
    query = key = torch.zeros(1, 1, 4, 2)
    value = torch.arange(4.0).expand(1, 1, 2, 4).transpose(2, 3)
    positions = torch.tensor([0, 1, 2, 0])
    out = values.compute_dense_attention(query, key, value, positions, 1.0, None)
    assert out[0, :, 0, 0].tolist() == [0, 0.5, 1, 3]
    out = values.compute_dense_attention(query, key, value, positions, 1.0, 2)
    assert out[0, :, 0, 0].tolist() == [0, 0.5, 1.5, 3]


def test_figures_are_json():
    result = run_check("sizes", lambda findings: findings.figures.update(seconds=1.0, name="a"))
    assert json.loads(json.dumps(dataclasses.asdict(result)))["figures"] == {"seconds": 1.0, "name": "a"}
