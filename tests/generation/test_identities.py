"""What responses and verdicts depend on: all that changes them, and nothing else."""

import json
import shutil

import pytest

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.lineage import code_digest as digest
from tasks.rollouts.jobs import Job
from tasks.rollouts.judged_by import DISPATCH, MODULES, SEPARATE, JudgedBy
from tasks.rollouts.response_identity import UNRELATED, describe_generation
from tasks.verifiers import VERIFIERS, VerifiersConfig
from tasks.verifiers.config import CHAT
from tests.paths import ROOT
from tests.rollouts.test_sample_and_score import cache_in, table

pytestmark = pytest.mark.long
READ = {}
"""Modules that were read, by name and content: most are the same after an edit."""
PAID = {"url": "https://judge.example/v1", "model": "judge"}
SERVED = {"model": "initial"}
CLASSIFIER = {"kind": "reward_model", "model": "folder"}
WEIGHTED = {
    "rewards": [
        {"verifier": "math", "weight": 1.0, "ground_truth": "1"},
        {"verifier": "reward_model", "weight": 0.5, "ground_truth": {"reward_model": "helpful"}},
    ]
}


def row(verifier, truth=None, environment=None):
    return {"verifier": verifier, "ground_truth": json.dumps(truth), "environment": environment}


def of(verifier, truth=None, initial="one", environment=None, **options):
    return JudgedBy(VerifiersConfig.model_validate(options), initial).compute_digest(row(verifier, truth, environment))


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Edit a file in a copy of the project. Digests are computed from the copy."""
    copy = tmp_path / "copy"
    for folder in ("tasks", "workflows", "images"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    read = digest._read_code.__wrapped__

    def code(module, *, whole):
        key = (module, whole, digest._find_file(module).read_text())
        if key not in READ:
            READ[key] = read(module, whole=whole)
        return READ[key]

    monkeypatch.setattr(digest, "_read_code", code)
    cached = [value for value in vars(digest).values() if hasattr(value, "cache_clear")]

    def clear():
        for function in cached:
            function.cache_clear()

    def edited(path, old="", new="EDITED = 1\n"):
        file = copy / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new) if old else text + new)
        clear()

    monkeypatch.setattr(digest, "ROOT", copy)
    clear()
    yield edited
    clear()


def verdicts():
    """The digests of verdicts by kind of verifier."""
    judges = {"endpoint": PAID, "server": SERVED, "reward model": CLASSIFIER}
    plain = {name: of(name) for name in ("math", "precise_if", "code", "function", "environment", "my.own")}
    return plain | {name: of("chat_open", judge=judge) for name, judge in judges.items()}


EDITS = [
    (("tasks/verifiers/mathematics/equivalence.py",), {"math"}),
    (("tasks/verifiers/instructions/ifeval.py",), {"precise_if"}),
    (("tasks/verifiers/code/running.py",), {"code"}),
    (("tasks/verifiers/chat/reading.py",), {"endpoint", "server", "reward model"}),
    (("tasks/verifiers/chat/classifier.py",), {"reward model"}),
    (("tasks/verifiers/worker.py",), {"math", "precise_if", "function", "my.own"}),
    (("tasks/verifiers/pool.py",), set()),
    (("tasks/verifiers/http_client.py",), set()),
    (("images/lock-cuda.txt", "vllm==", "vllm==9"), {"server"}),
    (("images/lock-cuda.txt", "transformers==", "transformers==9"), {"reward model"}),
    (("images/lock-cuda.txt", "sympy==", "sympy==9"), {"math", "code"}),
]
"""Edited files, and the verifiers whose verdicts are lost."""


def test_an_edit_costs_the_verdicts_of_the_verifiers_that_it_is_part_of(edit):
    before = verdicts()
    for edited, changed in EDITS:
        edit(*edited)
        after = verdicts()
        assert {name for name in before if before[name] != after[name]} == changed, edited
        before = after


def test_verdicts_depend_on_the_options_of_their_own_verifier():
    assert of("math") != of("math", time_limit_seconds=1)
    assert of("math") == of("math", total_memory_mib=8192) == of("math", judge=PAID, code={"test_seconds": 3})
    assert of("code") != of("code", code={"test_seconds": 3})
    assert of("code") == of("code", time_limit_seconds=1)
    assert of("chat_open", judge=PAID) == of("chat_open", judge=PAID | {"url": "https://other.example/v1"})
    assert of("chat_open", judge=PAID) == of("chat_open", judge=PAID, initial="two", time_limit_seconds=1)
    assert of("chat_open", judge=PAID) != of("chat_open", judge=PAID | {"model": "other"})
    assert of("chat_open", judge=SERVED) != of("chat_open", judge=SERVED, initial="two")
    models = {"helpful": {"model": "one"}, "polite": {"model": "two"}}
    another, others = models | {"polite": {"model": "three"}}, {"helpful": {"model": "two"}}
    combined = of("weighted", WEIGHTED, reward_models=models)
    assert combined == of("weighted", WEIGHTED, reward_models=another)
    assert combined != of("weighted", WEIGHTED, reward_models=others)
    assert combined != of("weighted", WEIGHTED, reward_models=models, time_limit_seconds=1)


def test_every_verifier_has_modules_that_exist():
    assert set(VERIFIERS) - set(CHAT) <= set(MODULES)
    modules = {module for listed in MODULES.values() for module in listed}
    for module in (*modules, *DISPATCH, *UNRELATED, *(f"tasks.verifiers.{name}" for name in SEPARATE)):
        path = ROOT.joinpath(*module.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), module


GREEDY = SamplingConfig(samples=1, temperature=0.0)


def identity(sampling=GREEDY, **engine):
    return describe_generation(EngineConfig.model_validate({"dtype": "float32"} | engine), sampling)


def test_responses_depend_on_the_engine_that_generates_them(edit):
    ours, served = identity(), identity(dtype="auto", server={"url": "http://host/v1", "model": "m"})
    assert identity(max_model_len=99, max_num_seqs=3) == ours == identity(GREEDY.model_copy(update={"samples": 4}))
    edit("images/lock-cuda.txt", "vllm==", "vllm==9")
    upgraded = identity()
    assert upgraded != ours
    edit("tasks/generation/engine_sampling.py")
    assert identity() != upgraded
    edited = identity()
    edit("tasks/generation/weight_transfer.py")
    edit("tasks/verifiers/mathematics/equivalence.py")
    edit("tasks/rollouts/judging.py")
    assert identity() == edited
    edit("tasks/generation/chat_template.py")
    assert identity() != edited
    assert served["dtype"] is None


def test_responses_depend_on_the_type_that_auto_means_here(monkeypatch):
    monkeypatch.setattr("tasks.rollouts.response_identity.has_gpu", lambda: False)
    of_type = {}
    for dtype in ("float32", "bfloat16"):
        monkeypatch.setenv("RLVR_CPU_DTYPE", dtype)
        of_type[dtype] = identity(dtype="auto")
        assert of_type[dtype] == identity(dtype=dtype)
    assert of_type["float32"] != of_type["bfloat16"]


ROOM = EnvironmentSpec("tests.environments.rooms.count", columns={"to": 2}).to_json()
GUESS = EnvironmentSpec("tasks.environments.guess_number.guess_number", columns={"low": 1, "high": 7}).to_json()


def episode(environment, **ids):
    return {
        "messages": [{"role": "user", "content": "Play."}],
        "prompt_id": "p",
        "verifier": "environment",
        "ground_truth": "null",
        "environment": environment,
    } | ids


def test_episodes_depend_on_the_code_that_plays_them(edit, tmp_path):
    cache = cache_in(tmp_path)

    def keys():
        return [cache._compute_episode_key(episode(environment)) for environment in (ROOM, GUESS)]

    first = keys()
    edit("tasks/verifiers/instructions/ifeval.py")
    assert keys() == first
    edit("tasks/environments/guess_number.py")
    second = keys()
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False]
    edit("tasks/environments/episode.py")
    assert not set(keys()) & {*first, *second}


def test_the_seed_of_a_sample_depends_on_the_prompt_alone(edit, tmp_path):
    sampling = SamplingConfig(samples=2, seed=3)

    def seeds(asked):
        cache = cache_in(tmp_path, JudgedBy(VerifiersConfig(time_limit_seconds=len(asked["prompt_id"])), ""))
        key = "k" if asked["environment"] is None else cache._compute_episode_key(asked)
        job = Job(0, asked, key, sampling, cache, None)
        return [job.compute_seed(number) for number in range(2)]

    plain, games = table("Play.").to_pylist()[0], [episode(GUESS, prompt_id=name) for name in ("p", "q")]
    before = [seeds(asked) for asked in (plain, *games)]
    edit("tasks/environments/episode.py")
    edit("tasks/verifiers/mathematics/equivalence.py")
    assert [seeds(asked) for asked in (plain, *games)] == before
    assert len({seed for pair in before for seed in pair}) == 6
    assert seeds(plain | {"prompt_id": "of another truth"}) == before[0]
