"""A recipe's loss and advantage functions: found beside the recipe, checked, in cache keys, and sent to a cluster."""

import json

import pytest

from tasks.config.cache_keys import result_options
from tasks.config.loading import SpecError, load_yaml
from tasks.flyte.archive import collect_sent_files
from tasks.inputs.experiments import Experiment, Variant
from tasks.inputs.files import Recipe, load_quickstart
from tasks.inputs.own_objectives import check_own_functions, find_lacking_digests
from tasks.inputs.pinning import check_pinned, fingerprint_recipe
from tasks.inputs.user_modules import MODULES, check_registered, check_sent, compute_digests, list_modules
from tasks.model_check.options import CheckedOptions
from tasks.training.records.identity import run_name
from tasks.verifiers.config import DEFAULTS
from tests.inputs.test_user_modules import project  # noqa: F401 (a fixture)

MODULE = """
from {package}.helpers import factor

def loss(row):
    return factor * row.logprobs * row.advantages

def advantage(batch):
    return batch.rewards
"""


@pytest.fixture
def recipe(project):  # noqa: F811
    """A recipe in the user's package, the module with its loss and its advantage, and one that they import."""
    root, mine = project
    (root / mine / "objective.py").write_text(MODULE.format(package=mine))
    (root / mine / "helpers.py").write_text("factor = 1.0\n")
    path = root / mine / "recipe.yaml"
    path.write_text(
        "extends: quickstart\n"
        "objective.surrogate: {function: objective.loss, options: {}}\n"
        "objective.advantage: {function: objective.advantage}\n"
    )
    return load_yaml(Recipe, path)


def test_a_function_is_found_in_the_folder_of_the_recipe(recipe, project):  # noqa: F811
    _, mine = project
    own = recipe.run.objective.own_functions
    assert {option: each.function for option, each in own.items()} == {
        "surrogate": f"{mine}.objective.loss",
        "advantage": f"{mine}.objective.advantage",
    }
    check_own_functions(recipe)
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_changed_code_changes_the_keys_of_training_and_of_the_model_check(recipe, project):  # noqa: F811
    root, mine = project

    def keys():
        pinned = fingerprint_recipe(recipe)
        assert not any(find_lacking_digests(pinned).values())
        run = run_name("model", "mixture", pinned.run, DEFAULTS)
        return (
            run,
            json.dumps(result_options(pinned.run)),
            json.dumps(result_options(CheckedOptions.from_config(pinned))),
        )

    first = keys()
    assert keys() == first
    (root / mine / "helpers.py").write_text("factor = 2.0  # imported by the loss\n")
    assert all(changed != before for changed, before in zip(keys(), first, strict=True))
    without = load_quickstart()[1]
    assert fingerprint_recipe(without) == without


def test_a_part_that_is_started_without_digests_is_refused(recipe):
    with pytest.raises(SpecError, match=r"objective\.surrogate\.function has no digest of its content"):
        check_pinned("workflows/training.py train", DEFAULTS, others=find_lacking_digests(recipe))
    check_pinned("workflows/training.py train", DEFAULTS, others=find_lacking_digests(fingerprint_recipe(recipe)))


def test_the_modules_are_sent_and_must_be_registered(recipe, project, monkeypatch):  # noqa: F811
    root, mine = project
    assert list_modules([recipe]) == {f"{mine}.objective"}
    data, _, evaluation = load_quickstart()
    variant = Variant(data=data, training=recipe, evaluation=evaluation)
    experiment = Experiment(name="e", baseline="one", variants={"one": variant, "two": variant})
    assert f"{mine}.objective" in list_modules([experiment])
    check_sent(collect_sent_files(root), [recipe], whole=True)
    monkeypatch.setenv(MODULES, json.dumps(compute_digests([recipe])))
    check_registered()
    (root / mine / "helpers.py").write_text("factor = 3.0\n")
    with pytest.raises(SpecError, match=rf"module {mine}\.objective is registered in another version"):
        check_registered()
    (root / ".gitignore").write_text(f"{mine}/helpers.py\n")
    with pytest.raises(SpecError, match=rf"module {mine}\.(objective|helpers) is not sent"):
        check_sent(collect_sent_files(root), [recipe], whole=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def loss(row:\n    return row\n", r"cannot be imported: SyntaxError: .* \(.*objective\.py, line 1\)$"),
        ("def lose(row): ...\n", r"objective\.py contains no loss$"),
        (None, r"there is no module \S+\.objective in "),
    ],
)
def test_preflight_finds_mistakes_without_importing_anything(recipe, project, text, reason):  # noqa: F811
    root, mine = project
    path = root / mine / "objective.py"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError, match=rf"^training: objective\.surrogate.*{reason}"):
        check_own_functions(recipe)
