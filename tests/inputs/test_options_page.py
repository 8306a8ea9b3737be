"""The reference pages of options: those of the code, complete, and right about cache keys."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from tasks.config.loading import Config, RunTime
from tasks.difficulty.spec import RolloutSpec
from tasks.difficulty.stopping import Bounds
from tasks.evaluation.spec import EvaluationSpec
from tasks.inputs.json_schema import FILES, json_schema
from tasks.inputs.options_page import Examples, list_sections, page, write
from tasks.recipe.run import TrainingConfig, ValidationConfig
from tasks.verifiers.config import VerifiersConfig
from tests.paths import ROOT

PAGES = ROOT / "docs" / "options"


def test_the_pages_are_those_of_the_code(tmp_path):
    write(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (PAGES / path.name).read_text(), "stale: make reference"


@pytest.mark.parametrize("name", FILES)
def test_every_option_of_a_file_is_on_its_page(name):
    schema, text = json_schema(FILES[name]), page(name, FILES[name], Examples(FILES[name].folder))
    for part in (schema, *schema.get("$defs", {}).values()):
        for option in set(part.get("properties", {})) - {"extends"}:
            assert f"- **`{option}`** (" in text, option


def test_every_configuration_that_a_stage_takes_is_on_a_page():
    documented = {section.model for root in FILES.values() for section in list_sections(root)}
    taken = {
        section.model
        for root in (RolloutSpec, EvaluationSpec, TrainingConfig, VerifiersConfig)
        for section in list_sections(root)
    }
    # Two are put together from options of difficulty, and the files hold all options of training, validation and
    # evaluation.
    assert taken - documented == {RolloutSpec, Bounds, TrainingConfig, ValidationConfig, EvaluationSpec}


class Leaf(Config):
    """A leaf.

    More about it.
    """

    kind: Literal["a", "b"] = "a"
    """One of
    two | kinds."""
    width: int | None = Field(None, ge=1, lt=9)
    """Width in metres."""


class Root(Config):
    """The whole file."""

    name: str
    """A name."""
    leaf: Leaf = Leaf(kind="b")
    """Decides."""
    spare: RunTime[Leaf] = Leaf()
    """Does not decide."""
    rates: RunTime[list[Annotated[float, Field(gt=0)]]] = Field(default_factory=lambda: [0.5])
    """Rates."""


def test_a_page_has_type_bounds_default_and_meaning_of_each_option_and_whether_it_is_in_no_key(tmp_path):
    lines = page("data", Root, Examples(tmp_path)).splitlines()
    assert "- **`name`** (str; required) A name." in lines
    assert '- **`leaf`** ([Leaf](#leaf); default `{"kind": "b"}`) Decides.' in lines
    spare = "- **`spare`** ([Leaf (run-time)](#leaf-run-time); default its own defaults; run-time) Does not decide."
    assert spare in lines
    assert "- **`rates`** (list of float, > 0; default `[0.5]`; run-time) Rates." in lines
    assert "Keys: `leaf`. A leaf." in lines
    assert "Keys: `spare`. A leaf." in lines
    assert '- **`kind`** (`a`, `b`; default `"a"`) One of two | kinds.' in lines
    assert '- **`kind`** (`a`, `b`; default `"a"`; run-time) One of two | kinds.' in lines
    assert "- **`width`** (int or null, ≥ 1, < 9; default `null`) Width in metres." in lines


def test_examples_of_an_option_are_the_values_that_files_set_however_they_write_its_path(tmp_path):
    (tmp_path / "a.yaml").write_text("name: first\nleaf: {kind: b}\n")
    (tmp_path / "b.yaml").write_text("name: second\nleaf.kind: a\nspare.width: 3\n")
    (tmp_path / "c.yaml").write_text(f"name: {'very ' * 20}long\nleaf.kind: b\n")
    lines = page("data", Root, Examples(tmp_path)).splitlines()
    assert '- **`name`** (str; required) A name. Example: `"first"` (a), `"second"` (b).' in lines
    assert '- **`kind`** (`a`, `b`; default `"a"`) One of two | kinds. Example: `"b"` (a), `"a"` (b).' in lines
    assert any(line.startswith("- **`width`**") and line.endswith("metres. Example: `3` (b).") for line in lines)
