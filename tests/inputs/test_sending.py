"""What a launch sends of the files that specifications name, what it refuses, and what it leaves alone."""

import stat
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from tasks.config.fields import find_models, find_path_mark
from tasks.config.loading import SpecError, load_yaml
from tasks.evaluation.harness_spec import HarnessBenchmark
from tasks.flyte import backend
from tasks.flyte.uploads import upload
from tasks.generation.models import LocalFolder, ModelSpec
from tasks.inputs.benchmarks import BenchmarkFile, BenchmarksInFile
from tasks.inputs.experiments import Experiment, ExperimentFile
from tasks.inputs.files import DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.inputs.minimal_options import written_options
from tasks.inputs.sending import MOST_MB, MOUNTED, with_sent_files
from tasks.sourcing.loader_specs import CsvLoader, HuggingFaceLoader, JsonlLoader, ParquetLoader
from tasks.storage.sent_files import SentFile
from tasks.verifiers.chat.config import ClassifierConfig, JudgeConfig
from tasks.verifiers.code.config import RemoteConfig
from tests.flyte.admin_stand_in import admin

JUDGED = {"domain": "math", "verifier": "math", "columns": {"ground_truth": "answer"}}


@pytest.fixture
def stand_in(tmp_path):
    with admin(tmp_path) as made:
        yield made


@pytest.fixture
def remote(stand_in):
    return backend.connect("p", "d", str(stand_in.config))


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A user's working directory."""
    work = tmp_path / "work"
    for name in ("b.jsonl", "a.jsonl", "kept/c.jsonl.gz", "model/config.json", "lm_tasks/mine.yaml"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(f'{{"prompt": "{name}", "answer": 1}}\n')
    monkeypatch.chdir(work)
    return work


def jsonl(path):
    return JsonlLoader(kind="jsonl", path=path)


def sent(remote, value, **options):
    """The specification as it is launched, and what the user is told."""
    lines = []
    return with_sent_files(remote, {"value": value}, say=lines.append, **options)["value"], lines


def marked_options(root, found=None):
    """All options below a model that name files or folders: by model and name, their marks."""
    found = {} if found is None else found
    for name, field in root.model_fields.items():
        if mark := find_path_mark(field):
            found[root, name] = mark
        for model in find_models([field.annotation]):
            if (model, None) not in found and issubclass(model, BaseModel):
                found[model, None] = None
                marked_options(model, found)
    return found


PAIRWISE = BenchmarkFile.model_validate(
    {"extends": "alpaca_eval_2", "length_control": "a.jsonl"},
)
SENT = {
    (JsonlLoader, "path"): jsonl("a.jsonl"),
    (ParquetLoader, "path"): ParquetLoader(kind="parquet", path="a.jsonl"),
    (CsvLoader, "path"): CsvLoader(kind="csv", path="a.jsonl"),
    (HuggingFaceLoader, "files"): HuggingFaceLoader(kind="huggingface", files="a.jsonl"),
    (BenchmarkFile, "length_control"): PAIRWISE,
    (RemoteConfig, "certificate"): RemoteConfig(url="https://code.internal", certificate="a.jsonl"),
}
REFUSED = {
    (LocalFolder, "path"): LocalFolder(path="model"),
    (JudgeConfig, "model"): JudgeConfig(model="model"),
    (ClassifierConfig, "model"): ClassifierConfig(model="model"),
    (HarnessBenchmark, "include_path"): HarnessBenchmark(name="mine", tasks=["mine"], include_path="lm_tasks"),
}
READ_HERE = {
    (DataFile, "evaluation_sets"),
    (BenchmarksInFile, "benchmarks"),  # of evaluation files and of validation
    (Recipe, "data"),
    (Recipe, "evaluation"),
    (ExperimentFile, "recipe"),
    (ModelSpec, "chat_template"),
}
"""Options that name specifications and templates: a launch has their content in its inputs."""


def test_every_option_that_names_files_or_folders_is_sent_or_refused(remote, work):
    roots = (DataFile, Recipe, EvaluationFile, Experiment, ExperimentFile)
    options = {option for root in roots for option, mark in marked_options(root).items() if mark is not None}
    named = {(_base(model, name), name) for model, name in options}
    assert named == SENT.keys() | REFUSED.keys() | READ_HERE
    for (_, name), value in SENT.items():
        [file] = as_list(getattr(sent(remote, value)[0], name))
        assert isinstance(file, SentFile), name
        assert file.path == str(work / "a.jsonl")
    for (_, name), value in REFUSED.items():
        with pytest.raises(SpecError, match=rf"^{name} = .*: a folder of this machine, .*; if pods mount it "):
            sent(remote, value)


def _base(model, name):
    """The class that declares an option."""
    return next(base for base in model.__mro__ if name in vars(base).get("__annotations__", {}))


def as_list(value):
    return value if isinstance(value, list) else [value]


def test_a_second_launch_sends_no_bytes(remote, stand_in, work):
    first, told = sent(remote, jsonl("a.jsonl"))
    assert told == ["sent        a.jsonl (0.0 kB)"]
    assert list(stand_in.uploads) == [first.path.address]
    assert stand_in.uploads[first.path.address] == (work / "a.jsonl").read_bytes()
    (work / "elsewhere.jsonl").write_bytes((work / "a.jsonl").read_bytes())
    received = len(stand_in.received)
    again, told = sent(remote, jsonl("elsewhere.jsonl"))
    assert len(stand_in.received) == received == 1
    assert told == ["in storage  elsewhere.jsonl (0.0 kB)"]
    assert again.path.address == first.path.address
    del stand_in.uploads[first.path.address]
    sent(remote, jsonl("a.jsonl"))
    assert first.path.address in stand_in.uploads, "a copy that was deleted is sent again"


def test_a_file_is_only_read_and_an_empty_one_is_sent_too(remote, stand_in, work):
    written = []
    is_write = stat.S_IWUSR

    def watch(event, arguments):
        if event == "open" and str(arguments[0]) == str(work / "a.jsonl") and "+" in str(arguments[1]):
            written.append(arguments)

    sys.addaudithook(watch)
    (work / "a.jsonl").chmod(0o444)
    sent(remote, jsonl("a.jsonl"))
    upload(remote, work / "a.jsonl", "a.jsonl")
    assert not written
    assert not (work / "a.jsonl").stat().st_mode & is_write
    (work / "empty.jsonl").touch()
    empty, _ = sent(remote, jsonl("empty.jsonl"))
    assert stand_in.uploads[empty.path.address] == b""


def test_globs_and_lists_keep_their_order_and_addresses_their_place(remote, work):
    value = jsonl(["b.jsonl", "s3://bucket/x.jsonl", "*.jsonl", str(work / "kept" / "c.jsonl.gz")])
    launched = sent(remote, value)[0]
    assert sent(remote, launched) == (launched, []), "what was sent is not sent again"
    files = launched.path
    places = [file if isinstance(file, str) else Path(file.path).name for file in files]
    assert places == ["b.jsonl", "s3://bucket/x.jsonl", "a.jsonl", "b.jsonl", "c.jsonl.gz"]
    assert [file.named for file in files if not isinstance(file, str)] == [
        str(work / name) for name in ("b.jsonl", "*.jsonl", "*.jsonl", "kept/c.jsonl.gz")
    ]
    assert files[-1].address.endswith(".jsonl.gz")


def test_the_data_file_that_is_kept_names_the_users_paths(remote, work):
    rows = {"name": "rows", "loader": {"kind": "jsonl", "path": "*.jsonl"}, **JUDGED}
    more = {"name": "more", "loader": {"kind": "jsonl", "path": ["a.jsonl", "s3://b/x.jsonl"]}, **JUDGED}
    data = DataFile.model_validate({"name": "mine", "sources": [rows, more]})
    options = written_options(sent(remote, data)[0], absolute=False)
    assert options == written_options(data) | {"sources": options["sources"]}
    paths = [source["loader"]["path"] for source in options["sources"]]
    assert paths == [[str(work / "*.jsonl")], [str(work / "a.jsonl"), "s3://b/x.jsonl"]]
    assert DataFile.model_validate(options).sources[1].loader.path == paths[1]


def test_what_pods_may_have_stays_as_it_is(remote, stand_in, work, monkeypatch):
    for path in ("/mnt/none/rows.jsonl", "/mnt/none/*.jsonl", "hf://datasets/a/b/c.jsonl", f"file://{work}/a.jsonl"):
        assert sent(remote, jsonl(path))[0].path == path
    for value in (LocalFolder(path="/mnt/none/model"), JudgeConfig(model="org/judge", revision="main")):
        assert sent(remote, value)[0] == value
    monkeypatch.setenv(MOUNTED, f"/mnt:{work}/model:{work}/kept")
    for value in (LocalFolder(path="model"), JudgeConfig(model=str(work / "model")), jsonl("kept/c.jsonl.gz")):
        assert sent(remote, value)[0] == value
    with pytest.raises(SpecError, match="a folder of this machine"):
        sent(remote, HarnessBenchmark(name="mine", tasks=["mine"], include_path="lm_tasks"))
    assert not stand_in.uploads


def test_a_folder_that_travels_with_the_code_stays_as_it_is(remote, work):
    carried = {work / "lm_tasks" / "mine.yaml"}
    value = HarnessBenchmark(name="mine", tasks=["mine"], include_path="lm_tasks")
    assert sent(remote, value, carried=carried)[0] == value
    (work / "lm_tasks" / "left_behind.yaml").touch()
    with pytest.raises(SpecError, match="a folder of this machine"):
        sent(remote, value, carried=carried)


def test_what_is_missing_or_too_large_is_refused_before_anything_is_sent(remote, stand_in, work):
    sources = [
        {"name": name, "loader": {"kind": "jsonl", "path": path}, **JUDGED}
        for name, path in (("first", "a.jsonl"), ("second", "none.jsonl"))
    ]
    data = DataFile.model_validate({"name": "mine", "sources": sources})
    with pytest.raises(SpecError, match=r"^sources\.second\.loader\.path = 'none.jsonl': no such file$"):
        sent(remote, data)
    assert not stand_in.uploads
    without = data.model_copy(update={"leave_out": ["second"]})
    assert isinstance(sent(remote, without)[0].sources[0].loader.path, SentFile)
    controlled = PAIRWISE.model_copy(update={"length_control": "*.jsonl"})
    with pytest.raises(SpecError, match=r"^length_control = '\*\.jsonl': no such file$"):
        sent(remote, controlled)
    with pytest.raises(SpecError, match=r"^include_path = 'none': no such folder$"):
        sent(remote, HarnessBenchmark(name="mine", tasks=["mine"], include_path="none"))
    with (work / "large.jsonl").open("wb") as file:
        file.truncate(MOST_MB * 1_000_000)
    stand_in.uploads.clear()
    sources = [source | {"loader": {"kind": "jsonl", "path": ["large.jsonl", "b.jsonl"]}} for source in sources]
    with pytest.raises(SpecError, match=r"the largest are \S+/large\.jsonl \(1,000\.0 MB\), .*aws s3 cp \S+/large"):
        sent(remote, DataFile.model_validate({"name": "mine", "sources": sources}))
    assert not stand_in.uploads


def test_the_way_of_a_folder_into_storage_is_told(remote, work):
    model = load_quickstart()[1].model_copy(update={"model": {"source": {"kind": "folder", "path": "model"}}})
    recipe = Recipe.model_validate(model.model_dump())
    with pytest.raises(SpecError) as caught:
        sent(remote, recipe)
    assert str(caught.value) == (
        "model.source.path = 'model': a folder of this machine, which pods do not see, and only files are sent: put it "
        "into storage (aws s3 cp --recursive model s3://BUCKET/model) and give source: {kind: stored, address: "
        "s3://BUCKET/model}; if pods mount it at this path, name it or a folder above it in RLVR_MOUNTED"
    )


def test_variants_of_an_experiment_and_local_benchmarks_are_sent(remote, work):
    asked = {"name": "asked", "card": "https://example.org/asked", "licence": "mit", "sampling": {"max_tokens": 64}}
    asked["source"] = {"loader": {"kind": "jsonl", "path": "../kept/c.jsonl.gz"}, **JUDGED}
    source = {"name": "rows", "loader": {"kind": "jsonl", "path": "../a.jsonl"}, **JUDGED}
    files = {
        "asked": asked,
        "data": {"name": "mine", "sources": [source], "evaluation_sets": ["asked.yaml"]},
        "evaluation": {"extends": "quickstart", "benchmarks": ["asked.yaml"]},
        "recipe": {"extends": "quickstart", "data": "data.yaml", "evaluation": "evaluation.yaml"},
        "experiment": {
            "name": "two",
            "recipe": "recipe.yaml",
            "variants": {"one": {}, "other": {"training": {"steps": 3}}},
        },
    }
    (work / "mine").mkdir()
    for name, content in files.items():
        (work / "mine" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    experiment = Experiment.of(load_yaml(ExperimentFile, "mine/experiment.yaml"))
    made, told = sent(remote, experiment)
    assert len(told) == 2
    for variant in made.variants.values():
        loaders = [source.loader for source in variant.data.sources]
        loaders += [known.loader for known in variant.data.evaluation_sets]
        loaders += [benchmark.source.loader for benchmark in variant.evaluation.benchmarks]
        assert [Path(loader.path.path).name for loader in loaders] == ["a.jsonl", "c.jsonl.gz", "c.jsonl.gz"]
