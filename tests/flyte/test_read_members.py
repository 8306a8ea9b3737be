"""A few files of a folder are read without the others."""

from flytekit import FlyteContextManager
from flytekit.types.directory import FlyteDirectory

from tasks.flyte.stages import read_members


def test_files_that_a_folder_has_are_read_local_or_remote(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 9)
    names = ["tokenizer.json", "chat_template.jinja"]
    assert read_members(FlyteDirectory(str(tmp_path)), names) == {"tokenizer.json": "{}"}
    system = FlyteContextManager.current_context().file_access.get_filesystem("memory")
    system.pipe_file("/model/tokenizer.json", b"[]")
    assert read_members(FlyteDirectory("memory://model"), names) == {"tokenizer.json": "[]"}
