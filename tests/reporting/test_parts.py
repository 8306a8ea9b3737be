"""What the folder of a part takes over from the runs that its inputs come from."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tasks.config.loading import load_yaml
from tasks.flyte.local_run import PartRun
from tasks.inputs.files import DataFile, load_quickstart
from tasks.reporting.parts import collect_carried, find_responses, publish

TABLES = (
    "prompts",
    "rollouts",
    "graded",
    "selected",
    "compared",
    "mixture",
    "heldout",
    "set_aside",
    "evaluation_rollouts",
)


@pytest.fixture
def run(tmp_path):
    """The folder of a whole run."""
    folder = tmp_path / "outputs" / "20261101-000000-aaaaaaaa"
    for name in ("model", "policy"):
        (folder / name).mkdir(parents=True)
    for name in TABLES:
        (folder / f"{name}.parquet").touch()
    (folder / "report.html").touch()
    (folder / "summary.json").write_text(json.dumps({}))
    (tmp_path / "outputs" / "latest").symlink_to(folder.name)
    return tmp_path / "outputs" / "latest"


def names(given, *made):
    return set(collect_carried(given, {name: Path(f"{name}.parquet") for name in made}))


def test_after_data_there_is_the_model_and_nothing_of_the_old_tables(run):
    assert names({"model": run / "model"}, "prompts", "mixture") == {"model"}


def test_after_training_there_are_the_tables_of_its_mixture(run):
    given = {"model": run / "model", "mixture": run / "mixture.parquet"}
    expected = {"model", *(f"{name}.parquet" for name in TABLES if name != "evaluation_rollouts")}
    assert names(given, "policy", "ledger", "metrics") == expected


def test_a_stage_that_makes_a_table_leaves_what_comes_after_it(run):
    given = {"model": run / "model", "graded": run / "selected.parquet"}
    assert names(given, "mixture", "heldout", "set_aside") == {
        "model",
        *(f"{name}.parquet" for name in ("prompts", "rollouts", "graded", "selected", "compared")),
    }


def test_an_input_of_the_users_own_is_taken_by_the_name_of_the_result_and_no_other(run, tmp_path):
    own = tmp_path / "checkpoint.5"
    own.mkdir()
    given = {"model": own, "graded": run / "graded.parquet", "batch": tmp_path / "rows.parquet"}
    taken = collect_carried(given, {"mixture": Path("mixture.parquet")})
    assert taken["model"] == own
    assert "rows.parquet" not in taken
    assert "policy" not in taken


def test_the_files_of_a_part_are_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RLVR_OUTPUTS", str(tmp_path / "outputs"))
    (tmp_path / "page.html").write_text("made")
    part = PartRun(
        name="data",
        title="mine",
        run="run",
        began=datetime.now(UTC),
        given={},
        files={"page": tmp_path / "page.html"},
        summaries=[],
        values={},
        specs={"data": load_quickstart()[0]},
    )
    publish(part)
    assert load_yaml(DataFile, tmp_path / "outputs" / "latest" / "data.yaml") == load_quickstart()[0]


def test_the_address_of_trainings_responses_is_taken_over_with_the_ledger(run):
    (run / "ledger.parquet").touch()
    (run / "summary.json").write_text(json.dumps({"responses": "outputs/runs/abc/rollouts"}))
    assert find_responses({"ledger.parquet": run / "ledger.parquet"}) == {"responses": "outputs/runs/abc/rollouts"}
    assert find_responses({"model": run / "model"}) == {}
    (run / "summary.json").write_text("{}")
    assert find_responses({"ledger.parquet": run / "ledger.parquet"}) == {}
