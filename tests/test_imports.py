"""What may be loaded where: the command line and the data stages need no engine, and stages do not know each other."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.paths import ROOT

STAGES = ("sourcing", "cleaning", "difficulty", "mixing", "training", "evaluation", "reporting")
HEAVY = {"torch": "torch._C", "vllm": "vllm.config", "ray": "ray._raylet", "deepspeed": "deepspeed.runtime"}
"""A submodule that only a real import loads: flytekit leaves lazy placeholders under the names themselves."""

PROBE = """
import sys
{code}
found = [name for name, inner in {heavy!r}.items() if inner in sys.modules]
assert not found, found
"""


def run_probe(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(code=code, heavy=HEAVY)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.long
def test_help_of_the_pipeline_loads_no_engine():
    run_probe(
        "from click.testing import CliRunner\n"
        "from flytekit.clis.sdk_in_container.pyflyte import main\n"
        "done = CliRunner().invoke(main, ['run', 'workflows/rlvr.py', 'rlvr', '--help'])\n"
        "assert done.exit_code == 0 and '--data' in done.output, done.output"
    )


@pytest.mark.complete
@pytest.mark.long
def test_packaging_the_workflows_loads_no_engine_and_needs_no_docker(tmp_path):
    images = [f"--image={name}=registry.example/rlvr-{name}:v1" for name in ("data", "generation", "training")]
    run_probe(
        "from click.testing import CliRunner\n"
        "from flytekit.clis.sdk_in_container.pyflyte import main\n"
        f"done = CliRunner().invoke(main, ['--pkgs', 'workflows', 'package', *{images!r},"
        f" '--image', 'registry.example/rlvr-data:v1', '--output', {str(tmp_path / 'p.tgz')!r}])\n"
        "assert done.exit_code == 0, done.output"
    )
    assert (tmp_path / "p.tgz").stat().st_size > 0


@pytest.mark.complete
@pytest.mark.long
def test_the_data_stages_load_no_engine():
    run_probe(
        "from tasks.inputs.files import load_quickstart\n"
        "from tasks.sourcing.prompts import build_prompts\n"
        "from tasks.mixing.mix import mix\n"
        "from tasks.evaluation.comparison import compare\n"
        "from tasks.reporting.page import render\n"
        "data, training, evaluation = load_quickstart()\n"
        "for source in data.sources: build_prompts(source, data.max_prompt_chars)"
    )


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_no_other_stage(stage):
    others = tuple(f"tasks.{other}" for other in STAGES if other != stage)
    for path in (ROOT / "tasks" / stage).rglob("*.py"):
        known = {name for name in imports_of(path) if name.startswith(others)}
        assert not known, f"{path.relative_to(ROOT)} imports {known}"


@pytest.mark.long
def test_nothing_imports_the_workflows():
    for path in (ROOT / "tasks").rglob("*.py"):
        assert not any(name.split(".")[0] == "workflows" for name in imports_of(path)), path


def test_the_objective_is_pure():
    forbidden = ("ray", "flytekit", "deepspeed", "vllm", "pathlib", "os", "asyncio")
    for path in (ROOT / "tasks" / "objective").rglob("*.py"):
        assert not {name.split(".")[0] for name in imports_of(path)} & set(forbidden), path


@pytest.mark.long
def test_plain_modules_know_nothing_of_flyte():
    for path in (ROOT / "tasks").rglob("*.py"):
        stages = ("task", "rollout_tasks", "harness_task", "runs_task", "pin_tasks")
        stages = (*stages, "preflight", "handed_on", "composed_again")
        declares_tasks = path.parent.name == "flyte" or path.stem in stages
        if not declares_tasks and path != ROOT / "tasks" / "kubernetes" / "pods.py":
            assert not any(name.split(".")[0].startswith("flytekit") for name in imports_of(path)), path


FLOORS = {
    "tasks": (
        *("failures", "excerpts", "charts", "config", "kubernetes", "machine", "tables", "lineage", "storage", "flyte"),
        *("statistics", "verifiers", "generation", "environments", "rollouts"),
        *("sourcing", "cleaning", "difficulty", "mixing", "evaluation"),
        *("recipe", "objective", "sizing", "training", "model_check", "inputs", "planning", "gpu_check"),
        *("cluster_check", "reporting", "view", "token_page", "commands"),
    ),
    "tasks.training": ("runtime", "groups", "learner", "records", "actors", "cluster", "telemetry", "control"),
}
"""The folders of a package. Each imports from those before it and from none after it.

The modules of `tasks.training` itself start what its folders contain.
"""


def find_floor(module: str, package: str) -> int | None:
    """The index of the folder of `package` that contains `module`, after the last if none does; None if outside."""
    if not module.startswith(f"{package}."):
        return None
    name = module.removeprefix(f"{package}.").split(".")[0]
    return FLOORS[package].index(name) if name in FLOORS[package] else len(FLOORS[package])


def test_the_only_module_that_lies_directly_in_tasks_is_failures():
    assert {path.stem for path in (ROOT / "tasks").glob("*.py")} == {"__init__", "failures"}


@pytest.mark.long
@pytest.mark.parametrize("package", FLOORS)
def test_no_import_runs_up_a_floor(package):
    folder = ROOT.joinpath(*package.split("."))
    assert {path.parent.name for path in folder.glob("*/*.py")} <= set(FLOORS[package])
    for path in folder.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        floors = {name: find_floor(name, package) for name in imports_of(path)}
        above = [name for name, floor in floors.items() if floor is not None and floor > find_floor(module, package)]
        assert not above, f"{module} imports {above}, which stand above it"


@pytest.mark.long
def test_no_modules_import_each_other_even_indirectly():
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "tasks").rglob("*.py")}
    imports = {module: imports_of(path) & paths.keys() - {module} for module, path in paths.items()}
    TopologicalSorter(imports).prepare()  # its CycleError names the modules
