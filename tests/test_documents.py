"""What the documents name exists: pages, targets, files, modules, errors; every command in them has a test."""

import ast
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.programs import started

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BASES = ("", "tasks", "tasks/training", "workflows")
"""Folders that a path in the text is relative to."""
FOLDERS = (
    *("tasks", "workflows", "images", "data_specs", "docs", "tests", "generation", "training"),
    *("control", "groups", "actors", "learner", "records", "storage"),
)
IDS = [str(path.relative_to(ROOT)) for path in PAGES]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def quoted(page: Path, pattern: str) -> set[str]:
    """Texts in single backticks, outside of blocks, that match `pattern` whole."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {name for name in re.findall(r"`([^`\n]+)`", text) if re.fullmatch(pattern, name)}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_targets_of_make_exist(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z][\w-]*)", page.read_text(), re.MULTILINE))
    assert named <= targets, named - targets


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_paths_of_the_checkout_exist(page):
    for path in quoted(page, rf"(?:{'|'.join(FOLDERS)})/[\w/.-]*\w+/?"):
        assert any((ROOT / base / path).exists() for base in BASES), path


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_modules_and_their_members_exist(page):
    for name in quoted(page, r"tasks(?:\.\w+)+"):
        parts = name.split(".")
        while not (path := ROOT.joinpath(*parts)).is_dir() and not path.with_suffix(".py").is_file():
            parts.pop()
        members = name.split(".")[len(parts) :]
        module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        defined = rf"^(?:class |def |async def )?{''.join(members[:1])}\b"
        assert not members or re.search(defined, module.read_text(), re.MULTILINE), name


KINDS_OF_COMMANDS = {
    r"make [\w./-]+.*": "test_targets_of_make_exist",
    r"(RLVR_SECRETS='[^']+' )?make register .*": "tests/workflows/test_registered_workflows.py",
    r"rlvr run --remote .*": "tests/flyte/test_remote_launch.py, and tests/backend where there is a backend",
    r"rlvr run experiment .*": "tests/workflows/test_experiments.py",
    r"rlvr run( .*)?": "tests/workflows/test_tutorial.py, test_workflows_alone.py, test_pipeline.py",
    r"pyflyte run (workflows|tasks)/.*": "tests/workflows/test_workflows_alone.py",
    r"rlvr (plan|diff) .*": "test_commands_run",
    r"rlvr (new|check)( .*)?": "tests/commands/test_new.py, test_check.py",
    r"rlvr prune.*": "tests/commands/test_pruning.py",
    r"rlvr (launch|fetch) .*": "tests/flyte/test_executions.py",
    r"rlvr trace .*": "tests/workflows/test_pipeline.py",
    r"rlvr show .*": "tests/workflows/test_policies_and_benchmarks.py",
    r"rlvr compare .*": "tests/evaluation/test_runs.py",
    r"rlvr play .*": "tests/environments/test_documented.py",
    r"rlvr train .*": "tests/training/test_command.py",
    r"rlvr doctor .*": "tests/commands/test_group.py",
    r"rlvr tokens .*": "tests/token_page/test_token_page.py",
    r"rlvr view .*": "tests/view/test_view_command.py",
    r"python -c .*": "test_commands_run",
    r"python (make|trained)_rows\.py": "tests/workflows/test_tutorial.py",
    r"(source|export|pip install) .*": "the shell's own",
}
"""Which test runs a command of the documents, by what it looks like."""


def commands(page: Path) -> list[str]:
    """The commands in the blocks of a page that name no language: one a line, without comments."""
    blocks = re.findall(r"^```\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    starts = ("make ", "rlvr ", "pyflyte ", "python ", "source ", "export ", "pip ", "RLVR_")
    return [line.partition("   #")[0].strip() for line in lines if line.startswith(starts)]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_each_command_is_of_a_kind_that_a_test_runs(page):
    for command in commands(page):
        assert any(re.fullmatch(kind, command) for kind in KINDS_OF_COMMANDS), command


ALONE = [
    (page, command)
    for page in PAGES
    for command in commands(page)
    if command.startswith(("rlvr plan", "python -c")) and "my_" not in command
]


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.complete if "--zero-variance" in command else ())  # it simulates
        for command in sorted({command for _, command in ALONE})
    ],
)
def test_commands_run(command):
    program, *words = shlex.split(command)
    done = subprocess.run([*started(program), *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def errors_of_the_project() -> set[str]:
    """Public subclasses of the two classes of errors that a user may meet."""
    known, size = {"MistakeError", "InfrastructureError"}, 0
    classes = [
        (node.name, {base.id for base in node.bases if isinstance(base, ast.Name)})
        for path in (ROOT / "tasks").rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    ]
    while len(known) != size:
        size = len(known)
        known |= {name for name, bases in classes if bases & known}
    return known - {"MistakeError", "InfrastructureError"}


@pytest.mark.long
def test_every_class_of_error_has_its_row_in_the_page_of_troubles():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    missing = {name for name in errors_of_the_project() if f"`{name}`" not in page}
    assert not missing, missing
    named = set(re.findall(r"`(\w+Error)`", page))
    assert named <= errors_of_the_project(), named - errors_of_the_project()


def test_the_readme_stays_a_landing_page():
    assert len((ROOT / "README.md").read_text().split()) <= 1200
