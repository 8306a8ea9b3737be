"""What travels with a registered task: the digest of its code, and secrets by name."""

import pytest
from click.testing import CliRunner
from flytekit import Secret
from flytekit.clis.sdk_in_container.pyflyte import main

from tasks.cleaning.task import merge_sources
from tasks.flyte.registration import CODE, SECRETS, OtherCodeError, check_code, make_options
from tasks.lineage.code_digest import code_digest
from tasks.storage.locations import RUNS
from workflows.data import compose_data

MODULE = "tasks.cleaning.task"


def test_a_pod_with_other_code_than_was_registered_runs_nothing(monkeypatch):
    monkeypatch.setenv(CODE, code_digest(MODULE))
    check_code(MODULE)
    monkeypatch.setenv(CODE, "the digest of other code")
    with pytest.raises(OtherCodeError, match=rf"{MODULE} was registered with other code .* --copy all"):
        merge_sources.task_function()


def test_the_digest_of_the_code_is_in_the_environment_of_the_pod():
    assert merge_sources.environment == {CODE: code_digest(MODULE)}
    assert compose_data.environment == {CODE: code_digest("workflows.data")}
    assert len({code_digest(name) for name in (MODULE, "workflows.data", "workflows.training")}) == 3


def test_secrets_are_given_to_pods_as_environment_variables_by_name(monkeypatch):
    monkeypatch.setenv(SECRETS, "HF_TOKEN=rlvr/hub JUDGE_KEY=rlvr/judge")
    assert make_options(MODULE)["secret_requests"] == [
        Secret("rlvr", "hub", mount_requirement=Secret.MountType.ENV_VAR, env_var="HF_TOKEN"),
        Secret("rlvr", "judge", mount_requirement=Secret.MountType.ENV_VAR, env_var="JUDGE_KEY"),
    ]
    # A dynamic task declares in its pod what it starts, and so needs to know them there.
    assert make_options(MODULE)["environment"][SECRETS] == "HF_TOKEN=rlvr/hub JUDGE_KEY=rlvr/judge"


def test_the_address_of_runs_reaches_pods_and_a_folder_of_this_machine_does_not(monkeypatch):
    monkeypatch.setenv(RUNS, "s3://bucket/runs")
    assert make_options(MODULE)["environment"][RUNS] == "s3://bucket/runs"
    monkeypatch.setenv(RUNS, "/data/runs")
    assert RUNS not in make_options(MODULE)["environment"]


def test_a_malformed_secret_is_named(monkeypatch):
    monkeypatch.setenv(SECRETS, "HF_TOKEN=hub")
    with pytest.raises(ValueError, match="RLVR_SECRETS: 'HF_TOKEN=hub' must be VARIABLE=GROUP/KEY"):
        make_options(MODULE)


@pytest.mark.long
def test_packaging_without_images_is_one_sentence_that_names_the_option(tmp_path):
    done = CliRunner().invoke(main, ["--pkgs", "workflows", "package", "--output", str(tmp_path / "p.tgz")])
    assert done.exit_code == 1
    [sentence] = [line for line in done.output.splitlines() if line.startswith("Error: ")]
    assert "is not given" in sentence
    assert "--image data=" in sentence
    assert "defect" not in done.output
