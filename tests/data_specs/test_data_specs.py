"""The data files that ship give what their sources say, and each recipe names its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from data_specs.rewards import boxed
from data_specs.transforms import english_first_turn, turns
from tasks.config import SpecError, load_yaml
from tasks.evaluation.spec import EvaluationSpec
from tasks.flyte.patches import ConfigFile, companion_callback
from tasks.inputs.files import DATA_SPECS, RECIPES, DataFile, Recipe, quickstart, with_companions
from tasks.sourcing.hub import COMMIT
from tests.workflows.test_recipes import OLMO, SEEDS, SOURCES

THINK = {
    "if-rlvr": 30_186, "open-reasoner-zero": 3_000, "dapo-math": 2_584, "acereason-math": 6_602, "klear-math": 3_000,
    "omega": 15_000, "acecoder": 9_767, "klear-code": 8_040, "nemotron-code": 2_303, "synthetic-2": 3_000,
    "tulu-3": 7_129, "wildchat": 7_129, "multi-subject": 7_129,
}  # fmt: skip
INSTRUCT = {
    "if-rlvr": 38_000, "open-reasoner-zero": 14_000, "dapo-math": 7_000, "polaris": 14_000, "klear-math": 9_000,
    "omega": 20_000, "acecoder": 20_000, "tulu-3": 18_955, "wildchat": 18_761, "multi-subject": 12_234,
}  # fmt: skip
COUNTS = {
    "dolci_think_rl": THINK,
    "dolci_instruct_rl": INSTRUCT,
    "dolci_think_rl_7b": {"dolci-think-rl-7b": 102_014},
    "dolci_think_rl_32b": {"dolci-think-rl-32b": 104_869},
    "dolci_instruct_rl_7b": {"dolci-instruct-rl": 169_964},
    "dapo_math_17k": {"dapo-math-17k": None},
    "gsm8k": {"gsm8k": 7_473},
    "axolotl_gsm8k": {"gsm8k": 7_473},
    "gsm8k_math": {"gsm8k": 7_473, "math": 12_000},
    "math_12k": {"math-12k": 12_000},
    "mbpp": {"mbpp": 374},
    "open_math_instruct_2": {"open-math-instruct-2": 100_000},
}
OF_OUR_OWN = {"quickstart", "local_files"}


def test_every_data_file_is_here():
    assert {path.stem for path in DATA_SPECS.glob("*.yaml")} == COUNTS.keys() | OF_OUR_OWN


@pytest.mark.parametrize("name", COUNTS)
def test_a_data_file_has_the_counts_of_its_source(name):
    data = load_yaml(DataFile, DATA_SPECS / f"{name}.yaml")
    assert {source.name: source.limit for source in data.sources} == COUNTS[name]
    for read in (*data.sources, *data.evaluation_sets):
        revision = read.loader.revision
        assert revision == "main" or COMMIT.fullmatch(revision)


def test_the_olmo_tables_counts_are_those_of_the_paper():
    if not (SEEDS / OLMO).exists():
        pytest.skip(f"{SEEDS / OLMO} is not here")
    table = (SEEDS / OLMO).read_text().partition("Dataset Composition")[2].partition("| Total")[0]
    rows = [[cell.strip() for cell in line.strip(" |").split("|")] for line in table.splitlines() if "|" in line]
    found = [[int(cell.replace(",", "")) for cell in row if re.fullmatch(r"[\d,]+", cell)] for row in rows]
    counts = sorted(count for row in found for count in row)
    assert counts == sorted([*THINK.values(), *INSTRUCT.values()])


def test_a_prompt_with_roles_in_its_text_becomes_a_chat():
    row = {"prompt": "user: 1 + 1?\nOr 2?\nassistant: 2\nuser: Why?", "key": 1}
    assert turns(row) == {
        "key": 1,
        "prompt": [
            {"role": "user", "content": "1 + 1?\nOr 2?"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "Why?"},
        ],
    }
    assert turns({"prompt": "What is\nuser: in a log?"}) == {"prompt": "What is\nuser: in a log?"}


def test_of_wildchat_the_first_turns_of_english_conversations_are_used():
    row = {"language": "English", "toxic": False, "conversation": ["a question", "an answer", "another question"]}
    assert english_first_turn(row)["conversation"] == ["a question"]
    assert english_first_turn(row | {"language": "French"}) is None
    assert english_first_turn(row | {"toxic": True}) is None


def test_a_boxed_answer_has_the_format():
    told = [[{"role": "assistant", "content": text}] for text in (r"So \boxed{3}.", "So 3.")]
    assert boxed(told) == [1.0, 0.0]


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_recipe_and_its_data_and_evaluation_fit_together(name):
    data, recipe, evaluation = with_companions(name)
    assert name == "quickstart" or data.name != "quickstart"
    assert data.difficulty.sampling.max_tokens <= recipe.sampling.max_tokens == evaluation.sampling.max_tokens
    assert data.difficulty.engine.max_model_len <= recipe.actors.engine.max_model_len


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([], ("quickstart", 56)),
        (["--training", '{"extends": "dapo_qwen25_32b"}'], ("dapo-math-17k", 20_480)),
        (["--data", '{"extends": "gsm8k"}', "--training", '{"extends": "dapo_qwen25_32b"}'], ("gsm8k", 20_480)),
    ],
)
def test_an_option_that_is_not_given_is_the_recipes_own_file(given, names):
    models = {"data": DataFile, "training": Recipe, "evaluation": EvaluationSpec}
    options = [
        click.Option(
            [f"--{name}"],
            type=ConfigFile(model),
            default=default.model_dump_json(exclude_unset=True),
            callback=None if model is Recipe else companion_callback(model),
        )
        for (name, model), default in zip(models.items(), quickstart(), strict=True)
    ]
    found = click.Command("run", params=options).make_context("run", given).params
    assert (found["data"].name, found["evaluation"].sampling.max_tokens) == names


def test_a_file_that_a_recipe_names_and_that_is_not_there_is_one_sentence():
    recipe = load_yaml(Recipe, RECIPES / "quickstart.yaml").model_copy(update={"data": "my.yaml"})
    with pytest.raises(SpecError, match=r"my\.yaml: no such file"):
        recipe.companion(DataFile)


@pytest.mark.complete
@pytest.mark.long
def test_a_run_of_a_papers_recipe_looks_for_the_papers_data():
    run = [
        Path(sys.executable).parent / "pyflyte",
        "run",
        "workflows/rlvr.py",
        "rlvr",
        "--training",
        '{"extends": "dapo_qwen25_32b"}',
    ]
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(run, cwd=DATA_SPECS.parent, env=offline, capture_output=True, text=True)
    assert "source 'dapo-math-17k': loader: BytedTsinghua-SIA/DAPO-Math-17k: the hub cannot be reached" in done.stderr
