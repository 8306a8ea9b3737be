"""The quickstart fits into its pod: from the first row to the report under the limit that its recipe asks for."""

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from tasks.inputs.disk_needs import measure_stored_models
from tasks.inputs.files import load_quickstart
from tasks.inputs.memory_needs import estimate_training_needs
from tasks.training.cluster.pods import build_controller_pod
from tests import pod
from tests.object_store import object_store
from tests.paths import ROOT

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.engine,
    pytest.mark.complete,
    pytest.mark.separate,  # it needs the memory of a whole pod
    pytest.mark.timeout(7200),
]

UPLOADS = 10
MOST_GIB = 13
DRIVER = "python"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The pod, what its command printed, and its exit status, of a quickstart that uploads each of its checkpoints."""
    if reason := pod.missing():
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("pod")
    (home / "home").mkdir()
    recipe = home / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"extends": "quickstart", "steps": UPLOADS, "checkpoint_every": 1}))
    with object_store() as store:
        environment = os.environ | store.environment
        environment |= {"HOME": str(home / "home"), "RLVR_RUNS": "s3://runs/all", "PYTHONPATH": str(ROOT)}
        environment["FLYTE_SDK_LOCAL_SANDBOX"] = str(home / "flyte")

        def uploaded():
            manifests = (re.search(r"/step_(\d+)\.\w+/manifest.json$", name) for name in store.keys("all"))
            return max((int(match[1]) for match in manifests if match), default=0)

        data, training, _ = load_quickstart()
        asked = build_controller_pod(training, training.cluster, models=measure_stored_models(training, data))
        made = pod.Pod(asked.memory_gib, asked.shared_memory_gib * 1024, uploaded)
        pyflyte = str(Path(sys.executable).with_name("pyflyte"))
        command = [pyflyte, "run", str(ROOT / "workflows" / "rlvr.py"), "rlvr", "--training", str(recipe)]
        status = made.run(command, environment, home, timeout=7000)
        assert store.keys("all")
    print(table(made))
    return made, (home / "log.txt").read_text(), status


def table(made):
    """The processes when the pod had the least memory left, and the most of each."""
    most = {name: max(s.by_process.get(name, 0) for s in made.samples) for s in made.samples for name in s.by_process}
    rows = [f"{'peak':24}{made.peak.used:6.2f}"]
    rows += [f"{name:24}{made.peak.by_process.get(name, 0):6.2f}  at most {gib:.2f}" for name, gib in most.items()]
    return "\n".join(rows)


def test_the_quickstart_runs_in_its_pod_and_leaves_it_three_gib(ran):
    made, log, status = ran
    assert status == 0, log[-3000:]
    assert made.kills == 0
    assert "memory usage threshold" not in log  # Ray's words on what its monitor kills
    assert made.samples[-1].mark == UPLOADS
    assert made.peak.used <= MOST_GIB


def test_the_driver_does_not_grow_with_uploads(ran):
    def most(samples):
        return max(sample.by_process.get(DRIVER, 0) for sample in samples)

    made, _, _ = ran
    assert most(made.samples) - most(sample for sample in made.samples if sample.mark <= 2) < 0.1


def test_the_need_that_preflight_computes_is_that_of_the_processes(ran):
    made, log, _ = ran
    data, training, _ = load_quickstart()
    dtype = "float32" if "float32 is used" in log else "bfloat16"
    needed = sum(estimate_training_needs(data, training, dtype=dtype).values())
    assert 0.9 < needed / made.peak.used < 1.3
