"""The code that a training job gives to the nodes of its Ray cluster, and what it asks KubeRay to start them with."""

import json
import subprocess

from flytekit import Resources

from tasks.flyte.ray_job import HeadNodeConfig, RayJobConfig, RayJobTask, WorkerNodeConfig, copy_code
from tests.paths import ROOT


def test_code_is_shipped_and_what_else_lies_in_a_home_folder_is_not(tmp_path):
    home, target = tmp_path / "home", tmp_path / "target"
    target.mkdir()
    files = {
        "rewards.py": "def f(): ...",
        "tasks/__init__.py": "",
        "tasks/charts/templates/page.css": "p {}",
        "tasks/__pycache__/x.pyc": "x" * 1000,
        ".cache/huggingface/model.safetensors": "x" * 1000,
        ".venv/lib.py": "x",
        "outputs/flyte/raw/rows.parquet": "x" * 1000,
        "older.tar.gz": "x" * 1000,
    }
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    size = copy_code(home, target)
    shipped = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert shipped == {"rewards.py", "tasks/__init__.py", "tasks/charts/templates/page.css"}
    assert size == sum(len(files[name]) for name in shipped)


def test_the_packages_of_this_project_are_shipped_with_their_files(tmp_path):
    assert copy_code(ROOT, tmp_path) < 20e6
    for name in ("tasks/charts/templates/page.css", "images/lock-cuda.txt", "workflows/recipes/grpo.yaml"):
        assert (tmp_path / name).is_file()
    assert (tmp_path / "data_specs" / "rewards.py").is_file()


def job_of(*groups):
    """The message of a job with these groups of workers."""
    amounts = Resources(cpu="8", mem="64Gi", gpu="8")
    task = RayJobTask(RayJobConfig(HeadNodeConfig(amounts), list(groups)), lambda: None)
    return task.get_custom(None)["rayCluster"]


def test_a_groups_resources_of_ray_are_a_parameter_that_kuberay_can_write_and_read():
    worker = WorkerNodeConfig("learner", 2, Resources(cpu="8"), ray_resources={"rlvr_learner": 1.0})
    message = job_of(worker)
    assert "rayStartParams" not in message["headGroupSpec"], "the plugin's defaults"
    parameters = message["workerGroupSpec"][0]["rayStartParams"]
    assert parameters == {"resources": "'{\"rlvr_learner\":1.0}'", "disable-usage-stats": "true"}
    line = f"printf %s --resources={parameters['resources']}"  # as KubeRay writes the container's command
    printed = subprocess.run(["/bin/bash", "-lc", "--", line], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed.removeprefix("--resources=")) == {"rlvr_learner": 1}
    assert json.loads(parameters["resources"].strip("'\"` ")) == {"rlvr_learner": 1}, "as KubeRay reads it"


def test_a_group_without_such_resources_has_the_plugins_defaults():
    [group] = job_of(WorkerNodeConfig("workers", 1, Resources(cpu="8")))["workerGroupSpec"]
    assert "rayStartParams" not in group
