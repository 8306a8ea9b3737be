"""What the plan passes on: the digests of what it looked at."""

import pytest

from tasks.preflight import _fingerprinted
from tasks.verifiers import VerifiersConfig


def fingerprint(**judge):
    return _fingerprinted(VerifiersConfig(judge=judge)).judge.fingerprint


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
    assert _fingerprinted(VerifiersConfig()) == VerifiersConfig()
