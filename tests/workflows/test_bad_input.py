"""A mistake in what the user gives is one error, before anything expensive, that names file, field and value."""

import re

import pytest
import yaml
from click.testing import CliRunner
from flytekit.clis.sdk_in_container.pyflyte import main

from tasks.config import SpecError
from tasks.generation.models import ModelError
from tasks.preflight import check
from tasks.spec import DataFile, Recipe, quickstart


def data(**changes) -> DataFile:
    base = quickstart()[0].model_dump(mode="json", exclude_unset=True)
    return DataFile.model_validate(base | changes)


def jsonl(path) -> dict:
    return {
        "name": "mine",
        "domain": "math",
        "verifier": "math",
        "loader": {"kind": "jsonl", "path": str(path)},
        "columns": {"prompt": "question", "ground_truth": "answer"},
    }


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"nowhere\.jsonl"):
        check(data(sources=[jsonl(tmp_path / "nowhere.jsonl")], mixture={}), *quickstart()[1:])


TALK = {"name": "talk", "domain": "chat", "verifier": "chat_open", "loader": {"kind": "topics", "size": 4}}


def test_chat_without_a_judge_is_named():
    with pytest.raises(SpecError, match=r"source 'talk': chat needs a judge: give verifiers\.judge"):
        check(data(sources=[TALK], mixture={}, verifiers={}), *quickstart()[1:])


def test_a_reward_function_that_is_not_there_is_named():
    source = TALK | {"rewards": [{"function": "no_such_module.f"}]}
    with pytest.raises(SpecError, match=r"source 'talk': reward function no_such_module\.f: there is no module"):
        check(data(sources=[source], mixture={}), *quickstart()[1:])


def test_a_mixture_of_sources_that_are_not_there_is_an_error(tmp_path):
    with pytest.raises(SpecError, match="no source is called 'nobody'"):
        check(data(mixture={"sources": {"nobody": {"weight": 1}}}), *quickstart()[1:])
    with pytest.raises(SpecError, match="no source has the domain 'math'"):
        check(data(sources=[TALK], mixture={"domains": {"math": {"weight": 1}}}), *quickstart()[1:])


def test_a_model_folder_without_weights_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    recipe = Recipe.model_validate({"model": {"source": {"kind": "folder", "path": str(tmp_path)}}})
    defaults = quickstart()
    with pytest.raises(ModelError, match="no weights"):
        check(defaults[0], recipe, defaults[2])


def test_a_response_that_fills_the_context_is_an_error():
    difficulty = {"sampling": {"max_tokens": 512}, "engine": {"max_model_len": 512}}
    with pytest.raises(SpecError, match=r"difficulty: sampling\.max_tokens \(512\)"):
        check(data(difficulty=difficulty), *quickstart()[1:])


@pytest.mark.parametrize(
    ("option", "content", "named"),
    [
        ("--training", {"steps": 2, "learning_rate": 1}, "learning_rate: unknown key"),
        ("--training", {"sampling": {"samples": 1}}, "at least 2"),
        ("--data", {"name": "x", "sources": []}, "sources"),
        ("--evaluation", {"sampling": {"temperature": "hot"}}, "sampling.temperature = 'hot'"),
    ],
)
def test_on_the_command_line_a_bad_file_is_one_sentence(tmp_path, option, content, named):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    done = CliRunner().invoke(main, ["run", "workflows/rlvr.py", "rlvr", option, str(path)])
    said = re.sub(r"[\s│]+", " ", done.output)
    assert done.exit_code == 2, done.output
    assert named in said
    assert "Traceback" not in done.output
