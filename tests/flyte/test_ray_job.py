"""The code that a training job gives to the nodes of its Ray cluster."""

from tasks.flyte.ray_job import copy_code
from tests.paths import ROOT


def test_code_is_shipped_and_what_else_lies_in_a_home_folder_is_not(tmp_path):
    home, target = tmp_path / "home", tmp_path / "target"
    target.mkdir()
    files = {
        "rewards.py": "def f(): ...",
        "tasks/__init__.py": "",
        "tasks/charts/templates/page.css": "p {}",
        "tasks/__pycache__/x.pyc": "x" * 1000,
        ".cache/huggingface/model.safetensors": "x" * 1000,
        ".venv/lib.py": "x",
        "outputs/flyte/raw/rows.parquet": "x" * 1000,
        "older.tar.gz": "x" * 1000,
    }
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    size = copy_code(home, target)
    shipped = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert shipped == {"rewards.py", "tasks/__init__.py", "tasks/charts/templates/page.css"}
    assert size == sum(len(files[name]) for name in shipped)


def test_the_packages_of_this_project_are_shipped_with_their_files(tmp_path):
    assert copy_code(ROOT, tmp_path) < 20e6
    for name in ("tasks/charts/templates/page.css", "images/lock-cuda.txt", "workflows/recipes/grpo.yaml"):
        assert (tmp_path / name).is_file()
    assert (tmp_path / "data_specs" / "rewards.py").is_file()
