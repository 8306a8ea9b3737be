"""What docs/clusters.md shows besides commands: the launch plan on a schedule."""

import re

import pytest

from tests.paths import ROOT

PAGE = (ROOT / "docs" / "clusters.md").read_text()


@pytest.mark.long
def test_a_launch_plan_has_the_schedule_of_the_document():
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names = {}
    exec(code, names)  # noqa: S102 the document's own
    plan = names["NIGHTLY"]
    assert plan.name == "rlvr_nightly"
    assert plan.schedule.cron_schedule.schedule == "0 2 * * *"
    assert set(plan.parameters.parameters) == {"data", "training", "evaluation"}
