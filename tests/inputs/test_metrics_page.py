"""The page of metrics is that of the code, and names what runs record."""

import re

from tasks.inputs.metrics_page import SECTIONS, metrics_page
from tests.paths import ROOT
from tests.training.stand_ins import Run, config, prompts

NAMES = [name for metrics in SECTIONS.values() for name in metrics]


def test_the_page_is_that_of_the_code():
    page = ROOT / "docs" / "metrics.md"
    assert page.read_text() == metrics_page(), "make reference"


def test_no_metric_is_declared_twice():
    assert len(set(NAMES)) == len(NAMES)


def test_every_metric_of_a_run_is_on_the_page(tmp_path):
    patterns = [re.compile(re.sub("<[a-z]+>", "[^/]+", name)) for name in NAMES]
    options = {"validation": {"every": 2, "prompts": 4, "samples": 2}, "prompts": {"retirement": {}, "reroll": {}}}
    replay = {"resampling": {"kind": "none"}, "replay": {}}
    for number, chosen in enumerate((options, replay, {"resampling": {"kind": "dynamic"}, "async_steps": 0})):
        run = Run(tmp_path / str(number), config(steps=4, **chosen), prompts(60)).play()
        recorded = set().union(*run.metrics())
        assert {name for name in recorded if not any(pattern.fullmatch(name) for pattern in patterns)} == set()
