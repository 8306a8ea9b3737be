"""The data files that ship give what their sources say, and each recipe names its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from data_specs.rewards import thought_and_answer
from data_specs.transforms import first_turn, turns, with_task_type
from tasks.config.loading import SpecError, load_yaml
from tasks.flyte.command_line_options import ConfigFile, make_companion_callback, return_unchanged
from tasks.inputs.files import DATA_SPECS, RECIPES, DataFile, EvaluationFile, Recipe, load_quickstart, load_recipe_files
from tasks.inputs.preflight import check_together
from tasks.sourcing.hub import COMMIT
from tasks.sourcing.prompts import build_prompts
from tests.workflows.test_recipes import AXOLOTL, OLMO, SEEDS

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
    "dolci_think_rl_32b": {"dolci-think-rl-32b": 102_026},
    "dolci_instruct_rl_7b": {"dolci-instruct-rl": 169_964},
    "dapo_math_17k": {"dapo-math-17k": None},
    "gsm8k": {"gsm8k": 7_473},
    "axolotl_gsm8k": {"gsm8k": 7_473},
    "gsm8k_math": {"gsm8k": 7_473, "math": 12_000},
    "one_gpu": {"gsm8k": 1_500},
    "math_12k": {"math-12k": 12_000},
    "mbpp": {"mbpp": 374},
    "open_math_instruct_2": {"open-math-instruct-2": 100_000},
}
NOT_TO_BE_FILTERED = (
    *("dolci_think_rl_7b", "dolci_think_rl_32b", "dolci_instruct_rl_7b"),  # filtered by those who published them
    *("dapo_math_17k", "math_12k", "open_math_instruct_2", "axolotl_gsm8k"),  # their sources train on all
)
OF_OUR_OWN = {"quickstart", "quickstart_tools", "local_files"}


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


def test_a_prompt_of_the_quickstart_of_episodes_leaves_room_for_an_episode():
    """Counted from above: a token of text has a character at least, a message has five tokens around it, and the
    model's template begins with a system message of 68 characters."""
    data, recipe, _ = load_recipe_files("quickstart_tools")
    [source] = data.sources
    prompts = build_prompts(source, data.max_prompt_chars).prompts.to_pylist()
    assert len({row["prompt_id"] for row in prompts}) == source.loader.size
    tokens = [sum(len(turn["content"]) + 5 for turn in row["messages"]) + 68 + 2 * 5 for row in prompts]
    assert max(tokens) + recipe.sampling.max_tokens <= recipe.actors.engine.max_model_len
    assert all(row["messages"][-1]["content"].startswith("Right. Guess my number from ") for row in prompts)


def test_of_wildchat_the_first_turns_are_used():
    row = {"language": "English", "conversation": ["a question", "an answer", "another question"]}
    assert first_turn(row) == row | {"conversation": ["a question"]}


@pytest.mark.parametrize(
    ("identity", "kind"), [("prime_rl_code_21747", "prime_rl_code"), ("ascii_format_a/b", ""), (None, "")]
)
def test_the_kind_of_a_task_of_synthetic_2_stands_before_its_number(identity, kind):
    assert with_task_type({"problem_id": identity})["task_type"] == kind


def test_the_format_of_axolotls_quick_start_is_its_four_tags():
    texts = ("<think>1 + 2</think> <answer>3</answer>", "<think>1 + 2 <answer>3</answer>", r"So \boxed{3}.")
    assert thought_and_answer([[{"role": "assistant", "content": text}] for text in texts]) == [1.0, 0.0, 0.0]


def test_axolotls_quick_start_has_the_prompt_and_the_rewards_of_its_source():
    if not (SEEDS / AXOLOTL).exists():
        pytest.skip(f"{SEEDS / AXOLOTL} is not here")
    text = (SEEDS / AXOLOTL).read_text()
    [source] = load_yaml(DataFile, DATA_SPECS / "axolotl_gsm8k.yaml").sources
    asked = re.search(r'"role": "system", "content": "(Solve[^"]*)"', text)
    weights = re.search(r"reward_weights:\n\s+- ([\d.]+)\n\s+- ([\d.]+)", text)
    assert asked
    assert source.columns.system == asked[1]
    assert weights
    assert [source.weight, source.rewards[0].weight] == [float(weight) for weight in weights.groups()]
    assert source.columns.template is None


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_a_recipe_and_its_data_and_evaluation_fit_together(name):
    data, recipe, evaluation = load_recipe_files(name)
    check_together(data, recipe, evaluation)
    assert name == "quickstart" or data.name != "quickstart"
    assert recipe.sampling.max_tokens == evaluation.sampling.max_tokens
    assert recipe.sampling.stop == evaluation.sampling.stop
    if data.difficulty is not None:
        assert data.difficulty.sampling.max_tokens == recipe.sampling.max_tokens
        assert data.difficulty.engine.max_model_len <= recipe.actors.engine.max_model_len


@pytest.mark.parametrize(
    ("data", "recipe"), [("dolci_think_rl", "olmo3_think_7b"), ("dolci_instruct_rl", "olmo3_instruct_7b")]
)
def test_a_mixture_from_its_sources_fits_the_recipe_of_the_published_one(data, recipe):
    _, training, evaluation = load_recipe_files(recipe)
    check_together(load_yaml(DataFile, DATA_SPECS / f"{data}.yaml"), training, evaluation)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*_32b.yaml")))
def test_the_engines_of_a_large_model_span_the_same_gpus_everywhere(name):
    data, recipe, evaluation = load_recipe_files(name)
    spans = recipe.actors.engine.tensor_parallel_size
    assert spans > 1
    assert evaluation.engine.tensor_parallel_size == spans
    assert data.difficulty is None or data.difficulty.engine.tensor_parallel_size == spans


@pytest.mark.parametrize("name", [name for name in COUNTS if name not in NOT_TO_BE_FILTERED])
def test_rollouts_of_difficulty_are_drawn_from_a_seed(name):
    assert load_yaml(DataFile, DATA_SPECS / f"{name}.yaml").difficulty.sampling.seed is not None


@pytest.mark.parametrize("name", NOT_TO_BE_FILTERED)
def test_data_that_is_filtered_already_or_not_to_be_costs_no_rollout(name):
    assert load_yaml(DataFile, DATA_SPECS / f"{name}.yaml").difficulty is None


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([], ("quickstart", 48)),
        (["--training", '{"extends": "dapo_qwen25_32b"}'], ("dapo-math-17k", 20_480)),
        (["--data", '{"extends": "gsm8k"}', "--training", '{"extends": "dapo_qwen25_32b"}'], ("gsm8k", 20_480)),
    ],
)
def test_an_option_that_is_not_given_is_the_recipes_own_file(given, names):
    models = {"data": DataFile, "training": Recipe, "evaluation": EvaluationFile}
    options = [
        click.Option(
            [f"--{name}"],
            type=ConfigFile(model),
            default=default.model_dump_json(exclude_unset=True),
            callback=return_unchanged if model is Recipe else make_companion_callback(model),
        )
        for (name, model), default in zip(models.items(), load_quickstart(), strict=True)
    ]
    found = click.Command("run", params=options).make_context("run", given).params
    assert (found["data"].name, found["evaluation"].sampling.max_tokens) == names


def test_a_file_that_a_recipe_names_and_that_is_not_there_is_one_sentence():
    recipe = load_yaml(Recipe, RECIPES / "quickstart.yaml").model_copy(update={"data": "my.yaml"})
    with pytest.raises(SpecError, match=r"my\.yaml: no such file"):
        recipe.load_companion(DataFile)


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
    assert "source 'dapo-math-17k': loader: BytedTsinghua-SIA/DAPO-Math-17k: the hub at" in done.stderr
