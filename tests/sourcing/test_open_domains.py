"""Domains of any name, and verifiers of a user's own, in data files, benchmarks and their schema."""

import json

import jsonschema
import pytest
from pydantic import ValidationError

from tasks.inputs.benchmarks import BenchmarkFile, read_questions
from tasks.inputs.files import DataFile
from tasks.inputs.json_schema import json_schema
from tasks.sourcing.loaders import compute_fingerprint
from tasks.sourcing.prompts import build_prompts
from tasks.sourcing.spec import SourceSpec
from tasks.verifiers import check_ground_truth, collect_verifiers
from tasks.verifiers.custom import compute_own_digest

OWN = "tests.verifiers.own_by_a_user"
FUNCTION = "tests.verifiers.rewards_of_a_user.later"


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    answers = ["yes", "no", 3]
    path.write_text("".join(json.dumps({"prompt": f"{n}?", "ground_truth": a}) + "\n" for n, a in enumerate(answers)))
    return path


def source(path, **options):
    own = {"name": "games", "domain": "chess", "verifier": OWN, "loader": {"kind": "jsonl", "path": str(path)}}
    return SourceSpec.model_validate(own | options)


def test_ground_truths_are_checked_when_prompts_are_sourced(rows):
    built = build_prompts(source(rows), 1000)
    first, second = built.prompts.to_pylist()
    assert (first["domain"], first["verifier"]) == ("chess", OWN)
    assert json.loads(first["ground_truth"]) == {"ground_truth": "yes", "digest": compute_own_digest(OWN)}
    assert check_ground_truth(second["verifier"], json.loads(second["ground_truth"])) is None
    [refused] = built.set_aside.to_pylist()
    assert refused["kind"] == "ground_truth"
    assert refused["reason"] == f"verifier {OWN} refuses the ground truth: want a text, got 3"


def test_it_stands_beside_functions_and_other_verifiers(rows):
    rewards = [{"function": FUNCTION, "weight": 0.5}, {"verifier": "math", "weight": 0.5}]
    row, *_ = build_prompts(source(rows, rewards=rewards), 1000).prompts.to_pylist()
    truth = json.loads(row["ground_truth"])
    own, function, math = truth["rewards"]
    assert own["ground_truth"]["ground_truth"] == function["ground_truth"]["columns"]["ground_truth"] == "yes"
    assert math == {"verifier": "math", "weight": 0.5, "ground_truth": "yes"}
    assert collect_verifiers(row["verifier"], truth) == {OWN, "function", "math"}
    row, *_ = build_prompts(source(rows, verifier="math", rewards=[{"verifier": OWN}]), 1000).prompts.to_pylist()
    assert [part["verifier"] for part in json.loads(row["ground_truth"])["rewards"]] == ["math", OWN]


def test_rows_need_no_ground_truth(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n')
    assert source(path).paths() == ["prompt"]
    assert source(path, columns={"ground_truth": "answer"}).paths() == ["prompt", "answer"]


def test_a_changed_verifier_is_another_input(rows, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "keyed_verifiers").mkdir()
    file = tmp_path / "keyed_verifiers" / "chess.py"
    digests = set()
    for value in "01":
        file.write_text(f"def check_ground_truth(truth): ...\ndef judge(*_): return {value}" + " " * int(value))
        digests.add(compute_fingerprint(source(rows, verifier="keyed_verifiers.chess")))
    assert len(digests) == 2


@pytest.mark.parametrize("verifier", ["math", "chat_open", "function", OWN])
def test_a_domain_has_any_name(rows, verifier):
    rewards = [{"function": FUNCTION}] if verifier == "function" else []
    assert source(rows, domain="math-hard", verifier=verifier, rewards=rewards).domains == {"math-hard"}


def test_the_known_domains_keep_their_verifiers(rows):
    assert source(rows, domain="math").verifiers == {OWN}
    with pytest.raises(ValidationError, match="verifier 'chat_open' does not fit domain 'math', which accepts math"):
        source(rows, domain="math", verifier="chat_open")


def test_benchmarks_take_both(rows):
    file = {
        "name": "games",
        "card": "https://example.org",
        "licence": "mit",
        "source": {"domain": "chess", "verifier": OWN, "loader": {"kind": "jsonl", "path": str(rows)}},
        "sampling": {"max_tokens": 8},
    }
    assert set(read_questions(BenchmarkFile.model_validate(file)).column("domain").to_pylist()) == {"chess"}


@pytest.mark.parametrize(
    ("verifier", "valid"), [("math", True), ("my_verifiers.chess", True), ("maths", False), ("my-verifiers.a", False)]
)
def test_an_editor_sees_which_verifiers_there_are(verifier, valid):
    own = {"name": "a", "domain": "chess", "verifier": verifier, "loader": {"kind": "jsonl", "path": "a"}}
    content = {"name": "x", "sources": [own | {"rewards": [{"verifier": verifier}]}]}
    assert jsonschema.Draft202012Validator(json_schema(DataFile)).is_valid(content) == valid
