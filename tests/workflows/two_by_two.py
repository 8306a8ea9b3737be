"""An experiment of two variants and two seeds with real engines, learners and verifiers: `make test-experiment`."""

import os
import subprocess
import sys

import pytest
import yaml

from tasks.tables.parquet import read_table
from tasks.tables.schemas import EVALUATION
from tests.paths import ROOT

EXPERIMENT = {
    "name": "two-by-two",
    "recipe": "quickstart",
    "seeds": [0, 1],
    "data": {
        "difficulty": None,
        "mixture.domains": {name: {"heldout": 3} for name in ("precise_if", "math", "code")},
    },
    "training": {"steps": 3, "groups_per_step": 4, "validation": {"every": 3, "prompts": 4, "samples": 2}},
    "evaluation": {"sampling.samples": 2},
    "variants": {"as-it-is": {}, "faster": {"training": {"optimizer.learning_rate": 9.0e-5}}},
}
"""The quickstart's model, three steps of four groups."""


@pytest.mark.timeout(3600)
def test_two_variants_with_two_seeds_each_are_trained_and_compared(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT))
    outputs = tmp_path / "outputs"
    environment = {**os.environ, "RLVR_OUTPUTS": str(outputs), "FLYTE_SDK_LOCAL_SANDBOX": str(outputs / "flyte")}
    command = [sys.executable, "-m", "tasks.commands", "run", "experiment", "--experiment", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    latest = outputs / "experiments" / "latest"
    page = (latest / "experiment.html").read_text()
    assert "2 variants with 2 seeds each" in page
    assert "tokens trained" in page
    table = read_table(latest / "experiment.parquet", EVALUATION).to_pandas()
    rates = table[(table.metric == "pass_rate") & (table.benchmark == "all")].set_index(["policy", "baseline"])
    assert list(rates.index.get_level_values(0).unique()) == ["initial", "as-it-is", "faster"]
    assert rates.n.unique().tolist() == [9]
    assert len(list(outputs.glob("[0-9]*/report.html"))) == 4
