"""Where the initial policy comes from, and the models that are refused before anything expensive starts."""

import json
import shutil
import sys

import pytest
from huggingface_hub.utils import filter_repo_objects
from pydantic import ValidationError

from tasks.generation.models import (
    HUB_FILES,
    HubModel,
    LocalFolder,
    ModelError,
    ModelSpec,
    PackagedGguf,
    StoredFolder,
    prepare_model,
)
from tasks.storage.model_folder import count_weight_bytes


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A copy of the tiny model to be damaged."""
    return shutil.copytree(tiny_model, tmp_path / "damaged")


def spec(folder):
    return ModelSpec(source=LocalFolder(path=str(folder)))


def refused(folder):
    """The message with which the folder is refused, the same when checked and when prepared."""
    with pytest.raises(ModelError) as checked:
        spec(folder).add_fingerprint()
    with pytest.raises(ModelError) as prepared:
        prepare_model(spec(folder), folder.parent / "prepared")
    assert str(checked.value) == str(prepared.value)
    assert str(folder) in str(checked.value)
    return str(checked.value).removeprefix(f"model folder {folder}: ")


def test_the_default_is_the_packaged_model_and_yaml_chooses_by_kind():
    assert ModelSpec().name == "SmolLM2-135M-Instruct"
    parsed = [
        ModelSpec.model_validate({"source": source}).source
        for source in (
            {"kind": "packaged_gguf", "package": "p", "file": "f.gguf"},
            {"kind": "folder", "path": "/models/tiny"},
            {"kind": "hub", "name": "org/model", "revision": "abc"},
        )
    ]
    assert [type(source) for source in parsed] == [PackagedGguf, LocalFolder, HubModel]
    assert [ModelSpec(source=source).name for source in parsed] == ["f", "tiny", "org/model@abc"]


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "hub", "name": "org/model"},  # without a revision a cached stage could hide a change
        {"kind": "s3", "path": "x"},
        {"kind": "folder", "path": "x", "revision": "abc"},
    ],
)
def test_an_incomplete_unknown_or_mixed_kind_is_refused(source):
    with pytest.raises(ValidationError):
        ModelSpec.model_validate({"source": source})


def test_a_usable_folder_is_copied_whole(tiny_model, tmp_path):
    prepared = prepare_model(spec(tiny_model), tmp_path / "prepared")
    assert sorted(p.name for p in prepared.iterdir()) == sorted(p.name for p in tiny_model.iterdir())


def test_the_fingerprint_follows_the_content(folder):
    before = spec(folder).add_fingerprint().fingerprint
    assert spec(folder).add_fingerprint().fingerprint == before
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert spec(folder).add_fingerprint().fingerprint != before


def test_a_missing_folder_is_refused(tmp_path):
    assert refused(tmp_path / "nowhere") == "no such folder"


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_missing_or_malformed_json_file_is_named(folder, name):
    (folder / name).write_text('{"hidden_size": 64')
    assert refused(folder).startswith(f"{name} is not JSON: ")
    (folder / name).unlink()
    assert refused(folder) == f"no {name}"


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_json_that_is_no_object_is_named(folder, name):
    (folder / name).write_text("[]")
    assert name in refused(folder)


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    assert refused(folder) == "no weights (*.safetensors)"


def test_a_tokenizer_without_a_chat_template_is_refused_with_what_to_add(folder):
    (folder / "chat_template.jinja").unlink()
    assert "no chat template; add chat_template.jinja" in refused(folder)


def test_a_chat_template_inside_the_tokenizers_config_does_as_well(folder):
    (folder / "chat_template.jinja").unlink()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": "{{ messages }}"}))
    assert spec(folder).add_fingerprint().fingerprint


def test_weights_that_a_folder_holds_twice_count_once(folder):
    once = count_weight_bytes(folder)
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    assert count_weight_bytes(folder) == once
    shards = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shutil.copy(folder / "consolidated.safetensors", folder / "model-00002-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    assert count_weight_bytes(folder) == 2 * once


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that holds a file and must not be imported."""
    (tmp_path / "site" / "holds_weights").mkdir(parents=True)
    (tmp_path / "site" / "holds_weights" / "__init__.py").write_text("raise ImportError('imported')")
    (tmp_path / "site" / "holds_weights" / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return "holds_weights"


def test_a_packaged_file_is_found_without_importing_the_package(package):
    source = PackagedGguf(package=package, file="tiny.gguf")
    assert source.locate().read_bytes() == b"GGUF"
    assert ModelSpec(source=source).add_fingerprint().fingerprint
    assert package not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("holds_weights", "package 'holds_weights' contains no file 'other.gguf'"),
        ("no_such_package", "package 'no_such_package' is not installed"),
        ("no_such_package.weights", "package 'no_such_package.weights' is not installed"),
    ],
)
def test_a_missing_package_or_file_is_named(package, name, message):
    with pytest.raises(ModelError, match=message):
        ModelSpec(source=PackagedGguf(package=name, file="other.gguf")).add_fingerprint()


@pytest.mark.parametrize(
    "vocabulary",
    [
        ["tokenizer.json"],
        ["tokenizer.model"],
        ["tokenizer.model.v3"],
        ["tiktoken.model"],
        ["vocab.json", "merges.txt"],
        ["vocab.txt"],
        ["qwen.tiktoken"],
        ["spiece.model"],
        ["sentencepiece.bpe.model"],
        ["source.spm", "target.spm", "vocab.json"],
        ["vocab.txt", "bpe.codes"],
        ["tekken.json"],
    ],
    ids=", ".join,
)
def test_a_model_of_the_hub_comes_with_what_its_tokenizer_needs(vocabulary):
    wanted = [*vocabulary, "tokenizer_config.json", "chat_template.jinja", "config.json", "model.safetensors"]
    others = [
        "pytorch_model.bin",
        "model.Q4_K_M.gguf",
        "tf_model.h5",
        "modeling_own.py",
        "README.md",
        "onnx/model.onnx",
    ]
    assert list(filter_repo_objects([*wanted, *others], allow_patterns=list(HUB_FILES))) == wanted


@pytest.fixture
def stored(tiny_model):
    """A copy of a model on storage that is no disk, beside a file that is none of the model's."""
    import fsspec

    storage = fsspec.filesystem("memory")
    storage.put(str(tiny_model), "/bucket/policy", recursive=True)
    storage.pipe_file("/bucket/policy/optimizer.bin", b"states")
    yield ModelSpec(source=StoredFolder(address="memory://bucket/policy"))
    storage.rm("/bucket", recursive=True)


def test_a_model_on_blob_storage_is_fetched_without_what_is_not_the_models(stored, tiny_model, tmp_path):
    folder = prepare_model(stored, tmp_path / "fetched")
    assert (folder / "model.safetensors").read_bytes() == (tiny_model / "model.safetensors").read_bytes()
    assert not (folder / "optimizer.bin").exists()
    assert stored.name == "policy"


def test_other_weights_at_the_same_address_are_another_model(stored):
    import fsspec

    before = stored.add_fingerprint()
    assert stored.add_fingerprint() == before
    fsspec.filesystem("memory").pipe_file("/bucket/policy/model.safetensors", b"other")
    assert stored.add_fingerprint() != before


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("memory://bucket/nothing", r"address = 'memory://bucket/nothing': no folder with weights"),
        ("nosuch://bucket/policy", r"address = 'nosuch://bucket/policy': not an address that can be opened"),
    ],
)
def test_an_address_without_a_model_is_a_sentence(address, sentence):
    with pytest.raises(ModelError, match=sentence):
        ModelSpec(source=StoredFolder(address=address)).add_fingerprint()
