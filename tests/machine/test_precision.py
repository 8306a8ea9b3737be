"""Which type `auto` becomes, on processors that compute bfloat16 fast, slowly, and that nobody can ask."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tasks.failures import MistakeError
from tasks.machine import precision
from tasks.recipe.run import TrainingConfig
from tasks.training.run import resolve_types


def processor(monkeypatch, supported=None, rates=None):
    """A processor of which oneDNN says whether it is `supported`, or cannot be asked, with these product rates."""
    asked = SimpleNamespace() if supported is None else SimpleNamespace(_is_mkldnn_bf16_supported=lambda: supported)
    monkeypatch.delenv(precision.CPU_DTYPE, raising=False)
    monkeypatch.setattr(torch.ops, "mkldnn", asked)
    monkeypatch.setattr(precision, "measure_product_rate", lambda dtype, seconds: rates[dtype])


@pytest.mark.parametrize(
    ("supported", "rates", "expected"),
    [
        (True, None, "bfloat16"),
        (False, None, "float32"),
        (None, {"bfloat16": 250e9, "float32": 80e9}, "bfloat16"),
        (None, {"bfloat16": 54e9, "float32": 80e9}, "bfloat16"),
        (None, {"bfloat16": 7.7e9, "float32": 30e9}, "float32"),  # AVX2
    ],
)
def test_auto_is_what_the_processor_is_fast_at(monkeypatch, supported, rates, expected):
    processor(monkeypatch, supported, rates)
    assert precision.resolve("auto", gpu=False) == expected
    assert precision.resolve("auto", gpu=True) == "bfloat16"


@pytest.mark.parametrize("asked", ["bfloat16", "float32"])
@pytest.mark.parametrize("supported", [True, False])
def test_the_environment_decides_instead_of_the_processor_and_for_no_gpu(monkeypatch, supported, asked):
    processor(monkeypatch, supported)
    monkeypatch.setenv(precision.CPU_DTYPE, asked)
    assert precision.resolve("auto", gpu=False) == asked
    assert precision.has_bfloat16() == (asked == "bfloat16")
    assert precision.resolve("auto", gpu=True) == "bfloat16"
    assert precision.resolve("float16", gpu=False) == "float16"


def test_the_environment_may_not_ask_for_another_type(monkeypatch):
    monkeypatch.setenv(precision.CPU_DTYPE, "float16")
    with pytest.raises(MistakeError, match="RLVR_CPU_DTYPE = float16"):
        precision.resolve("auto", gpu=False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("supported", [True, False])
def test_a_type_that_is_written_down_is_used(monkeypatch, supported, dtype):
    processor(monkeypatch, supported)
    assert precision.resolve(dtype, gpu=False) == precision.resolve(dtype, gpu=True) == dtype


@pytest.mark.long
def test_under_avx2_alone_float32_is_used():
    done = subprocess.run(
        [sys.executable, "-c", "from tasks.machine.precision import resolve; print(resolve('auto', gpu=False))"],
        env={name: value for name, value in os.environ.items() if name != precision.CPU_DTYPE}
        | {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "float32", done.stderr


def test_a_product_has_a_rate_in_both_types():
    assert min(precision.measure_product_rate(dtype, seconds=0.01) for dtype in ("bfloat16", "float32")) > 1e6


def test_learner_and_engines_of_a_run_get_one_decision_and_it_is_said_once(monkeypatch, capsys):
    processor(monkeypatch, supported=False)
    run = resolve_types(TrainingConfig(), learner="auto", gpu=False)
    assert (run.learner.dtype, run.actors.engine.dtype) == ("float32", "float32")
    assert capsys.readouterr().err == "this processor computes bfloat16 slowly: float32 is used\n"


def test_a_run_goes_on_in_the_type_of_its_checkpoint(monkeypatch, capsys):
    processor(monkeypatch, supported=True)
    run = resolve_types(TrainingConfig(), learner="float32", gpu=False)
    assert (run.learner.dtype, run.actors.engine.dtype) == ("float32", "bfloat16")
    assert not capsys.readouterr().err
