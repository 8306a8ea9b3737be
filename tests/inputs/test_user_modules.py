"""A user's modules reach a cluster, or the launch is refused before anything is uploaded."""

import json
import shutil
import subprocess

import pytest

from tasks.config.loading import SpecError
from tasks.flyte.archive import collect_sent_files
from tasks.inputs.experiments import Experiment, Variant
from tasks.inputs.files import DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.inputs.user_modules import MODULES, check_registered, check_sent, compute_digests, list_modules
from tasks.sourcing.spec import SourceBatch
from tests.paths import ROOT


def data(name, **options):
    judged = {"domain": "math", "verifier": "math", "columns": {"ground_truth": "answer"}}
    source = {"name": "rows", "loader": {"kind": "jsonl", "path": "rows.jsonl"}, **judged, **options}
    return DataFile.model_validate({"name": name, "sources": [source]})


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory that is a git checkout, with a package of the user's and what git ignores."""
    root = tmp_path / "project"
    root.mkdir()
    mine = f"mine_{tmp_path.name.replace('-', '_')}"
    for name in (mine, "ignored"):
        (root / name).mkdir()
    (root / mine / "rewards.py").write_text(f"from {mine}.helpers import score\n")
    (root / mine / "helpers.py").write_text("def score(completions, **_): return [1.0 for _ in completions]\n")
    (root / "ignored" / "secret_rewards.py").write_text("def score(completions, **_): ...\n")
    (root / ".gitignore").write_text("ignored/\n")
    (root / ".flyteignore").write_text((ROOT / ".flyteignore").read_text())
    subprocess.run([shutil.which("git"), "init", "-q"], cwd=root, check=True)
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    return root, mine


def test_the_modules_of_functions_transforms_environments_tools_and_verifiers_are_named():
    read = data(
        "all",
        transform="a.shape",
        rewards=[{"function": "b.c.score"}, {"function": "b.d.score"}],
        environment={"name": "rooms.maze", "tools": ["my_tools.search"]},
    )
    own = data("own", verifier="my_verifiers.chess", domain="games")
    assert list_modules([read, own]) == {"a", "b.c", "b.d", "rooms", "my_tools", "my_verifiers.chess"}
    benchmark = {"name": "b", "card": "https://example.org", "licence": "mit", "sampling": {"max_tokens": 64}}
    asked = {
        "benchmarks": [
            benchmark | {"source": data("x", transform="q.rows").sources[0].model_dump(mode="json") | {"name": "b"}}
        ]
    }
    options = load_quickstart()[2].model_dump(mode="json") | asked
    assert list_modules([EvaluationFile.model_validate(options), Recipe(), "no file"]) == {"q"}


def test_the_modules_of_an_experiments_variants_and_of_a_batch_are_named():
    _, recipe, evaluation = load_quickstart()
    variants = {
        name: Variant(data=data(name, transform=f"{name}.rows"), training=recipe, evaluation=evaluation)
        for name in ("one", "two")
    }
    batch = SourceBatch(sources=[data("d", transform="three.rows").sources[0].model_copy(update={"fingerprint": "x"})])
    found = list_modules([Experiment(name="e", baseline="one", variants=variants), batch])
    assert {"one", "two", "three"} <= found


def test_a_module_that_is_sent_passes_and_what_is_not_is_refused_by_name(project):
    root, mine = project
    given = [data("d", rewards=[{"function": f"{mine}.rewards.score"}])]
    check_sent(collect_sent_files(root), given, whole=True)
    with pytest.raises(SpecError, match=rf"module {mine}\.rewards is not sent to the cluster: give --copy all"):
        check_sent(collect_sent_files(root), given, whole=False)
    with pytest.raises(SpecError, match=r"module ignored\.secret_rewards is not sent .*: git ignores"):
        check_sent(
            collect_sent_files(root), [data("d", rewards=[{"function": "ignored.secret_rewards.score"}])], whole=True
        )
    with pytest.raises(SpecError, match=r"there is no module nowhere in .* or the Python path"):
        check_sent(collect_sent_files(root), [data("d", transform="nowhere.rows")], whole=True)
    (root / "models").mkdir()
    with pytest.raises(SpecError, match=rf"module {mine}\.(rewards|helpers) lies outside of .*models"):
        check_sent(collect_sent_files(root / "models"), given, whole=True)
    (root / ".gitignore").write_text(f"{mine}/helpers.py\n")
    with pytest.raises(SpecError, match=rf"module {mine}\.helpers is not sent"):
        check_sent(collect_sent_files(root), given, whole=True)
    shipped = [data("d", transform="data_specs.transforms.dapo")]
    check_sent(collect_sent_files(ROOT), shipped, whole=False)


def test_what_is_launched_must_be_registered_in_the_same_version(project, monkeypatch):
    root, mine = project
    check_registered()
    digests = compute_digests([data("d", rewards=[{"function": f"{mine}.rewards.score"}])])
    assert set(digests) == {f"{mine}.rewards"}
    monkeypatch.setenv(MODULES, json.dumps(digests))
    check_registered()
    (root / mine / "helpers.py").write_text("def score(completions, **_): return [0.0 for _ in completions]\n")
    with pytest.raises(SpecError, match=rf"module {mine}\.rewards is registered in another version: run make register"):
        check_registered()
    monkeypatch.setenv(MODULES, json.dumps({"never_registered": "0123"}))
    with pytest.raises(SpecError, match="module never_registered is not in the code that is registered"):
        check_registered()
