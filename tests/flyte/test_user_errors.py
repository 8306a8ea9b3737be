"""A mistake on the command line that flytekit, click or fsspec finds is a sentence, and no defect of the project."""

import re

import pytest
from botocore.exceptions import NoCredentialsError
from click.testing import CliRunner
from flytekit.clis.sdk_in_container.pyflyte import main

from tasks.config.loading import SpecError
from tasks.sourcing.files import find_files
from tasks.storage.addresses import convert_refused_credentials


def pyflyte(*arguments):
    """The output as one line, and the exit status."""
    done = CliRunner().invoke(main, ["run", *arguments], env={"COLUMNS": "1000"})
    assert "defect" not in done.output, done.output
    return re.sub(r"[\s│─╭╮╰╯]+", " ", done.output), done.exit_code


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "FLYTE_AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.long
def test_a_mistyped_workflow_gets_the_nearest_name():
    said, code = pyflyte("workflows/rlvr.py", "rlv")
    assert code == 1
    assert "Error: workflows/rlvr.py has no workflow 'rlv' (did you mean 'rlvr'?); it has: rlvr" in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["workflows/rlvr.py", "preflight", "--training", "quickstart"], "Missing: --data, --evaluation."),
        (["workflows/training.py", "train", "--data", "quickstart"], "Missing: --model, --mixture."),
    ],
)
def test_missing_inputs_are_named_by_their_options(arguments, missing):
    said, code = pyflyte(*arguments)
    assert code == 2
    assert missing in said


@pytest.mark.long
def test_the_workflows_of_a_file_are_listed_without_its_tasks():
    said, code = pyflyte("workflows/data.py", "--help")
    assert code == 0
    assert "Commands data workflow (workflows.data.data)" in said
    assert "mix_prompts" not in said


@pytest.mark.long
def test_an_input_on_storage_without_credentials_names_option_and_variables(no_credentials):
    said, code = pyflyte("workflows/training.py", "train", "--model", "s3://nobucket/m", "--mixture", "s3://nobucket/x")
    assert code == 1
    assert "Error: --model: s3://nobucket/m cannot be read: Unable to locate credentials" in said
    assert {"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "FLYTE_AWS_ENDPOINT"} <= set(re.findall(r"\w+", said))


def test_missing_credentials_are_a_users_error_in_every_stage():
    try:
        raise RuntimeError("flytekit's") from NoCredentialsError
    except RuntimeError as error:
        explained = convert_refused_credentials(error)
    assert "Unable to locate credentials; its credentials: s3: FLYTE_AWS_ENDPOINT" in str(explained)
    assert convert_refused_credentials(ValueError("another")) is None


def test_a_server_that_does_not_answer_is_told_from_a_file_that_is_not_there():
    with pytest.raises(SpecError, match=r"no such file: .*127\.0\.0\.1"):
        find_files("http://127.0.0.1:9/rows.jsonl", "loader.path")
