"""What runs again when something changes: exactly what depends on it."""

import json
import re
import shutil
import socket
import sqlite3
from collections import Counter

import pytest
from flytekit.core.local_cache import LocalTaskCache

from tasks.cleaning import merging, screening
from tasks.cleaning.spec import CleaningSpec, Filters
from tasks.difficulty.spec import Variant
from tasks.flyte.local_cache import CacheError
from tasks.inputs.files import load_quickstart
from tasks.kubernetes.pods import PodConfig
from tasks.recipe.learner import OptimizerConfig
from tasks.sourcing import loaders, prompts
from tasks.tables.parquet import read_table
from tasks.tables.schemas import COMPARED, GRADED, ROLLOUTS, SET_ASIDE
from tasks.verifiers.chat.config import JudgeConfig
from workflows.rlvr import rlvr

pytestmark = pytest.mark.long

SAMPLED = {"split_prompts": 1, "roll_out": 1, "judge_rollouts": 1}
EVERYTHING = SAMPLED | {"prepare_model": 1, "check_model": 1, "train_policy": 1, "evaluate_policy": 2}


@pytest.fixture
def run(stand_ins, monkeypatch):
    """Runs the pipeline, its charts left empty; which of the heavy tasks really ran, and what `summary.json` holds."""
    monkeypatch.setattr("tasks.charts.drawing._render_svg", lambda *_: "<svg/>")  # drawing takes half of the time

    def run_with(data=None, training=None, evaluation=None):
        defaults = load_quickstart()
        stand_ins.ran.clear()
        made = rlvr(data=data or defaults[0], training=training or defaults[1], evaluation=evaluation or defaults[2])
        with open(made.summary) as file:
            return dict(stand_ins.ran), json.load(file)

    return run_with


def test_a_second_run_is_all_cache_hits(run):
    ran, first = run()
    assert ran == EVERYTHING
    assert not any(stage["cached"] for stage in first["stages"].values())
    ran, second = run()
    assert ran == {}
    # Both runs are of one process, so that every stage says that it ran; the figures are what counts.
    assert {name: second[name] for name in ("before", "after", "gain")} == {
        name: first[name] for name in ("before", "after", "gain")
    }


def test_another_recipe_runs_training_and_evaluation_of_its_policy_again(run):
    run()
    recipe = load_quickstart()[1]
    ran, _ = run(training=recipe.model_copy(update={"optimizer": OptimizerConfig(learning_rate=2e-5), "steps": 15}))
    assert ran == {"train_policy": 1, "evaluate_policy": 1}


def test_another_type_of_the_learner_checks_the_model_again_and_no_check_is_another_choice(run):
    run()
    recipe = load_quickstart()[1]
    ran, _ = run(training=recipe.model_copy(update={"learner": recipe.learner.model_copy(update={"dtype": "float32"})}))
    assert ran == {"check_model": 1, "train_policy": 1}
    ran, summary = run(training=recipe.model_copy(update={"model_check": False}))
    assert ran == {}
    assert summary["stages"]["model check"]["seconds"] < 1


def test_another_mixture_runs_everything_from_mixing_on_again(run):
    run()
    data = load_quickstart()[0]
    ran, _ = run(data=data.model_copy(update={"mixture": data.mixture.model_copy(update={"seed": 99})}))
    assert ran == {"train_policy": 1, "evaluate_policy": 2}


@pytest.fixture
def worked(monkeypatch):
    """Which sources were read, how many times prompts were screened, and how many times merged."""
    found = Counter()

    def counted(module, name, label):
        work = getattr(module, name)

        def counting(*args):
            found[label(*args)] += 1
            return work(*args)

        monkeypatch.setattr(module, name, counting)

    counted(prompts, "PromptReader", lambda source, _: source.name)
    counted(screening, "screen", lambda *_: "screened")
    counted(merging, "Merger", lambda *_: "merged")
    return found


@pytest.mark.complete
def test_another_filter_reads_no_source_again_and_another_mixture_cleans_nothing_again(run, worked):
    data = load_quickstart()[0]
    run()
    assert worked == {source.name: 1 for source in data.sources} | {"merged": 1}
    worked.clear()
    run(data=data.model_copy(update={"mixture": data.mixture.model_copy(update={"seed": 98})}))
    assert worked == {}
    ran, _ = run(data=data.model_copy(update={"cleaning": CleaningSpec(filters=Filters(min_words=1))}))
    assert worked == {"screened": 1, "merged": 1}
    assert ran == {}, "it took no prompt"


@pytest.mark.complete
def test_a_source_that_grew_is_the_only_one_that_is_read_and_screened_again(run, worked, tmp_path, monkeypatch):
    monkeypatch.setattr(loaders, "SMALL_BYTES", 0)
    questions = [f"What comes after the number {word}?" for word in ("ten", "nine", "six")]

    def lines(name, *texts):
        (tmp_path / name).write_text("".join(json.dumps({"prompt": text, "answer": "1"}) + "\n" for text in texts))
        return {"loader": {"kind": "jsonl", "path": str(tmp_path / name)}, "name": name.partition(".")[0]}

    def data():
        judged = {"domain": "math", "verifier": "math", "columns": {"ground_truth": "answer"}}
        spec = {"name": "d", "sources": [a | judged, b | judged], "evaluation_sets": [e], "mixture": {"heldout": 0.3}}
        return load_quickstart()[0].model_validate(spec)

    a = lines("a.jsonl", *(f"{number}?" for number in range(20)))
    b = lines("b.jsonl", *(f"{number}+1?" for number in range(20)), questions[0])
    e = lines("e.jsonl", *questions)
    run(data=data())
    assert worked == {"a": 1, "b": 1, "e": 1, "screened": 2, "merged": 1}
    worked.clear()
    lines("b.jsonl", *(f"{number}+1?" for number in range(30)), *questions)
    run(data=data())
    assert worked == {"b": 1, "screened": 1, "merged": 1}
    rows = read_table(tmp_path / "outputs" / "latest" / "set_aside.parquet", SET_ASIDE).to_pylist()
    assert [(row["source"], row["kind"]) for row in rows] == [("b", "contaminated")] * 3


def without_early_stopping():
    """The quickstart's data, with rollouts that neither the judges nor the threshold decide about."""
    data = load_quickstart()[0]
    return data.model_copy(update={"difficulty": data.difficulty.model_copy(update={"early_stopping": False})})


def test_another_threshold_keeps_the_rollouts(run):
    data = without_early_stopping()
    run(data=data)
    ran, _ = run(
        data=data.model_copy(update={"difficulty": data.difficulty.model_copy(update={"max_mean_score": 0.5})})
    )
    assert ran == {"train_policy": 1, "evaluate_policy": 2}


def test_without_a_difficulty_filter_nothing_is_sampled_before_training(run, tmp_path):
    data = load_quickstart()[0].model_copy(update={"difficulty": None})
    ran, _ = run(data=data)
    assert ran == {"prepare_model": 1, "check_model": 1, "split_prompts": 1, "train_policy": 1, "evaluate_policy": 2}
    folder = tmp_path / "outputs" / "latest"
    assert read_table(folder / "graded.parquet", GRADED).column("pass_rate").null_count > 0
    assert read_table(folder / "rollouts.parquet", ROLLOUTS).num_rows == 0
    assert "No prompt was dropped as too easy" in (folder / "report.html").read_text()
    assert run(data=data)[0] == {}


def test_another_way_to_judge_keeps_the_responses(run):
    data = without_early_stopping()
    run(data=data)
    verifiers = data.verifiers.model_copy(update={"time_limit_seconds": 5.0})
    ran, _ = run(data=data.model_copy(update={"verifiers": verifiers}))
    assert ran == {"judge_rollouts": 1, "train_policy": 1, "evaluate_policy": 2}


@pytest.mark.complete
def test_a_variant_costs_itself_alone_and_selects_nothing(run, tmp_path):
    run()
    data = load_quickstart()[0]
    variant = Variant(chat_template_kwargs={"enable_thinking": True})
    difficulty = data.difficulty.model_copy(update={"compared": {"thinking": variant}})
    ran, _ = run(data=data.model_copy(update={"difficulty": difficulty}))
    assert ran == SAMPLED
    compared = read_table(tmp_path / "outputs" / "latest" / "compared.parquet", COMPARED)
    assert set(compared.column("variant").to_pylist()) == {"initial", "thinking"}
    assert compared.num_rows == 2 * read_table(tmp_path / "outputs" / "latest" / "graded.parquet", GRADED).num_rows


@pytest.mark.complete
def test_early_stopping_depends_on_the_judges_and_on_the_threshold(run):
    data = load_quickstart()[0]

    def with_early_stopping(max_mean_score, time_limit):
        update = {"early_stopping": True, "max_mean_score": max_mean_score}
        verifiers = data.verifiers.model_copy(update={"time_limit_seconds": time_limit})
        return data.model_copy(update={"difficulty": data.difficulty.model_copy(update=update), "verifiers": verifiers})

    run(data=with_early_stopping(0.625, 10.0))
    for changed in (with_early_stopping(0.5, 10.0), with_early_stopping(0.5, 5.0)):
        assert run(data=changed)[0].items() >= {"roll_out": 1, "judge_rollouts": 1}.items()


def test_a_local_file_that_changed_is_read_again(run, tmp_path):
    rows = [{"question": f"{i}+1?", "answer": str(i + 1)} for i in range(40)]
    path = tmp_path / "sums.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    data = load_quickstart()[0].model_validate(
        {
            "name": "sums",
            "sources": [
                {
                    "name": "sums",
                    "domain": "math",
                    "verifier": "math",
                    "loader": {"kind": "jsonl", "path": str(path)},
                    "columns": {"prompt": "question", "ground_truth": "answer"},
                }
            ],
            "mixture": {"heldout": 4},
        }
    )
    assert run(data=data)[0] == EVERYTHING
    assert run(data=data)[0] == {}
    path.write_text("\n".join(json.dumps(row) for row in rows[1:]))
    assert run(data=data)[0] == SAMPLED | {"train_policy": 1, "evaluate_policy": 2}


def test_a_result_whose_files_are_gone_is_made_again_and_what_depends_on_it_is_kept(run, tmp_path):
    run()
    for path in (*tmp_path.glob("*-roll_out.parquet"), *tmp_path.glob("*-train_policy")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run()[0] == {"roll_out": 1, "train_policy": 1}
    assert run()[0] == {}


def test_a_result_whose_files_have_changed_is_made_again(run, tmp_path):
    run()
    [rollouts] = tmp_path.glob("*-roll_out.parquet")
    rollouts.write_bytes(b"")  # what a crash leaves of a file that was not flushed
    [trained] = tmp_path.glob("*-train_policy")
    with (trained / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    assert run()[0] == {"roll_out": 1, "train_policy": 1}
    assert run()[0] == {}


def test_a_damaged_cache_is_set_aside_and_its_results_are_computed_again(run, tmp_path, caplog):
    run()
    LocalTaskCache._cache.close()
    LocalTaskCache._initialized = False
    for file in (tmp_path / "cache").glob("cache.db*"):
        file.write_bytes(b"no database" * 1000)
    assert run()[0] == EVERYTHING
    assert "is damaged (file is not a database) and was moved to" in caplog.text
    assert list(tmp_path.glob("cache-damaged-*/cache.db"))
    assert run()[0] == {}


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            sqlite3.OperationalError("database or disk is full"),
            r"cannot be used \(database or disk is full; [\d,]+ MB are free\): free some disk",
        ),
        (
            sqlite3.OperationalError("database is locked"),
            r"cannot be used \(database is locked; .* end the run that has",
        ),
        (
            sqlite3.DatabaseError("database disk image is malformed"),
            r"is damaged \(.* malformed\): delete that folder, and stages are computed",
        ),
    ],
)
def test_a_cache_that_fails_during_a_run_is_one_sentence(run, monkeypatch, error, sentence):
    run()

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(LocalTaskCache._cache, "get", fail)
    with pytest.raises(CacheError, match=sentence):
        run()


def test_a_cache_that_is_locked_as_it_is_opened_is_not_set_aside(own_cache, monkeypatch):
    (own_cache / "cache").mkdir()

    def locked(*_, **__):
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr("diskcache.Cache", locked)
    with pytest.raises(CacheError, match="database is locked"):
        LocalTaskCache.initialize()
    assert (own_cache / "cache").is_dir()
    assert not list(own_cache.glob("cache-damaged-*"))


@pytest.mark.complete
def test_what_flyte_keeps_may_be_deleted(run, tmp_path):
    _, first = run()
    assert len(list((tmp_path / "flyte").rglob("*.parquet"))) > 5
    shutil.rmtree(tmp_path / "flyte")
    (tmp_path / "flyte").mkdir()
    ran, second = run()
    assert ran == {}, "what the stand-ins made lies elsewhere"
    assert second["gain"] == first["gain"]


def test_run_time_options_run_nothing_again(run):
    run()
    data, recipe, evaluation = load_quickstart()
    engine = {"cpu_threads": 3, "gpu_memory_utilization": 0.5, "max_num_seqs": 7}
    difficulty = data.difficulty.model_copy(
        update={"engine": data.difficulty.engine.model_copy(update=engine), "verifier_workers": 4}
    )
    judge = data.verifiers.judge.model_copy(update={"timeout_seconds": 5.0})
    ran, _ = run(
        data=data.model_copy(
            update={"difficulty": difficulty, "verifiers": data.verifiers.model_copy(update={"judge": judge})}
        ),
        training=recipe.model_copy(
            update={
                "actors": recipe.actors.model_copy(update={"count": 2}),
                "learner": recipe.learner.model_copy(update={"ranks": 2}),
                "cluster": recipe.cluster.model_copy(update={"node": PodConfig(cpu=4)}),
                "stall_seconds": 60.0,
            }
        ),
        evaluation=evaluation.model_copy(update={"engine": evaluation.engine.model_copy(update=engine)}),
    )
    assert ran == {}


def test_one_policy_under_two_names_is_evaluated_once(run, stand_ins):
    stand_ins.learns = False
    ran, summary = run()
    assert ran == EVERYTHING | {"evaluate_policy": 1}
    assert {"evaluation: before", "evaluation: after"} <= set(summary["stages"])
    assert summary["gain"] == 0


def test_the_summary_and_the_report_are_in_the_output_folder(run, tmp_path):
    _, summary = run()
    assert set(summary) >= {"before", "after", "gain", "gain_low", "gain_high", "seconds", "stages"}
    assert summary["after"] == 1.0
    assert summary["stages"]["training"]["cached"] is False
    latest = tmp_path / "outputs" / "latest"
    assert latest.is_symlink()
    assert summary["report"] == str(latest.resolve() / "report.html")
    assert "training ran" in (latest / "report.html").read_text()
    for name in ("evaluation", "mixture", "heldout", "ledger", "set_aside", "set_aside_evaluation"):
        assert (latest / f"{name}.parquet").is_file()
    assert "base_model" not in (latest / "policy" / "README.md").read_text()  # a package's model is none of the hub's
    assert f'href="{latest.resolve().name}/report.html"' in (tmp_path / "outputs" / "index.html").read_text()


def test_the_report_says_what_each_output_was_made_from_and_how_to_make_it_again(run, tmp_path):
    run()
    page = (tmp_path / "outputs" / "latest" / "report.html").read_text()
    assert re.search(
        r"<th scope=.row.>(<a[^>]*>)?mixture(</a>)?</th><td><code>\w{12}</code></td><td class=.text.>selected \w{12}<",
        page,
    )
    assert "rlvr run --data RUN/data.yaml --training RUN/training.yaml" in page
    for words in ("quickstart", "SmolLM2-135M-Instruct", ">1.0 s<small>, ran<", "gain"):
        assert words in page


@pytest.mark.complete
def test_a_secret_is_in_nothing_that_a_run_leaves(run, tmp_path, monkeypatch, capfd):
    secret = "hunter2-of-the-judge"  # noqa: S105
    monkeypatch.setenv("KEY_OF_THE_JUDGE", secret)
    data = load_quickstart()[0]
    with socket.create_server(("127.0.0.1", 0)) as judge_of_a_test:
        url = f"http://127.0.0.1:{judge_of_a_test.getsockname()[1]}/v1"
        judge = JudgeConfig(model="m", url=url, api_key_env="KEY_OF_THE_JUDGE")
        run(data=data.model_copy(update={"verifiers": data.verifiers.model_copy(update={"judge": judge})}))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"KEY_OF_THE_JUDGE" in path.read_bytes() for path in written), "its name is recorded"
    assert not [path for path in written if secret.encode() in path.read_bytes()]
    assert secret not in "".join(capfd.readouterr())


@pytest.mark.complete
def test_a_run_that_fails_leaves_the_outputs_of_the_one_before(run, stand_ins, tmp_path, monkeypatch):
    run()
    before = {path.name for path in (tmp_path / "outputs").iterdir()}
    monkeypatch.setattr(shutil, "copytree", fails)
    with pytest.raises(OSError, match="no space"):
        run(evaluation=load_quickstart()[2].model_copy(update={"sampling": load_quickstart()[2].sampling.model_copy()}))
    assert {path.name for path in (tmp_path / "outputs").iterdir()} == before
    assert (tmp_path / "outputs" / "latest" / "policy").is_dir()


def fails(*_, **__):
    raise OSError("no space")
