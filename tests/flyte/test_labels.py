"""Labels of an execution are names that Kubernetes takes, whatever a user calls a file."""

import re

import pytest

from tasks.flyte.labels import LONGEST, fit, make_labels
from tasks.inputs.files import Recipe

LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""What Kubernetes takes for the value of a label."""


@pytest.mark.parametrize("name", ["grpo", "my recipe (2)", "_x_", "Größe", "a" * 62 + ".b", "a" * 200, "-.-x"])
def test_a_name_is_made_fit(name):
    assert LABEL.fullmatch(fit(name))
    assert len(fit(name)) <= LONGEST


def test_a_files_own_name_stands_before_the_one_that_the_recipe_has_and_one_without_letters_is_left_out():
    recipe = Recipe(data="gsm8k", evaluation="specs/my eval.yaml")
    given = {"training": "runs/mine.yaml", "data": "rows/other.yaml"}
    assert make_labels(given, recipe) == {"recipe": "mine", "data": "other", "evaluation": "my-eval"}
    assert make_labels({"training": "???.yaml", "spec": "mixture.yaml"}, None) == {}
