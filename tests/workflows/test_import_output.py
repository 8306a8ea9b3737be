"""The output of a process that imports the workflows, as each pod does before its work."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from pydantic import ValidationError

from tasks.sourcing.spec import EvaluationSet
from tasks.tables.schemas import StageSummary

ROOT = Path(__file__).parents[2]
MODULES = ("rlvr", "data", "training", "evaluation", "launch_plans")


@pytest.mark.long
@pytest.mark.parametrize("verbose", ["0", pytest.param("1", marks=pytest.mark.complete)])
def test_importing_the_workflows_logs_nothing_about_unsupported_types(verbose):
    statement = "import " + ", ".join(f"workflows.{module}" for module in MODULES)
    done = subprocess.run(
        [sys.executable, "-c", statement],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "RLVR_VERBOSE": verbose},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Unsupported" not in done.stdout + done.stderr
    if verbose == "0":
        assert done.stdout + done.stderr == ""


def test_facts_pass_between_tasks_with_their_types():
    facts = {"steps": 2**53 + 1, "rate": 0.5, "resumed": None, "verifiers": {"math": {"pairs": [1, 2.0, "x", True]}}}
    summary = StageSummary("training", datetime(2026, 1, 1, tzinfo=UTC), 1.5, "trained", facts)
    context = FlyteContextManager.current_context()
    literal = TypeEngine.to_literal(context, summary, StageSummary, TypeEngine.to_literal_type(StageSummary))
    back = TypeEngine.to_python_value(context, literal, StageSummary).facts
    assert back == facts
    assert type(back["steps"]) is int
    assert type(back["verifiers"]["math"]["pairs"][1]) is float


def test_conditions_on_columns_pass_between_tasks_and_their_keys_are_texts():
    given = {"name": "held", "loader": {"kind": "jsonl", "path": "x.jsonl"}, "where": {"split": ["a", 2], "level": 1.5}}
    held = EvaluationSet.model_validate(given)
    context = FlyteContextManager.current_context()
    literal = TypeEngine.to_literal(context, held, EvaluationSet, TypeEngine.to_literal_type(EvaluationSet))
    assert TypeEngine.to_python_value(context, literal, EvaluationSet).where == given["where"]
    with pytest.raises(ValidationError, match="should be a valid string"):
        EvaluationSet.model_validate(given | {"where": {1: "a"}})
