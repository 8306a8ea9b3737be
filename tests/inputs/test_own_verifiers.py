"""Verifiers of a user's own are tried on first rows and dummy responses before anything is sampled."""

import json

import pytest

from tasks.config.loading import SpecError
from tasks.inputs.files import DataFile
from tasks.inputs.own_verifiers import check_own_verifiers
from tasks.sourcing import loaders

CHECK = """
def check_ground_truth(ground_truth):
    if int(ground_truth) < {least}:
        raise ValueError(f"{{ground_truth}} is below {least}")
"""
JUDGE = "def judge(response, ground_truth, messages):\n    return {}\n"


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Check a verifier of this code, which judges a source of sums."""
    rows = [{"prompt": f"What is {n} + 1?", "ground_truth": str(n + 1)} for n in range(1, 5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = f"tried_{tmp_path.name.replace('-', '_')}"
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def checked(code, **source):
        (tmp_path / folder / "sums.py").write_text(code)
        own = {"name": "sums", "domain": "sums", "verifier": f"{folder}.sums"}
        own["loader"] = {"kind": "jsonl", "path": "rows.jsonl"}
        limits = {"time_limit_seconds": 0.3}
        source = {key: f"{folder}.sums" if value == "own" else value for key, value in source.items()}
        data = DataFile.model_validate({"name": "my-data", "sources": [own | source], "verifiers": limits})
        [read] = data.sources
        check_own_verifiers(read, loaders.check(read), data)

    return checked


@pytest.mark.long
def test_a_verifier_that_judges_is_taken(check, caplog):
    check(CHECK.format(least=0) + JUDGE.format("float(ground_truth in response)"))
    assert not caplog.messages


@pytest.mark.long
def test_one_that_refuses_some_is_named_in_the_log(check, caplog):
    check(CHECK.format(least=3) + JUDGE.format("1 / len(response)"))
    refused, failed = caplog.messages
    assert "refuses the ground truth: 2 is below 3; such rows are set aside" in refused
    assert "judge raised ZeroDivisionError" in failed


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (CHECK.format(least=9) + JUDGE.format("1"), "refuses the ground truth: 5 is below 9; it does this for each"),
        (CHECK.format(least=0) + JUDGE.format("7"), "must return a number in [0, 1]"),
        (CHECK.format(least=0) + JUDGE.format("nothing"), "judge raised NameError: name 'nothing' is not defined"),
        (CHECK.format(least=0) + JUDGE.format("[0 for _ in iter(int, 1)]"), "each of 9 dummy responses"),
        (
            CHECK.format(least=0) + JUDGE.format("len(bytearray(1 << 42))"),
            "too large or too deep to judge: MemoryError",
        ),
        (CHECK.format(least=0) + JUDGE.format("__import__('os')._exit(0)"), "ended its process twice"),
        (CHECK.format(least=0), "has no judge(response, ground_truth, messages)"),
        ("import no_such_module_here", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_one_that_cannot_judge_is_refused_in_one_sentence(check, code, said):
    with pytest.raises(SpecError) as error:
        check(code)
    assert str(error.value).startswith("my-data: source 'sums': verifier tried_")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_one_that_is_nowhere_is_refused_beside_another_verifier_too(check):
    with pytest.raises(
        SpecError, match=r"verifier nowhere_at_all\.chess: there is no module nowhere_at_all\.chess in /"
    ):
        check("", verifier="math", rewards=[{"verifier": "nowhere_at_all.chess"}])
