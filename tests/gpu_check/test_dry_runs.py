"""`make gpu-check DRY=1`: all parts, and the learner's on a machine without vLLM, Ray and Flyte."""

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from tasks.gpu_check.parts import PARTS, VARIANTS, variant_check
from tasks.gpu_check.sizes import TINY
from tests.paths import ROOT

pytestmark = [pytest.mark.complete, pytest.mark.engine, pytest.mark.timeout(3600)]

ABSENT = ("ray", "vllm", "flytekit", "pandas", "pyarrow", "polars")
WITHOUT = f"import sys\nfor name in {ABSENT}:\n    sys.modules[name] = None\n"
"""What every Python process runs first, so that packages seem not to be installed."""
ON_GPUS = set() if torch.cuda.is_available() else {"FP8", "offloading"}


def gpu_check(folder, *options, **environment):
    """Run the command; return the checks by name, and what it printed."""
    file = folder / "gpu.json"
    command = [sys.executable, "-m", "tasks.gpu_check", "--dry", "--json", str(file), *options]
    done = subprocess.run(command, cwd=ROOT, env=environment or None, capture_output=True, text=True)
    logs = "".join(log.read_text()[-3000:] for log in (folder / "gpu_parts").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return {check["name"]: check for check in json.loads(file.read_text())["checks"]}, done.stdout


def names(checks, status):
    return {name for name, check in checks.items() if check["status"] == status}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dry")


def test_every_part_runs_on_cpus_to_the_end(folder):
    checks, printed = gpu_check(folder)
    assert checks.keys() == {"model", *(name for part in PARTS.values() for name in part.checks)}
    assert names(checks, "failed") == set()
    assert names(checks, "skipped") - ON_GPUS == {
        variant_check(name)
        for name, variant in VARIANTS.items()
        if (variant.needs_gpu and not torch.cuda.is_available())
        or (variant.package and not importlib.util.find_spec(variant.package))
    }
    assert all(f"{letter} {part.title}" in printed for letter, part in PARTS.items())
    assert (folder / "gpu_parts" / "E-report.html").read_text().startswith("<!DOCTYPE html>")
    assert len((folder / "gpu_parts" / "E-metrics.jsonl").read_text().splitlines()) == 8
    for run in ("pipeline", "lost engine"):
        assert 0 < checks[run]["figures"]["reward of the first step"] < 1
    assert checks["lost engine"]["figures"]["engines lost"] == 1


def test_the_learner_is_checked_without_ray_vllm_and_flyte(tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WITHOUT)
    monkeypatch.setenv("PYTHONPATH", f"{site}:{ROOT}")
    checks, printed = gpu_check(tmp_path, "--variants", "plain")
    assert names(checks, "failed") == set()
    assert names(checks, "skipped") - ON_GPUS == {
        name for part in PARTS.values() if "vllm" in part.packages for name in part.checks
    }
    assert checks["pipeline"]["reason"] == "no vLLM, no Ray, no flytekit"
    assert checks["imports"]["figures"]["vllm"] == "not installed"
    assert checks["training"]["figures"]["trained tokens/s"] > 0
    assert checks["training"]["figures"]["tokens of a row"] == TINY.row_tokens
    for name in ("attention", "policy", "log-probabilities", "LoRA", "variant plain"):
        assert f"passed   {name}" in printed
