"""Environments are played on a first row, with dummy turns, before anything is sampled."""

import json

import pytest
from pydantic import ValidationError

from tasks.config.loading import SpecError
from tasks.environments.conversation import ChatTemplate
from tasks.generation.models import LocalFolder, ModelSpec
from tasks.inputs.environments import check_environment, load_template
from tasks.inputs.files import DataFile
from tasks.sourcing import loaders
from tests.environments import templates
from tests.environments.templates import speaking

pytestmark = pytest.mark.long


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Check the environment of a source of questions."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "Count.", "low": 1, "high": 7}) + "\n")

    def checked(name, template=None, **environment):
        source = {"name": "games", "domain": "games", "verifier": "environment"}
        source["loader"] = {"kind": "jsonl", "path": str(tmp_path / "rows.jsonl")}
        source["environment"] = {"name": name, **environment}
        data = DataFile.model_validate({"name": "my-data", "sources": [source]})
        [read] = data.sources
        check_environment(read, loaders.check(read), data, template)

    return checked


def test_environments_that_work_are_accepted(check):
    check("tests.environments.rooms.count")
    check("guess_number", columns=["low", "high"])
    check("second_try")
    check("python_tool")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tests.environments.rooms.raising", "raised KeyError"),
        ("tests.environments.rooms.hasty", "ended before a turn"),
        ("tests.environments.rooms.missing", "cannot be imported"),
        ("nowhere.to_be_found", "there is no module nowhere"),
        ("guess_number", "raised TypeError"),
    ],
)
def test_one_that_fails_in_every_episode_is_refused(check, name, reason):
    with pytest.raises(SpecError) as refused:
        check(name)
    assert reason in str(refused.value)
    assert str(refused.value).startswith("my-data: source 'games': ")


def test_a_message_that_the_policys_template_leaves_out_is_refused(check):
    template = ChatTemplate(speaking(templates.NO_TOOL), {})
    for name, options in (
        ("python_tool", {}),
        ("call_tools", {"tools": ["tests.environments.tools_of_tests.add"]}),
        ("tests.environments.rooms.Countdown", {}),
    ):
        with pytest.raises(SpecError) as refused:
            check(name, template, **options)
        assert f"environment {name}: the chat template of" in str(refused.value)
        assert "leaves out a message of the role 'tool'" in str(refused.value)
    check("python_tool", template, options={"role": "environment"})
    check("tests.environments.rooms.count", template)


def test_only_a_tokenizer_that_is_at_hand_is_loaded(tiny_model):
    folder = ModelSpec(source=LocalFolder(path=str(tiny_model)))
    assert load_template(folder, {}).control_tokens == ["<|im_end|>", "<|im_start|>", "<|pad|>"]
    assert load_template(ModelSpec(), {}) is None


def test_a_name_that_is_nearly_right_is_refused_with_a_hint(check):
    with pytest.raises(ValidationError) as refused:
        check("guess_nubmer")
    assert "did you mean 'guess_number'" in str(refused.value)


def test_what_contradicts_itself_is_refused(check):
    with pytest.raises(ValidationError) as refused:
        check("second_try", columns=["low"], options={"low": 1})
    assert "among columns and options" in str(refused.value)
