"""What a contributor meets: the workflow of continuous integration, hooks, the citation, and `make help`."""

import re
import shutil
import subprocess
import sys
import tomllib

import yaml

from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


def test_each_step_on_github_is_a_target_that_the_checks_of_a_clean_clone_run():
    workflow = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())
    steps = workflow["jobs"]["check"]["steps"]
    used, run = [step["uses"] for step in steps if "uses" in step], [step["run"] for step in steps if "run" in step]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)
    assert run == re.findall(r"^make \w+", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert workflow["permissions"] == {"contents": "read"}


def test_hooks_lint_and_format_what_is_committed(tmp_path):
    path = tmp_path / "changed.py"
    path.write_text("import os\nx = {  'a':1 }\n")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for hook in HOOKS:
        program, *arguments = hook["entry"].split()
        assert program.startswith(".venv/bin/")
        if "ruff" in program:
            command = [sys.executable, "-m", "ruff", *arguments, str(path)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert path.read_text() == 'x = {"a": 1}\n'


def test_what_the_hook_tests_is_tested_by_make_check_too():
    (tested,) = [hook["entry"].split(" -q ")[1] for hook in HOOKS if "pytest" in hook["entry"]]
    assert tested in (ROOT / "Makefile").read_text()


def test_the_citation_is_of_the_version_of_the_package_and_of_the_changelog():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    newest = re.search(r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest.groups() == (citation["version"], str(citation["date-released"]))


def test_make_help_lists_every_target_with_what_it_does():
    makefile = (ROOT / "Makefile").read_text()
    internal = {"registry-is-named", "accelerator-is-known", "config-exists"}
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()) - internal
    done = subprocess.run(
        [shutil.which("make"), "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert listed.keys() == targets
