"""A mistake in what the user gives is one error, before anything expensive, that names file, field and value."""

import atexit
import re

import pytest
from click.testing import CliRunner
from flytekit.bin import entrypoint
from flytekit.clis.sdk_in_container.pyflyte import main
from flytekit.exceptions.user import FlyteUserRuntimeException

from tasks.config.loading import SpecError
from tasks.generation.models import ModelError
from tasks.inputs.files import DataFile, Recipe, load_quickstart
from tasks.inputs.preflight import check, find_longest_prompt
from tasks.recipe.prompts import CurriculumConfig, PromptsConfig


def data(**changes) -> DataFile:
    base = load_quickstart()[0].model_dump(mode="json", exclude_unset=True)
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
        check(data(sources=[jsonl(tmp_path / "nowhere.jsonl")], mixture={}), *load_quickstart()[1:])


def test_all_sources_that_fail_are_named_with_the_option_that_leaves_them_out(tmp_path):
    (tmp_path / "one.jsonl").write_text('{"question": "1+1?", "answer": "2"}')
    (tmp_path / "two.jsonl").write_text('{"asked": "1+1?"}')
    sources = [
        jsonl(tmp_path / "one.jsonl"),
        jsonl(tmp_path / "two.jsonl") | {"name": "other"},
        jsonl(tmp_path / "nowhere.jsonl") | {"name": "third"},
    ]
    said = (
        r"'other': columns: .* no column 'question'.*; source 'third': .*no such file; leave_out: \[other, third\] in"
    )
    with pytest.raises(SpecError, match=said):
        check(data(sources=sources, mixture={}), *load_quickstart()[1:])
    assert set(check(data(sources=sources, mixture={}, leave_out=["other", "third"]), *load_quickstart()[1:])) == {
        "mine"
    }


TALK = {"name": "talk", "domain": "chat", "verifier": "chat_open", "loader": {"kind": "topics", "size": 4}}


def test_chat_without_a_judge_is_named():
    with pytest.raises(SpecError, match=r"source 'talk': chat needs a judge: give verifiers\.judge"):
        check(data(sources=[TALK], mixture={}, verifiers={}), *load_quickstart()[1:])


def test_a_reward_function_that_is_not_there_is_named():
    source = TALK | {"rewards": [{"function": "no_such_module.f"}]}
    with pytest.raises(SpecError, match=r"source 'talk': reward function no_such_module\.f: there is no module"):
        check(data(sources=[source], mixture={}), *load_quickstart()[1:])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cleaning": {"priority": ["nobody"]}}, "cleaning.priority: no source is called 'nobody'; there are: talk"),
        ({"cleaning": {"filters": {"ground_truths": True}}}, "cleaning.filters.ground_truths: no source has"),
        ({"evaluation_sets": [{"name": "e", "loader": {"kind": "jsonl", "path": "nowhere.jsonl"}}]}, "nowhere.jsonl"),
    ],
)
def test_what_cleaning_needs_is_looked_for(changes, said):
    with pytest.raises(SpecError, match=re.escape(said)):
        check(data(sources=[TALK], mixture={}, **changes), *load_quickstart()[1:])


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"name": "talk", "loader": {"kind": "jsonl", "path": "x"}}, "['talk'] occur more than once"),
        (
            {"name": "e", "loader": {"kind": "topics", "size": 3}},
            "'topics' generates prompts, but an evaluation set",
        ),
    ],
)
def test_an_evaluation_set_is_a_file_with_a_name_of_its_own(named, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        data(sources=[TALK], mixture={}, evaluation_sets=[named])


def test_a_mixture_of_sources_that_are_not_there_is_an_error(tmp_path):
    with pytest.raises(SpecError, match="no source is called 'nobody'"):
        check(data(mixture={"sources": {"nobody": {"weight": 1}}}), *load_quickstart()[1:])
    with pytest.raises(SpecError, match=r"mixture\.domains: .*'math'.*; there are: chat"):
        check(data(sources=[TALK], mixture={"domains": {"math": {"weight": 1}}}), *load_quickstart()[1:])


def test_a_model_folder_without_weights_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    recipe = Recipe.model_validate(
        {"extends": "quickstart", "model": {"source": {"kind": "folder", "path": str(tmp_path)}}}
    )
    defaults = load_quickstart()
    with pytest.raises(ModelError, match="no weights"):
        check(defaults[0], recipe, defaults[2])


def test_a_response_that_fills_the_context_is_an_error():
    difficulty = {"sampling": {"max_tokens": 512}, "engine": {"max_model_len": 512}}
    with pytest.raises(SpecError, match=r"difficulty: sampling\.max_tokens \(512\)"):
        check(data(difficulty=difficulty), *load_quickstart()[1:])


# On the command line


def pyflyte(*arguments):
    """What the command line says in lines as long as they come, and its exit code."""
    done = CliRunner().invoke(main, ["run", *map(str, arguments)], env={"COLUMNS": "1000"})
    assert "Traceback" not in done.output, done.output
    return re.sub(r"[\s│─╭╮╰╯]+", " ", done.output), done.exit_code


@pytest.mark.parametrize(
    ("option", "content", "named"),
    [
        ("--training", "steps: 2\nlearning_rate: 1", "learning_rate: unknown key"),
        ("--training", "sampling: {samples: 1}", "at least 2"),
        ("--training", "steps: 2\nsteps: 3", "not valid YAML: line 2, column 1: the key 'steps' occurs twice"),
        ("--training", "extends: ./other.yaml", "other.yaml: no such file"),
        ("--data", "{name: x, sources: []}", "sources"),
        ("--evaluation", "sampling: {temperature: hot}", "sampling.temperature = 'hot'"),
        ("--evaluation", "7", "must be a mapping with the keys sampling, engine"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, option, content, named):
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    said, code = pyflyte("workflows/rlvr.py", "rlvr", option, path)
    assert code == 1, said
    assert named in said


def test_a_file_that_is_not_there_and_a_text_that_is_wrong_are_one_sentence():
    assert "nowhere.yaml: no such file" in pyflyte("workflows/rlvr.py", "rlvr", "--data", "nowhere.yaml")[0]
    said, code = pyflyte("workflows/rlvr.py", "rlvr", "--training", '{"extends": "quickstart", "objective.clip": 1}')
    assert code == 1
    assert "objective.clip: unknown key" in said


def test_a_mistake_that_a_stage_finds_is_its_sentence(tmp_path):
    (tmp_path / "selected.parquet").write_text("no table")
    (tmp_path / "mixture.yaml").write_text("heldout: 2")
    options = ("--graded", tmp_path / "selected.parquet", "--spec", tmp_path / "mixture.yaml")
    said, code = pyflyte("tasks/mixing/task.py", "mix_prompts", *options)
    assert code == 1
    assert re.search(r"Error: \S*selected\.parquet: not a readable Parquet file", said), said


def test_in_the_console_an_error_is_a_sentence_and_its_traceback_is_in_the_log(capfd, monkeypatch):
    monkeypatch.setattr(atexit, "register", lambda *_: None)

    def message(error):
        wrapped = FlyteUserRuntimeException(error)
        wrapped.__cause__ = error
        return entrypoint.get_traceback_str(wrapped)

    assert message(SpecError("mine.yaml: steps = 0: must be above 0")) == "mine.yaml: steps = 0: must be above 0"
    assert capfd.readouterr().err == ""
    assert message(ZeroDivisionError("ours")) == "ZeroDivisionError: ours"
    assert "FlyteUserRuntimeException" in capfd.readouterr().err


def test_help_says_in_a_few_lines_what_each_file_is_for():
    said, code = pyflyte("workflows/rlvr.py", "rlvr", "--help")
    assert code == 0
    for words in (
        "The data file: sources, their cleaning",
        "Options: docs/options/training.md. A path, or one of: axolotl_lora, ",
        "[default: (the quickstart's)]",
        "[default: (the recipe's)]",
    ):
        assert words in said
    assert len(said) < 2000


def test_difficulty_samples_as_training_does_or_says_that_it_does_not():
    files = load_quickstart()
    warm = files[0].difficulty.model_copy(
        update={"sampling": files[0].difficulty.sampling.model_copy(update={"temperature": 0.7})}
    )
    longer = files[0].difficulty.model_copy(
        update={"sampling": files[0].difficulty.sampling.model_copy(update={"max_tokens": 64})}
    )
    with pytest.raises(SpecError, match=r"difficulty\.sampling\.max_tokens is 64, and training samples with 48"):
        check(files[0].model_copy(update={"difficulty": longer}), *files[1:])
    with pytest.raises(SpecError, match=r"difficulty\.sampling\.temperature is 0\.7, and training samples with 1\.0"):
        check(files[0].model_copy(update={"difficulty": warm}), *files[1:])
    check(files[0].model_copy(update={"difficulty": warm.model_copy(update={"unlike_training": True})}), *files[1:])


def test_without_a_difficulty_filter_sampling_is_trainings_alone():
    files = load_quickstart()
    unfiltered = files[0].model_copy(update={"difficulty": None})
    check(unfiltered, *files[1:])
    assert find_longest_prompt(None, files[1]) == (
        464,
        "464 fit with a response of 48 (actors.engine.max_model_len of training is 512)",
    )
    curriculum = files[1].model_copy(update={"prompts": PromptsConfig(curriculum=CurriculumConfig())})
    with pytest.raises(SpecError, match=r"difficulty is null, so that prompts have no pass rates.*prompts\.curriculum"):
        check(unfiltered, curriculum, files[2])


def test_the_longest_prompt_is_what_difficulty_and_training_both_hold():
    data, training, _ = load_quickstart()
    room, within = find_longest_prompt(data.difficulty, training)
    assert (room, within) == (464, "464 fit with a response of 48 (difficulty.engine.max_model_len is 512)")
    small = training.model_copy(update={"learner": training.learner.model_copy(update={"micro_batch_tokens": 256})})
    assert find_longest_prompt(data.difficulty, small)[1].endswith("(learner.micro_batch_tokens of training is 256)")
