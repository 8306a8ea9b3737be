"""Parts of the pipeline by themselves: each names, counts and publishes what it made, and the next finds it there."""

import json
import os
import re
import shlex
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner
from flytekit.clis.sdk_in_container.pyflyte import main

from tasks.commands.group import rlvr
from tasks.inputs.files import load_quickstart
from tasks.tables.parquet import build_table, read_table, write_table
from tasks.tables.schemas import GRADED, MIXTURE, SET_ASIDE, set_aside_row
from tests.paths import ROOT

pytestmark = pytest.mark.long

FILES = {
    "my_recipe": "extends: quickstart\ndata: my_data.yaml\nsteps: 5\n",
    "my_data": "extends: quickstart\nmixture.seed: 7\n",
    "my_evaluation": "extends: quickstart\n",
    "my_mixture": "{seed: 4, heldout: 0.2}\n",
}
PAGES = ("README.md", "docs/tutorial.md", "docs/data.md", "docs/tracing.md")
COMMANDS = {"pyflyte": main, "rlvr": rlvr}
"""The program behind the first word of a command."""
PARTS = {"evaluate": "evaluation"}
"""The names of parts of `rlvr run` in the summary of a run, if they differ."""


@pytest.fixture
def run(stand_ins, tmp_path, monkeypatch):
    """Runs a command of the documents in an empty folder that has the user's files; returns what it prints."""
    monkeypatch.setattr("tasks.charts.drawing._render_svg", lambda *_: "<svg/>")
    home = tmp_path / "home"
    home.mkdir()
    for name, text in FILES.items():
        (home / f"{name}.yaml").write_text(text)
    for name in ("workflows", "tasks"):
        (home / name).symlink_to(ROOT / name)
    monkeypatch.chdir(home)
    monkeypatch.setenv("RLVR_OUTPUTS", str(home / "outputs"))

    def command(line: str) -> str:
        program, *words = shlex.split(line)
        done = CliRunner().invoke(COMMANDS[program], words)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        return done.output

    command.home = home
    return command


def latest(run) -> dict:
    return json.loads((run.home / "outputs" / "latest" / "summary.json").read_text())


def examples() -> list[str]:
    """The commands of the documents, in their order, that run a part on what the runs before it left in `outputs`."""
    text = "\n".join((ROOT / page).read_text() for page in PAGES).replace("\\\n", " ")
    commands = re.findall(r"^((?:pyflyte|rlvr) run .*outputs/latest.*)$", text, re.MULTILINE)
    return [" ".join(command.partition("   #")[0].split()) for command in commands]


def test_the_documents_commands_run_in_their_order_on_what_the_ones_before_left(run):
    assert len(examples()) >= 5
    first = run("rlvr run --training my_recipe.yaml")
    assert "pass rate" in first
    for command in examples():
        printed = run(command)
        if " checking " in command:
            assert "model check ran" in printed
            continue
        folder = (run.home / "outputs" / "latest").resolve()
        assert f"results     {folder}" in printed.replace("\n", "")
        part = command.split()[3 if command.startswith("pyflyte") else 2]
        assert latest(run)["part"] == PARTS.get(part, part)
        assert (folder / "model" / "weights").read_text() == "initial"
    index = (run.home / "outputs" / "index.html").read_text()
    assert "data alone" in index
    assert "mix_prompts alone" in index


def test_data_names_counts_and_publishes_what_it_made(run):
    run("rlvr run")
    before = (run.home / "outputs" / "latest").resolve()
    printed = run("rlvr run data --data my_data.yaml --model outputs/latest/model")
    after = (run.home / "outputs" / "latest").resolve()
    assert after.name.endswith(f"-data-{os.getpid()}")
    mixture = read_table(after / "mixture.parquet", MIXTURE)
    assert re.search(rf"mixture +{after}/mixture.parquet  {mixture.num_rows} rows", printed)
    assert re.search(r"^mixing .* held out", printed, re.MULTILINE)
    assert not (after / "policy").exists(), "it is not of this mixture"
    assert yaml.safe_load((after / "data.yaml").read_text()) == latest(run)["options"]["data"]
    assert set(latest(run)["stage_order"]) == {"cleaning", "roll_out", "judge_rollouts", "difficulty", "mixing"}
    differences = run(f"rlvr diff {before}/mixture.parquet {after}/mixture.parquet")
    assert "all" in differences


def test_the_files_beside_a_report_hold_what_is_not_default_and_give_the_same_run(run, stand_ins):
    run("rlvr run --training my_recipe.yaml")
    folder = (run.home / "outputs" / "latest").resolve()
    training = yaml.safe_load((folder / "training.yaml").read_text())
    assert training["data"] == str(run.home / "my_data.yaml")
    assert training["steps"] == 5
    assert "seed" not in training
    assert latest(run)["options"]["training"] == training
    card = (folder / "policy" / "README.md").read_text()
    assert (folder / "evaluation.yaml").read_text().strip() in card
    stand_ins.ran.clear()
    run(
        f"pyflyte run workflows/rlvr.py rlvr --data {folder}/data.yaml --training {folder}/training.yaml "
        f"--evaluation {folder}/evaluation.yaml"
    )
    assert not stand_ins.ran


def test_a_mixture_that_is_made_again_still_knows_why_rows_left(run):
    rows = [{"q": f"{n} + 1?", "a": str(n + 1)} for n in range(40)] + [{"q": "no answer"}]
    (run.home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = "{prompt: q, ground_truth: a}"
    loader = "{kind: jsonl, path: rows.jsonl}"
    (run.home / "my_rows.yaml").write_text(
        "name: rows\ndifficulty: null\nmixture: {heldout: 2}\nsources:\n"
        f"  - {{name: mine, domain: math, verifier: math, columns: {columns}, loader: {loader}, limit: 30}}\n"
        f"  - {{name: all, domain: math, verifier: math, columns: {columns}, loader: {loader}}}\n"
    )
    run("rlvr run")
    run("rlvr run data --data my_rows.yaml --model outputs/latest/model")
    asked = [f"rlvr trace --source mine --row {row}" for row in range(41)]
    asked.append("rlvr trace --source all --row 40")
    said = [line for command in asked for line in run(command).splitlines() if line.startswith(("left", "set"))]
    assert sum("is not among the 30 that `limit` drew of the 41 rows" in line for line in said) == 11
    assert any("column 'a' is missing" in line for line in said)
    run("pyflyte run tasks/mixing/task.py mix_prompts --graded outputs/latest/selected.parquet --spec my_mixture.yaml")
    again = [line for command in asked for line in run(command).splitlines() if line.startswith(("left", "set"))]
    assert again == said


def test_an_evaluation_prints_its_pass_rate(run):
    run("rlvr run")
    whole = latest(run)
    printed = run(
        "pyflyte run workflows/evaluation.py evaluation --evaluation quickstart --training quickstart "
        "--data quickstart --model outputs/latest/model --policy outputs/latest/policy "
        "--heldout outputs/latest/heldout.parquet"
    )
    part = latest(run)
    assert {name: part[name] for name in ("before", "after", "gain")} == {
        name: whole[name] for name in ("before", "after", "gain")
    }
    assert f"{100 * part['before']:.1f}%" in printed
    assert "pass rate" in printed
    folder = run.home / "outputs" / "latest"
    assert read_table(folder / "heldout.parquet", GRADED).num_rows == part["n"]
    assert (folder / "mixture.parquet").is_file()
    assert "set_aside_evaluation" in printed


def test_a_stage_takes_lists_of_tables_and_counts_what_earlier_ones_set_aside(run):
    run("rlvr run")
    first = (run.home / "outputs" / "latest").resolve()
    rows = [set_aside_row("sourcing", "malformed", "sums", number, "no answer", "{}") for number in range(3)]
    write_table(run.home / "aside.parquet", build_table(rows, SET_ASIDE, "aside"), SET_ASIDE)
    printed = run(
        "pyflyte run tasks/cleaning/task.py merge_sources --prompts '[\"outputs/latest/prompts.parquet\"]' "
        "--set_aside '[\"aside.parquet\"]' --sources '[\"sums\"]' --spec '{}' --control_tokens '[]'"
    )
    assert re.search(r"prompts +\S+/prompts.parquet  \d+ rows", printed)
    assert "; 3 set aside (3 malformed)" in printed
    printed = run(
        f"pyflyte run tasks/mixing/task.py mix_prompts --graded {first}/selected.parquet --spec my_mixture.yaml "
        f"--set_aside '[\"{first}/set_aside.parquet\"]'"
    )
    heldout = read_table(run.home / "outputs" / "latest" / "heldout.parquet", GRADED)
    assert f"{heldout.num_rows} held out" in printed
    assert {entry.name for entry in (run.home / "outputs" / "latest").iterdir()} >= {
        "model",
        "prompts.parquet",
        "rollouts.parquet",
        "selected.parquet",
        "mixture.parquet",
    }


def test_the_documents_training_without_flyte_takes_the_mixture_and_judges_by_the_recipes_data(run, monkeypatch):
    run("rlvr run --training my_recipe.yaml")
    model = run.home / "outputs" / "latest" / "model"
    given = []

    def train(inputs):
        given.append(inputs)
        return SimpleNamespace(**{name: inputs.folder / name for name in ("policy", "ledger", "metrics")})

    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("tasks.training.run.train", train)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr("tasks.model_check.check.check_model", lambda *_: {})
    monkeypatch.setattr("tasks.commands.without_flyte.prepare_recipe_model", lambda _: model)
    text = (ROOT / "docs" / "tutorial.md").read_text()
    [command] = re.findall(r"^rlvr train .*$", text, re.MULTILINE)
    printed = run(command)
    [inputs] = given
    assert (inputs.config.steps, inputs.mixture.name) == (6, "mixture.parquet")
    assert inputs.verifiers == load_quickstart()[0].verifiers.resolve_initial(model)
    assert f"responses   {inputs.folder}/rollouts" in printed


def test_a_name_that_does_not_ship_is_one_sentence_with_those_that_do(run):
    done = CliRunner().invoke(main, ["run", "workflows/rlvr.py", "rlvr", "--training", "quickstrat"])
    assert done.exit_code != 0
    text = " ".join(re.sub("[│╭╮╰╯─]", "", done.output).split())
    assert "quickstrat: no such file (did you mean 'quickstart'?); a path that ends in .yaml, or one of:" in text
