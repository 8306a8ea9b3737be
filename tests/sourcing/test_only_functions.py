"""Sources that a user's functions alone judge (`verifier: function`), in a domain of any name."""

import json

import pytest
from pydantic import ValidationError

from tasks.sourcing.prompts import build_prompts
from tasks.sourcing.spec import SourceSpec
from tasks.verifiers import check_ground_truth

HERE = "tests.verifiers.rewards_of_a_user"


def source(path, **options):
    own = {
        "name": "poems",
        "domain": "poetry",
        "verifier": "function",
        "loader": {"kind": "jsonl", "path": str(path)},
        "rewards": [{"function": f"{HERE}.later"}],
    }
    return SourceSpec.model_validate(own | options)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Poem {n}", "style": "haiku", "n": n}) + "\n" for n in range(3)))
    return path


def built(spec):
    prompts = build_prompts(spec, 1000).prompts.to_pylist()
    for row in prompts:
        assert check_ground_truth(row["verifier"], json.loads(row["ground_truth"])) is None
    return prompts


def test_one_function_is_the_verifier_in_a_domain_of_the_users(rows):
    row, *others = built(source(rows))
    assert len(others) == 2
    assert (row["domain"], row["verifier"]) == ("poetry", "function")
    truth = json.loads(row["ground_truth"])
    assert (truth["function"], truth["columns"]) == (f"{HERE}.later", {"ground_truth": None})


def test_a_function_of_a_group_says_so_in_the_ground_truth(rows):
    grouped, alone = source(rows, rewards=[{"function": f"{HERE}.ranks", "group": True}]), source(rows)
    assert [json.loads(row["ground_truth"])["group"] for row in built(grouped)] == [True] * 3
    assert all("group" not in json.loads(row["ground_truth"]) for row in built(alone))


def test_columns_and_the_answer_are_handed_over_as_they_are(rows):
    spec = source(rows, columns={"ground_truth": "n"}, rewards=[{"function": f"{HERE}.later", "columns": ["style"]}])
    [truth, *_] = (json.loads(row["ground_truth"]) for row in built(spec))
    assert truth["columns"] == {"style": "haiku", "ground_truth": 0}


def test_several_functions_are_weighted_and_the_first_comes_first(rows):
    rewards = [{"function": f"{HERE}.later", "weight": 2.0}, {"function": f"{HERE}.accuracy", "weight": 0.5}]
    row, *_ = built(source(rows, rewards=rewards))
    parts = json.loads(row["ground_truth"])["rewards"]
    assert row["verifier"] == "weighted"
    assert [(part["ground_truth"]["function"], part["weight"]) for part in parts] == [
        (f"{HERE}.later", 2.0),
        (f"{HERE}.accuracy", 0.5),
    ]


def test_a_function_fits_the_known_domains_too(rows):
    assert built(source(rows, domain="math"))[0]["domain"] == "math"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rewards": []}, "verifier: function needs rewards: a list that begins with a function"),
        ({"rewards": [{"verifier": "math"}]}, "verifier: function needs rewards: a list that begins with a function"),
        ({"weight": 2.0}, "weight is for a verifier"),
        ({"rewards": [{"function": f"{HERE}.later", "weight": -1}]}, "must sum to more than 0"),
        ({"verifier": "maths", "rewards": []}, "there is no such verifier (did you mean 'math'?)"),
        ({"domain": "a b"}, "domain"),
        ({"mode": "strict"}, "verifier 'function' has no mode 'strict'"),
    ],
)
def test_what_does_not_fit_is_said(rows, options, said):
    with pytest.raises(ValidationError) as error:
        source(rows, **options)
    assert said in str(error.value)
