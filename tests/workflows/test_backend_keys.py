"""The keys under which a backend would cache: content alone, everywhere, and nothing that can change unseen."""

import json

import boto3
import pytest
from flyteidl.core.literals_pb2 import Literal, LiteralCollection
from flytekit import FlyteContextManager
from flytekit.configuration import DataConfig
from flytekit.core.array_node_map_task import ArrayNodeMapTask
from flytekit.core.data_persistence import FileAccessProvider
from flytekit.core.hash import HashMethod
from flytekit.core.type_engine import get_underlying_type
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.inputs import handed_on
from tasks.inputs.composed_again import NAME
from tasks.inputs.files import DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.inputs.pin_tasks import pin_data, pin_evaluation, pin_training
from tasks.inputs.preflight import preflight
from tasks.kubernetes.pods import PodConfig
from tasks.lineage.code_digest import find_distributions, find_reachable_modules
from tasks.sourcing.loader_specs import JsonlLoader
from tasks.sourcing.prompts import build_prompts
from tasks.storage.locations import RUNS
from tasks.storage.sent_files import SentFile
from tasks.tables.content_digest import compute_sha256, seal, write_parquet
from tasks.tables.schemas import PROMPTS
from tasks.training.task import train_policy
from tests.flyte.admin_stand_in import console_form
from tests.object_store import BUCKET, KEYS, object_store
from tests.workflows.jobs import is_static, key, literals, run, template
from workflows.checking import checking
from workflows.data import compose_data
from workflows.evaluation import compose_evaluation
from workflows.training import compose_training

pytestmark = pytest.mark.long

COMPOSED = (checking, compose_data, compose_training, compose_evaluation)
PINS = {compose_data: pin_data, compose_training: pin_training, compose_evaluation: pin_evaluation}

CODE = """
def reward(prompts, completions, **columns):
    return [{least} for _ in completions]

def rewrite(row):
    return row | {{"answer": str(row["answer"]), "least": "{least}"}}

async def count(prompt, generate):
    await generate()
    return {least}
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working directory with rows, a user's code, a benchmark, a model and a table of prompts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_rows(tmp_path / "rows.jsonl")
    write_rows(tmp_path / "asked.jsonl", first=100)
    (tmp_path / package(tmp_path)).mkdir()
    for name in ("rewards", "transforms", "environments"):
        write_code(tmp_path, name, 0.0)
    for name in ("model", "policy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'{{"name": "{name}"}}')
        seal(tmp_path / name)
    for name in ("mixture", "heldout"):
        write_table_of(PROMPTS, tmp_path / f"{name}.parquet")
    return tmp_path


OTHER = PROMPTS.append(PROMPTS.field(0).with_name("new"))
"""The schema of another table."""


def write_table_of(schema, path):
    write_parquet(path, [schema.empty_table()], schema)


def write_rows(path, first=0):
    rows = ({"prompt": f"What is {n} + 1?", "answer": n + 1} for n in range(first, first + 40))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def package(work):
    """The name of the package of the user's code: of one test alone, as this process imports it."""
    return f"mine_{work.name}"


def write_code(work, name, least):
    (work / package(work) / f"{name}.py").write_text(CODE.format(least=least))


def source(name, path, **options):
    judged = {"domain": "math", "verifier": "math", "columns": {"ground_truth": "answer"}}
    return {"name": name, "loader": {"kind": "jsonl", "path": str(path)}, **judged, **options}


@pytest.fixture
def files(work):
    """The three files of a run; they name rows, a function, a transform, an environment and a benchmark."""
    mine = package(work)
    sources = [
        source("sums", "rows.jsonl", rewards=[{"function": f"{mine}.rewards.reward"}]),
        source("rewritten", "rows.jsonl", transform=f"{mine}.transforms.rewrite"),
        source("games", "rows.jsonl", environment={"name": f"{mine}.environments.count"}),
    ]
    benchmark = {"name": "asked", "card": "https://example.org/asked", "licence": "mit", "sampling": {"max_tokens": 64}}
    asked = benchmark | {"source": source("asked", "asked.jsonl")}
    data, training, evaluation = load_quickstart()
    options = {"name": "mine", "mixture": {"heldout": 4}, "difficulty": data.difficulty.model_dump(mode="json")}
    validation = {"prompts": 4, "samples": 1, "every": 2, "benchmarks": [asked]}
    return {
        "data": DataFile.model_validate(options | {"sources": sources}),
        "training": Recipe.model_validate(training.model_dump(mode="json") | {"validation": validation}),
        "evaluation": EvaluationFile.model_validate(evaluation.model_dump(mode="json") | {"benchmarks": [asked]}),
    }


def given(task, where=".", **inputs):
    """Inputs of a composing task: the files and folders in the folder `where`, and the others as they are given."""
    folders = {name: FlyteDirectory(f"{where}/{name}") for name in ("model", "policy")}
    tables = {name: FlyteFile(f"{where}/{name}.parquet") for name in ("mixture", "heldout")}
    known = folders | tables | inputs
    return literals(task, **{name: known[name] for name in task.python_interface.inputs if name in known})


def checked(files):
    """The three files as preflight hands them on, with hashes; each may be as a client sends it already."""
    values = {name: file for name, file in files.items() if not isinstance(file, Literal)}
    outputs = run(preflight, files if not values else literals(preflight, **values))
    return {name: outputs[name] for name in files}


def pinned(task, files):
    """The three files as the workflow pins them that starts a part of the pipeline by itself, with hashes."""
    pin = PINS[task]
    outputs = run(pin, literals(pin, **{name: files[name] for name in pin.python_interface.inputs}))
    return {name: outputs[name] for name in files if name in outputs}


def wanted(task, files, where="."):
    """The inputs of a composing task."""
    return given(task, where) | {name: files[name] for name in files if name in task.python_interface.inputs}


def keys(files):
    """The keys of the composing tasks, in the pipeline and each by itself."""
    together = checked(files)
    every = {("pipeline", task.name): key(template(task), wanted(task, together)) for task in COMPOSED}
    alone = {("alone", task.name): key(template(task), wanted(task, pinned(task, files))) for task in PINS}
    return every | alone


def inner(task, inputs):
    """The stages that a composing task starts, and their inputs as far as they are known: by the name of the node.

    The outputs of nodes that hand on are known; those of other nodes count by the node's name.
    """
    job = run(task, inputs)
    tasks = {each.id.name: each for each in job.tasks}
    handing = {each.name: each for each in vars(handed_on).values() if getattr(each, "task_function", None)}
    outputs, found = {}, {}
    for node in job.nodes:
        started = node.array_node.node if node.HasField("array_node") else node
        name = started.task_node.reference_id.name
        bound = {each.var: resolved(each.binding, outputs) for each in node.inputs}
        found[node.id] = tasks[name], bound
        if name in handing:
            outputs[node.id] = run(handing[name], bound)
    return found


def resolved(binding, outputs):
    if binding.HasField("promise"):
        promise = binding.promise
        return outputs.get(promise.node_id, {}).get(promise.var, Literal(hash=f"{promise.node_id}.{promise.var}"))
    if binding.HasField("collection"):
        items = [resolved(item, outputs) for item in binding.collection.bindings]
        return Literal(collection=LiteralCollection(literals=items))
    return Literal(scalar=binding.scalar)


def inner_keys(files, where="."):
    """The keys of the stages that the composing tasks start, those that hand on left out; `files` are checked."""
    return {
        (task.name, node): key(*stage)
        for task in COMPOSED
        for node, stage in inner(task, wanted(task, files, where)).items()
        if not stage[0].id.name.startswith(handed_on.__name__)
    }


CHANGES = {
    "a row": lambda work: write_rows(work / "rows.jsonl", first=1),
    "a function": lambda work: write_code(work, "rewards", 0.5),
    "a transform": lambda work: write_code(work, "transforms", 0.5),
    "an environment": lambda work: write_code(work, "environments", 0.5),
    "a benchmark": lambda work: write_rows(work / "asked.jsonl", first=101),
}
ROWS = {("pipeline", task) for task in ("data", "training", "evaluation")} | {("alone", "data")}
READ = dict.fromkeys(CHANGES, ROWS) | {"a benchmark": ROWS | {("alone", "training"), ("alone", "evaluation")}}
"""The parts that are composed again after a change; in the pipeline all of them are given the data file."""


@pytest.mark.parametrize("changed", CHANGES)
def test_what_is_read_outside_of_the_inputs_misses_when_it_changes(files, work, changed):
    before = keys(files)
    CHANGES[changed](work)
    after = keys(files)
    missed = {(way, name.rpartition("_")[2]) for way, name in before if before[way, name] != after[way, name]}
    if changed == "a benchmark":
        missed.discard(("pipeline", "workflows.checking.checking"))  # its recipe names the benchmark
    assert missed == READ[changed]


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """An object store that Flyte's file access writes to."""
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        for name in ("aws_access_key_id", "aws_secret_access_key"):
            monkeypatch.setenv(name.upper(), KEYS[name])
        access = FileAccessProvider(str(tmp_path / "pod"), store.prefix, data_config=DataConfig.auto())
        context = FlyteContextManager.current_context()
        with FlyteContextManager.with_context(context.with_file_access(access)):
            yield boto3.client("s3", endpoint_url=store.endpoint, **KEYS)


def test_an_overwritten_object_misses(files, work, bucket):
    sources = [source("stored", f"s3://{BUCKET}/rows.jsonl")]
    files["data"] = DataFile.model_validate(files["data"].model_dump(mode="json") | {"sources": sources})
    bucket.upload_file("rows.jsonl", BUCKET, "rows.jsonl")
    before = keys(files)
    assert keys(files) == before
    write_rows(work / "rows.jsonl", first=1)
    bucket.upload_file("rows.jsonl", BUCKET, "rows.jsonl")
    after = keys(files)
    missed = {(way, name.rpartition("_")[2]) for way, name in before if before[way, name] != after[way, name]}
    assert missed == ROWS


def named(files, path):
    """The three files, whose rows lie at a path."""
    loader = JsonlLoader(kind="jsonl", path=path)
    sources = [known.model_copy(update={"loader": loader}) for known in files["data"].sources]
    return files | {"data": files["data"].model_copy(update={"sources": sources})}


def copy_of(path, bucket):
    """A file as a launch sends it."""
    sha256 = compute_sha256(path)
    bucket.upload_file(str(path), BUCKET, f"sent/{sha256}{path.suffix}")
    address = f"s3://{BUCKET}/sent/{sha256}{path.suffix}"
    return SentFile(named=str(path), path=str(path), address=address, sha256=sha256)


def test_rows_have_the_same_keys_and_prompts_wherever_they_lie(files, work, bucket):
    (work / "elsewhere").mkdir()
    for name in ("elsewhere/other.jsonl", "rows.txt"):
        (work / name).write_bytes((work / "rows.jsonl").read_bytes())
    places = {"here": "rows.jsonl", "there": "elsewhere/other.jsonl", "sent": copy_of(work / "rows.jsonl", bucket)}
    made = {place: named(files, path) for place, path in places.items()}
    assert keys(made["here"]) == keys(made["there"]) == keys(made["sent"])
    inside = {place: inner_keys(checked(each)) for place, each in made.items()}
    assert inside["here"] == inside["there"] == inside["sent"]
    prompts = [build_prompts(each["data"].sources[0], 1000).prompts["prompt_id"] for each in made.values()]
    assert prompts[0] == prompts[1] == prompts[2]
    other = named(files, "rows.txt")
    before, after = keys(made["here"]), keys(other)
    assert {(way, name.rpartition("_")[2]) for way, name in before if before[way, name] != after[way, name]} == ROWS


def test_a_copy_that_was_changed_or_deleted_is_refused(files, work, bucket):
    sent = copy_of(work / "rows.jsonl", bucket)
    key_of_copy = sent.address.removeprefix(f"s3://{BUCKET}/")
    bucket.upload_file(str(work / "asked.jsonl"), BUCKET, key_of_copy)
    with pytest.raises(Exception, match=rf"{work}/rows.jsonl: its copy in storage, {sent.address}, is not the file "):
        checked(named(files, sent))
    bucket.delete_object(Bucket=BUCKET, Key=key_of_copy)
    with pytest.raises(Exception, match=r"rows.jsonl: its copy in storage, \S+, is gone: launch the run again"):
        checked(named(files, sent))


def test_the_packages_of_checkers_and_the_mark_are_in_the_keys_of_what_is_given_the_data_file(files, monkeypatch, work):
    before = keys(files)
    monkeypatch.setattr("tasks.verifiers.instructions.needs.find_available", lambda: ["nltk"])
    other_packages = keys(files)
    assert before["pipeline", compose_data.name] != other_packages["pipeline", compose_data.name]
    assert before["alone", compose_data.name] != other_packages["alone", compose_data.name]
    monkeypatch.undo()
    monkeypatch.chdir(work)
    monkeypatch.setenv(RUNS, str(work / "runs"))
    (work / "runs").mkdir()
    (work / "runs" / NAME).write_text("a mark of compose_again")
    after = keys(files)
    assert {place for place in before if before[place] == after[place]} == {("pipeline", checking.name)}
    again = inner_keys(checked(files))
    (work / "runs" / NAME).unlink()
    assert inner_keys(checked(files)) == again, "what is composed again is taken from the cache"


@pytest.mark.parametrize("task", PINS, ids=lambda task: task.name)
def test_a_composing_task_that_is_started_by_itself_without_digests_is_refused(files, task):
    with pytest.raises(Exception, match=r"has no digest of its content, .*: start workflows/\w+\.py \w+, which fills"):
        run(task, given(task, **files))


def test_whatever_lacks_a_digest_is_named(files, work):
    def refused(task, **changes):
        with pytest.raises(Exception, match="has no digest of its content") as raised:
            run(task, given(task, **files | changes))
        return str(raised.value)

    judged = files["data"].model_dump(mode="json") | {"verifiers": {"judge": {"model": str(work / "model")}}}
    recipe = files["training"].model_copy(update={"validation": None})
    changes = {"data": DataFile.model_validate(judged), "training": recipe}
    assert "a model of verifiers has" in refused(compose_training, **changes)
    alone = {"benchmarks": [], "harness": [{"name": "mine", "tasks": ["mine"], "include_path": str(work)}]}
    options = files["evaluation"].model_dump(mode="json") | alone
    assert "a file of a benchmark has" in refused(
        compose_evaluation, evaluation=EvaluationFile.model_validate(options), training=recipe
    )
    options |= {"harness": [], "policies": {"base": {"source": {"kind": "hub", "name": "a/b", "revision": "main"}}}}
    assert "model 'a/b@main' has" in refused(compose_evaluation, evaluation=EvaluationFile.model_validate(options))


def test_run_time_options_and_machines_hit(files):
    before, stages = keys(files), inner_keys(checked(files))
    data, recipe, evaluation = files.values()
    engine = {"cpu_threads": 3, "max_num_seqs": 7}
    engines = recipe.actors.engine.model_copy(update=engine)
    judged = data.verifiers.model_copy(update={"cache_entries": 5})
    pod = PodConfig(cpu=4, disk_gib=500)
    difficulty = {"engine": data.difficulty.engine.model_copy(update=engine), "verifier_workers": 4, "pod": pod}
    options = {
        "actors": recipe.actors.model_copy(update={"max_restarts": 9, "count": 2, "engine": engines}),
        "learner": recipe.learner.model_copy(update={"cpu_threads": 2, "max_restarts": 5}),
        "cluster": recipe.cluster.model_copy(update={"node": pod, "head": pod}),
    }
    changed = {
        "data": data.model_copy(
            update={"verifiers": judged, "difficulty": data.difficulty.model_copy(update=difficulty), "pod": pod}
        ),
        "training": recipe.model_copy(update=options),
        "evaluation": evaluation.model_copy(update={"engine": evaluation.engine.model_copy(update=engine), "pod": pod}),
    }
    assert keys(changed) == before
    assert inner_keys(checked(changed)) == stages


def test_a_file_of_the_same_content_hits_wherever_it_lies(files, work):
    files = checked(files)
    before = inner_keys(files)
    (work / "elsewhere").mkdir()
    for name in ("model", "policy", "mixture.parquet", "heldout.parquet"):
        (work / name).rename(work / "elsewhere" / name)
    assert inner_keys(files, "elsewhere") == before
    write_table_of(OTHER, work / "elsewhere" / "mixture.parquet")
    after = inner_keys(files, "elsewhere")
    assert {stage for stage in before if before[stage] != after[stage]} == {(compose_training.name, "learn")}


def test_what_hands_on_knows_the_content_of_an_address_that_is_overwritten(files, work):
    inputs = wanted(compose_training, pinned(compose_training, files))
    before = key(*inner(compose_training, inputs)["inputs"])
    write_table_of(OTHER, work / "mixture.parquet")
    assert key(*inner(compose_training, inputs)["inputs"]) != before


def test_a_stage_that_is_started_by_itself_never_hits_on_another_file(files, work):
    def alone():
        options = {"config": files["training"].run, "verifiers": files["data"].verifiers}
        inputs = literals(train_policy, model=FlyteDirectory("model"), mixture=FlyteFile("mixture.parquet"), **options)
        return key(template(train_policy), inputs)

    before = alone()
    assert alone() == before
    write_table_of(OTHER, work / "mixture.parquet")
    assert alone() != before


@pytest.mark.parametrize("task", COMPOSED, ids=lambda task: task.name)
def test_nothing_is_handed_to_a_stage_that_would_be_keyed_by_its_address_or_its_run_time_options(files, task):
    """A type with a hash asks for one; a value has none, and the output of a node has."""
    compared = {"thinking": {"chat_template_kwargs": {"enable_thinking": True}}}
    difficulty = files["data"].difficulty.model_dump(mode="json") | {"compared": compared}
    cleaning = {"filters": {"min_words": 1}}
    options = files["data"].model_dump(mode="json") | {"difficulty": difficulty, "cleaning": cleaning}
    files["data"] = DataFile.model_validate(options)
    harness = [{"name": "mmlu", "tasks": ["mmlu"], "num_fewshot": 5}]
    options = files["evaluation"].model_dump(mode="json") | {"harness": harness}
    files["evaluation"] = EvaluationFile.model_validate(options)
    job = run(task, wanted(task, checked(files)))
    stages = {each.id.name: each for each in job.tasks}
    assert all(each.metadata.discoverable for each in stages.values()), "nothing in it looks at the world"
    for node in job.nodes:
        started = node.array_node.node if node.HasField("array_node") else node
        name = started.task_node.reference_id.name
        if name.startswith(handed_on.__name__):
            continue
        ignored = stages[name].metadata.cache_ignore_input_vars
        static = {each.var for each in node.inputs if is_static(each.binding)} - set(ignored)
        assert static.isdisjoint(hashed_inputs(name)), (node.id, static)


def hashed_inputs(name):
    """The inputs of a stage whose types ask for a hash, and those that are files."""
    from flytekit.core.context_manager import FlyteEntities

    entities = {each.name: each for each in FlyteEntities.entities}
    task = entities.get(name) or next(each for each in entities.values() if ArrayNodeMapTask(each).name == name)
    return {
        variable
        for variable, kind in task.python_interface.inputs.items()
        if any(isinstance(mark, HashMethod) for mark in getattr(kind, "__metadata__", ()))
        or get_underlying_type(kind) in (FlyteFile, FlyteDirectory)
    }


@pytest.mark.parametrize("task", COMPOSED, ids=lambda task: task.name)
def test_the_version_of_a_composing_task_covers_all_code_that_it_composes(files, task):
    job = run(task, wanted(task, checked(files)))
    module = task.task_function.__module__
    for started in job.tasks:
        stage = started.container.args[-3] if "task-module" in started.container.args else None
        assert stage is not None, started.id.name
        assert find_reachable_modules(stage) <= find_reachable_modules(module), started.id.name
        assert find_distributions(stage).items() <= find_distributions(module).items(), started.id.name


def test_a_relaunch_whose_mappings_are_in_another_order_hits(files):
    """A form of the console sends mappings as `Struct`, in whatever order, and every number as a double."""
    mixture = {"heldout": 4, "domains": {"math": {"emphasis": 2}, "games": {"emphasis": 1}}}
    games = {"domain": "games", "verifier": "environment", "environment": {"name": "guess_number"}}
    games["environment"]["columns"] = ["low", "high"]
    sources = [
        source("sums", "rows.jsonl", columns={"ground_truth": "answer", "keep": ["answer"]}),
        {"name": "games", "loader": {"kind": "guessing", "size": 40, "numbers": 5}, **games},
    ]
    options = files["data"].model_dump(mode="json") | {"sources": sources, "mixture": mixture}
    files["data"] = DataFile.model_validate(options)
    sent = literals(preflight, **files)
    shown = {name: console_form(literal) for name, literal in sent.items()}
    launched, again = checked(sent), checked(shown)
    for task in COMPOSED:
        assert key(template(task), wanted(task, launched)) == key(template(task), wanted(task, again)), task.name
    assert inner_keys(launched) == inner_keys(again)
