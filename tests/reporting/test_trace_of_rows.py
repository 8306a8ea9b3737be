"""Where each row of a source went, through the real stages: read, screened, merged, graded, mixed, and mixed again."""

import json
import re
import shutil

import pytest
from click.testing import CliRunner
from flytekit.types.file import FlyteFile

from tasks.cleaning.spec import CleaningSpec, DuplicatesSpec
from tasks.cleaning.task import merge_sources, screen_prompts
from tasks.commands.group import rlvr
from tasks.difficulty.stopping import Bounds
from tasks.difficulty.task import select_prompts
from tasks.flyte.stages import config_digest
from tasks.mixing.spec import Limits, MixtureSpec
from tasks.mixing.task import mix_prompts
from tasks.reporting.earlier_rows import write_with_earlier
from tasks.reporting.trace import TraceError, find, find_row, format_lines
from tasks.sourcing.loaders import add_fingerprint
from tasks.sourcing.spec import SourceBatch, SourceSpec
from tasks.sourcing.task import source_prompts
from tasks.tables.parquet import build_table, read_table, write_table
from tasks.tables.schemas import PROMPTS, ROLLOUTS, SET_ASIDE

CONTROL = "<|im_end|>"
QUESTION = "How many sheep does the farmer with three barns and seven dogs own in June?"
THINGS = ("apples", "boats", "cups", "doors", "eggs", "forks", "goats", "hats")
ROWS = [
    *({"q": f"How many {thing}?", "a": str(n), "level": n % 2} for n, thing in enumerate(THINGS)),
    {"q": f"Say {CONTROL} twice.", "a": "8", "level": 0},
    {"q": f"Say {CONTROL} twice.", "a": "8", "level": 0},
    {"q": f"{QUESTION} Explain.", "a": "9", "level": 0},
]


def source(name, paths, **changes):
    loader = {"kind": "jsonl", "path": list(map(str, paths))}
    columns = {"prompt": "q", "ground_truth": "a"}
    named = {"name": name, "domain": "math", "verifier": "math", "loader": loader, "columns": columns}
    return add_fingerprint(SourceSpec.model_validate(named | changes))


def read(*sources):
    batch = SourceBatch(sources=list(sources))
    return source_prompts(batch=batch, content=config_digest(batch), max_prompt_chars=1000)


def written(path, *rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(("" if row is None else json.dumps(row)) + "\n" for row in rows))
    return path


def rollouts(path, prompts, score_of):
    row = dict.fromkeys(ROLLOUTS.names)
    row |= {"response": "4", "num_tokens": 1, "finish_reason": "stop", "policy": "initial", "sample": 0}
    scored = [row | {"prompt_id": one["prompt_id"], "score": score_of(one), "passed": False} for one in prompts]
    table = build_table(scored, ROLLOUTS, "rollouts")
    return FlyteFile(str(write_table(path, table, ROLLOUTS)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run: `mine` has two files and an evaluation set beside it, `some` a limit, `odd` a filter."""
    folder = tmp_path_factory.mktemp("run")
    first, second = written(folder / "a.jsonl", *ROWS[:3], None), written(folder / "more" / "b.jsonl", *ROWS[3:])
    many = written(folder / "many.jsonl", *({"q": f"Name {n} words.", "a": str(n), "level": n % 2} for n in range(30)))
    sourced = read(
        source("mine", [first, second]),
        source("some", [many], limit=4),
        source("odd", [many], where={"level": 1}),
    )
    questions = read(source("quiz", [written(folder / "quiz.jsonl", {"q": QUESTION, "a": "1"})]))
    screened = screen_prompts(
        prompts=sourced.prompts,
        evaluation_sets=[questions.prompts],
        spec=CleaningSpec(control_tokens="escape").screening(evaluated=True),
        control_tokens=[CONTROL],
    )
    merged = merge_sources(
        prompts=[screened.prompts],
        set_aside=[sourced.set_aside, screened.set_aside],
        sources=["mine", "some", "odd"],
        spec=DuplicatesSpec(near_duplicates=None),
        control_tokens=[],
    )
    prompts = read_table(str(merged.prompts), PROMPTS).to_pylist()
    scores = {("mine", 0): 1.0, ("mine", 1): 0.0}
    sampled = rollouts(
        folder / "rollouts.parquet", prompts, lambda prompt: scores.get((prompt["source"], prompt["row"]), 0.5)
    )
    none = FlyteFile(str(write_table(folder / "none.parquet", SET_ASIDE.empty_table(), SET_ASIDE)))
    bounds = Bounds(max_mean_score=0.9, min_mean_score=0.1)
    graded = select_prompts(prompts=merged.prompts, rollouts=sampled, set_aside=none, bounds=bounds)
    spec = MixtureSpec(heldout=2, size=6)
    limits = Limits(limits=[{"source": "odd", "prompts": 10, "seed": 0}])
    mixed = mix_prompts(
        graded=graded.selected, spec=spec, set_aside=[merged.set_aside], limits=limits, read=[sourced.read]
    )
    for name, made in {
        "prompts": merged.prompts,
        "graded": graded.graded,
        "selected": graded.selected,
        "mixture": mixed.mixture,
        "heldout": mixed.heldout,
        "set_aside": mixed.set_aside,
    }.items():
        shutil.copy(str(made), folder / f"{name}.parquet")
    (folder / "summary.json").write_text("{}")
    return folder


def told(run, source, row):
    return list(format_lines(find_row(run, source, row)))


def test_a_row_is_named_with_its_file(run):
    assert told(run, "mine", 2)[1] == "from        row 2 of source mine, row 2 of a.jsonl"
    assert told(run, "mine", 5)[1] == "from        row 5 of source mine, row 1 of more/b.jsonl"
    [blank] = told(run, "mine", 3)
    assert blank == "left out    row 3 of mine, row 3 of a.jsonl: it is a blank line"


def test_a_row_that_limit_or_where_left_out_says_so(run):
    drawn = {row["row"] for row in read_table(run / "prompts.parquet", PROMPTS).to_pylist() if row["source"] == "some"}
    assert len(drawn) == 4
    for row in set(range(30)) - drawn:
        [line] = told(run, "some", row)
        assert line.endswith(": it is not among the 4 that `limit` drew of the 30 rows")
    [line] = told(run, "odd", 4)
    assert line.endswith(": `where` (level: 1) does not accept it")
    assert told(run, "odd", 5)[0].startswith("prompt ")


@pytest.mark.parametrize(
    ("source", "row", "said"),
    [
        ("some", 30, "source 'some' has no row 30; it has rows 0 to 29"),
        ("mine", 2000, "source 'mine' has no row 2000; it has rows 0 to 11"),
        ("mnie", 1, r"no source 'mnie' \(did you mean 'mine'\?\); it has mine, odd, some"),
    ],
)
def test_what_does_not_exist_is_an_error_with_what_does(run, source, row, said):
    with pytest.raises(TraceError, match=said):
        find_row(run, source, row)


def test_a_repeat_of_an_escaped_prompt_leads_to_the_prompt_that_is_kept(run):
    escaped = find_row(run, "mine", 9)
    assert "< |im_end|>" in escaped.prompt["messages"][0]["content"]
    assert find_row(run, "mine", 10) == escaped
    current = escaped.prompt["prompt_id"]
    [repeat] = [line for line in format_lines(escaped) if line.startswith("set aside")]
    assert repeat.endswith(f"by sourcing (duplicate): duplicate of row 9, kept: {current[:8]}")
    [earlier] = {
        row["prompt_id"]
        for row in read_table(run / "set_aside.parquet", SET_ASIDE).to_pylist()
        if row["kind"] == "duplicate" and row["source"] == "mine"
    }
    assert earlier != current
    assert find(run, earlier[:8]) == find(run, current[:8]) == escaped


def test_a_contaminated_row_is_told_with_both_texts(run):
    contaminated = told(run, "mine", 11)
    place = "row 11 of mine, row 7 of more/b.jsonl"
    assert contaminated[0].startswith(f"set aside   {place} by cleaning (contaminated): ")
    assert "kept" not in contaminated[0]
    assert contaminated[1:] == [f"            its text: {QUESTION} Explain.", f"            the question: {QUESTION}"]
    question = contaminated[0].rpartition("question: ")[2]
    assert list(format_lines(find(run, question))) == contaminated


def test_a_prompt_outside_the_bounds_is_told_which_one(run):
    easy, hard = (told(run, "mine", row)[-1] for row in (0, 1))
    assert easy.endswith("not kept: too easy, not below max_mean_score 0.9")
    assert hard.endswith("not kept: too hard, not above min_mean_score 0.1")


def test_a_prompt_that_the_mixture_has_no_place_for_is_told_why(run):
    every = {line for source in ("some", "odd") for row in range(30) for line in told(run, source, row)}
    said = sorted(line for line in every if line.startswith("mixture     not taken"))
    limit = r"mixture     not taken: source 'odd' has 1\d prompts, and its limit is 10"
    assert any(re.fullmatch(limit, line) for line in said)
    assert any("source 'odd' has 10 prompts, " in line and "the mixture has place for " in line for line in said)


def test_a_mixture_that_is_made_again_keeps_what_is_known_of_earlier_stages(run, tmp_path):
    again = mix_prompts(graded=FlyteFile(str(run / "selected.parquet")), spec=MixtureSpec(heldout=2, seed=5))
    for name in ("prompts", "graded", "selected"):
        shutil.copy(run / f"{name}.parquet", tmp_path / f"{name}.parquet")
    for name in ("mixture", "heldout"):
        shutil.copy(str(getattr(again, name)), tmp_path / f"{name}.parquet")
    write_with_earlier(str(again.set_aside), [run / "selected.parquet"], tmp_path / "set_aside.parquet")
    for source, row in (("mine", 11), ("mine", 10), ("mine", 3), ("some", 3), ("odd", 4)):
        known, still_known = (
            [line for line in told(folder, source, row) if not line.startswith(("difficulty", "mixture"))]
            for folder in (run, tmp_path)
        )
        assert known == still_known
    before = read_table(run / "set_aside.parquet", SET_ASIDE).to_pylist()
    after = read_table(tmp_path / "set_aside.parquet", SET_ASIDE).to_pylist()
    assert [row for row in after if row["stage"] != "mixing"] == [row for row in before if row["stage"] != "mixing"]


def test_the_command_prints_it(run):
    printed = CliRunner().invoke(rlvr, ["trace", "--source", "odd", "--row", "4", "--run", str(run)])
    assert (printed.exit_code, "does not accept it" in printed.output) == (0, True)
