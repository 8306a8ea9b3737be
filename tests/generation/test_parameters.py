"""The number of a model's parameters, from the heads of its files."""

import gguf
import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from tasks.generation.models import ModelError, ModelSpec, PackagedGguf
from tasks.generation.parameters import count, count_gguf, count_safetensors


def test_a_folder_is_counted_without_its_weights(tiny_model):
    spec = ModelSpec.model_validate({"source": {"kind": "folder", "path": str(tiny_model)}})
    assert count(spec) == AutoModelForCausalLM.from_pretrained(tiny_model).num_parameters()


def test_a_gguf_file_is_counted_whatever_stands_before_its_tensors(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "bc", "def"])
    writer.add_token_scores([0.0, 1.0, 2.0])
    writer.add_bool("flag", True)
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_tensor("one", np.ones((32, 64), np.float16))
    writer.add_tensor("two", np.ones(7, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert count_gguf(path) == 32 * 64 + 7


def test_the_quickstarts_model_is_counted():
    assert count(ModelSpec()) == 134_515_008


def test_a_package_that_is_not_here_has_no_size(monkeypatch):
    monkeypatch.setattr(PackagedGguf, "folder", lambda self: None)
    assert count(ModelSpec()) is None


@pytest.mark.parametrize(
    "content", [b"", b"one", b"\xff" * 64, b"GGUF" + bytes(60), bytes(64), b"\2" + bytes(7) + b"[]"]
)
@pytest.mark.parametrize(("counted", "kind"), [(count_gguf, "GGUF"), (count_safetensors, "safetensors")])
def test_a_file_of_another_kind_is_named(tmp_path, content, counted, kind):
    path = tmp_path / "weights"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=f"{path} is not a {kind} file"):
        counted(path)
