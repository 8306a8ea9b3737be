"""Copies of a model's folder share its weights, which take the disk once."""

import os

import pytest

from tasks.storage.linked_copies import copy_folder


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model" / "inner").mkdir(parents=True)
    (tmp_path / "model" / "inner" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def test_weights_are_one_file_which_nobody_writes_to_and_other_files_are_copies(model, tmp_path):
    copy_folder(model, tmp_path / "copy")
    copy_folder(tmp_path / "copy", tmp_path / "another")
    weights = tmp_path / "another" / "inner" / "model.safetensors"
    assert weights.samefile(model / "inner" / "model.safetensors")
    assert not weights.stat().st_mode & 0o222
    assert not (tmp_path / "copy" / "config.json").samefile(model / "config.json")
    (tmp_path / "copy" / "config.json").write_text("changed")
    assert (model / "config.json").read_text() == "{}"


def test_without_links_weights_are_copied(model, tmp_path, monkeypatch):
    def link(*_):
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", link)
    copy_folder(model, tmp_path / "copy")
    weights = tmp_path / "copy" / "inner" / "model.safetensors"
    assert weights.read_bytes() == b"weights"
    assert not weights.samefile(model / "inner" / "model.safetensors")
    assert weights.stat().st_mtime_ns == (model / "inner" / "model.safetensors").stat().st_mtime_ns


@pytest.mark.parametrize("links", [True, False])
def test_whoever_may_read_the_folder_may_read_the_weights(model, tmp_path, monkeypatch, links):
    def link(*_):
        raise OSError("cross-device link")

    if not links:
        monkeypatch.setattr(os, "link", link)
    (model / "inner").chmod(0o755)
    (model / "inner" / "model.safetensors").chmod(0o600)
    copy_folder(model, tmp_path / "copy")
    assert (tmp_path / "copy" / "inner" / "model.safetensors").stat().st_mode & 0o444 == 0o444
