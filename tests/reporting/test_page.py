"""The report: every section from a full run, a sentence from an empty one, and hostile text made harmless."""

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tasks.excerpts.texts import shorten
from tasks.reporting import sections
from tasks.reporting.page import ReportInputs, render
from tasks.reporting.page_templates import load_templates
from tasks.reporting.reward_means import compute_reward_means
from tasks.reporting.sample_responses import choose_samples
from tasks.tables.parquet import TableError, build_table
from tasks.tables.schemas import ROLLOUTS, SET_ASIDE, set_aside_row
from tests.excerpts.shown import as_episodes
from tests.reporting.synthetic_run import THRESHOLD, evaluation, metrics, report_inputs

VOID = {"meta", "br", "link", "img", "input", "hr"}
SECTIONS = {"evaluation", "options", "sources", "difficulty", "mixture", "training", "ledger", "samples", "lineage"}


class Page(HTMLParser):
    """Collects tags, ids and texts, and checks that every element that opens closes in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def inputs() -> ReportInputs:
    return report_inputs()


@pytest.fixture(scope="module")
def page(inputs) -> str:
    return render(inputs)


def emptied(inputs: ReportInputs) -> ReportInputs:
    tables = ("set_aside", "graded", "mixture", "heldout", "ledger", "evaluation", "before", "after")
    empty = {name: getattr(inputs, name).slice(0, 0) for name in tables}
    return dataclasses.replace(
        inputs, **empty, metrics=[], summaries=[], lineage={}, spec_yaml="", training_yaml="", title="Nothing"
    )


@pytest.mark.long
def test_page_is_well_formed_with_unique_ids(page):
    parsed = Page(page)
    assert len(parsed.ids) == len(set(parsed.ids))
    for reference in re.findall(r'(?:href="|url\()#([^")]+)', page):
        assert reference in parsed.ids


def sections_of(page):
    return set(re.findall(r'<section id="(\w+)"', page))


def test_page_has_every_section(page):
    assert sections_of(page) == SECTIONS


@pytest.mark.parametrize(
    "said",
    [
        '23.4%</span> → <span class="to">44.5%',
        "+21.1 points (+12.0 to +30.0)",
        "p &lt; 0.001",
        "SmolLM2-135M-Instruct",
        "10 min 37 s",
        "exact duplicate of an earlier row",
        "kept: below 0.625",
        '-9.3 tokens <span class="interval">(-12.0 to -6.6)</span>',
        "name: products",
        "learning_rate: 1.0e-5",
        "the learner took a step with it",
        "Engine-learner mismatch",
        "tokens/s",
        "mixture 0, training 17",
        "registry.example/team/rlvr-generation:v1",
        "prefers-color-scheme:dark",
    ],
)
def test_page_says(page, said):
    assert said in page


def test_page_fetches_nothing(page):
    addresses = set(re.findall(r"https?://[^\"' )]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, "XML names only"
    assert not {"script", "link", "img", "iframe", "object"} & set(Page(page).tags)
    assert "@import" not in page


@pytest.mark.long
def test_equal_inputs_give_equal_bytes(page):
    assert render(report_inputs()) == page


def test_charts_have_a_title_and_a_description(page):
    charts = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(charts) >= 20
    for chart in charts:
        assert re.search(r"<title id=[^>]+>[^<]+</title><desc id=[^>]+>[^<]+</desc>", chart)


@pytest.mark.long
def test_hostile_text_is_escaped_everywhere(inputs):
    hostile = "<script>alert('$x$')</script>"
    rollouts = [row | {"response": hostile, "policy": hostile} for row in inputs.after.to_pylist()]
    set_aside = [set_aside_row("sourcing", "unusable", hostile, 1, hostile, hostile * 20)]
    metric = {"step": 1, "reward": 0.5, f"reward/{hostile}": 0.5}
    page = render(
        dataclasses.replace(
            inputs,
            title=hostile,
            spec_yaml=hostile,
            after=build_table(rollouts, ROLLOUTS, "after"),
            set_aside=build_table(set_aside, SET_ASIDE, "set_aside"),
            metrics=[metric],
            lineage={hostile: hostile},
        )
    )
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    Page(page)


@pytest.mark.parametrize(
    "text", ["half \ud83d", "a\0b", "\u202e\ufffe", "{{ 7 * 7 }}", "</textarea></pre>", "x" * 10_000_000]
)
def test_any_text_of_a_model_makes_a_page_that_can_be_written(inputs, text):
    rollouts = [row | {"response": text, "detail": text} for row in inputs.after.to_pylist()[:4]]
    page = render(dataclasses.replace(inputs, after=build_table(rollouts, ROLLOUTS, "after")))
    assert len(page.encode()) < 10_000_000
    Page(page)


@pytest.mark.long
def test_a_sample_has_the_reason_of_the_verifier_and_the_page_names_the_commands(inputs):
    rollouts = [row | {"detail": f"reason <{row['sample']}>"} for row in inputs.after.to_pylist()]
    page = render(dataclasses.replace(inputs, after=build_table(rollouts, ROLLOUTS, "after")))
    shown = [int(number) for number in re.findall(r"verifier: reason &lt;(\d+)&gt;", page)]
    samples = page[page.index('id="samples"') :]
    assert shown == [int(number) for number in re.findall(r"<b>after</b>[^·]*· shown: sample (\d+)", samples)] != []
    assert "<code>rlvr view RUN</code>" in samples
    assert "<code>rlvr show RUN --worst 5</code>" in samples


def test_the_menu_and_the_headings_have_the_same_words(inputs):
    page = render(inputs)
    menu = dict(re.findall(r'<a href="#(\w+)">([^<]+)</a>', page[page.index("<nav") : page.index("</nav>")]))
    sections = dict(re.findall(r'<section id="(\w+)">\s*<h2>([^<]+)</h2>', page))
    assert {name: menu[name] for name in ("options", "evaluation", "sources", "mixture")}.items() <= sections.items()


def test_charts_fit_a_window_of_390_pixels(inputs):
    widths = [int(width) for width in re.findall(r"min-width:(\d+)px;max-width", render(inputs))]
    assert len(widths) > 4
    assert max(widths) <= 343  # 390 without the margins of the page and a scroll bar


@pytest.mark.long
def test_unjudged_completions_are_counted_and_not_shown(inputs):
    rollouts = inputs.after.to_pylist()
    rollouts[0] |= {
        "score": None,
        "passed": None,
        "rewards": None,
        "error": "judge unreachable",
        "response": "never judged",
    }
    page = render(dataclasses.replace(inputs, after=build_table(rollouts, ROLLOUTS, "after")))
    assert "0 completions before, 1 after" in page
    assert "never judged" not in page


def test_a_run_without_anything_still_gives_a_page(inputs):
    page = render(emptied(inputs))
    Page(page)
    for sentence in (
        "No held-out prompt was evaluated",
        "No stage left a summary",
        "No row was set aside",
        "No optimizer step was taken",
        "Outcome of every sampled group: nothing to show",
        "No lineage was recorded",
    ):
        assert sentence in page


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": [{"step": 1}]},
        {"metrics": [{"step": 1, "reward": float("nan"), "entropy": None}]},
        {"metrics": [{"reward": 0.25}]},
        {"evaluation": evaluation(("math",))},
        *(
            pytest.param(changes, marks=pytest.mark.complete)
            for changes in (
                {"metrics": metrics(120, np.random.default_rng(0))},
                {"evaluation": evaluation(("all",))},
                {"evaluation": evaluation().slice(0, 2)},
                {"max_mean_score": None},
            )
        ),
    ],
)
def test_partial_runs_give_a_page(inputs, changes):
    page = render(dataclasses.replace(inputs, **changes))
    Page(page)
    assert sections_of(page) == SECTIONS


def test_a_run_without_a_difficulty_filter_drops_nothing_as_too_easy(inputs):
    names = ("pass_rate", "mean_score", "num_rollouts", "mean_tokens")

    def unmeasured(table):
        for name in names:
            field = table.schema.field(name)
            nulls = pa.nulls(table.num_rows, field.type)
            table = table.set_column(table.schema.get_field_index(name), field, nulls)
        return table

    tables = {name: unmeasured(getattr(inputs, name)) for name in ("graded", "mixture", "heldout")}
    page = render(dataclasses.replace(inputs, max_mean_score=None, **tables))
    assert "No difficulty was measured." in page
    total = sections.count_funnels(inputs.set_aside, tables["graded"], tables["mixture"], tables["heldout"], None)[-1]
    assert (total.too_easy, total.too_hard, total.selected) == (0, 0, inputs.graded.num_rows)


def test_both_figures_and_every_reward_are_on_the_page_by_name(inputs):
    metrics = [{"step": 1, "rewards/math/mean": 0.125, "rewards/rewards.in_tags/mean": 0.75, "rewards/math/std": 0.3}]
    page = render(dataclasses.replace(inputs, metrics=metrics))
    assert "Held-out pass rate" in page
    assert "Held-out mean score, which counts partial scores and every reward: 30.1% → 49.8%" in page
    rows = {row["name"]: row for row in compute_reward_means(inputs.summaries, inputs.before, inputs.after, metrics)}
    assert rows.keys() == {"math", "rewards.in_tags"}
    assert rows["rewards.in_tags"]["after"] == 1.0
    assert (rows["math"]["first_step"], rows["math"]["last_step"], rows["math"]["difficulty"]) == (0.125, 0.125, None)
    assert '<th scope="row">rewards.in_tags</th>' in page
    assert "Rewards by name" in page


def test_a_domain_that_is_trained_on_and_never_held_out_is_the_reason_for_rewards_without_a_value(inputs):
    metrics = [{"step": 1, "rewards/math/mean": 0.125}]
    domains = set(inputs.mixture.column("domain").to_pylist())
    assert domains == set(inputs.heldout.column("domain").to_pylist())
    assert "is held out, so that rewards" not in render(dataclasses.replace(inputs, metrics=metrics))
    left = sorted(domains)[0]
    heldout = inputs.heldout.filter(pc.not_equal(inputs.heldout.column("domain"), left))
    page = render(dataclasses.replace(inputs, metrics=metrics, heldout=heldout))
    assert f"No prompt of {left} is held out, so that rewards" in page


def test_a_table_of_another_schema_is_named(inputs):
    with pytest.raises(TableError, match="report input 'ledger'"):
        render(dataclasses.replace(inputs, ledger=inputs.set_aside))


def test_funnels_account_for_every_row(inputs):
    *sources, total = sections.count_funnels(
        inputs.set_aside, inputs.graded, inputs.mixture, inputs.heldout, inputs.max_mean_score
    )
    assert total.rows == inputs.graded.num_rows + inputs.set_aside.num_rows
    assert (total.train, total.heldout) == (inputs.mixture.num_rows, inputs.heldout.num_rows)
    for funnel in (*sources, total):
        assert funnel.rows == funnel.set_aside + funnel.too_easy + funnel.selected
        assert funnel.selected == funnel.train + funnel.heldout + funnel.left_over
        assert funnel.never_passed <= funnel.selected
    easy = sum(rate >= THRESHOLD for rate in inputs.graded.column("mean_score").to_pylist())
    assert total.too_easy == easy


def test_rejections_show_the_most_frequent_reason_with_its_first_row(inputs):
    first = sections.set_aside_kinds(inputs.set_aside)[0]
    assert (first["count"], first["row"], first["value"]) == (2, 3, "What is 2 times 4?")


def test_samples_are_chosen_by_rule(inputs):
    chosen = choose_samples(inputs.before, inputs.after, inputs.heldout)
    gains = [sample["gain"] for sample in chosen]
    assert [sample["verdict"] for sample in chosen[:3]] == ["improved"] * 3
    assert {sample["prompt"]["domain"] for sample in chosen[:2]} == {"math", "precise_if"}
    assert all(gain == 0 for gain, sample in zip(gains, chosen, strict=True) if sample["verdict"] == "unchanged")
    worse = [sample for sample in chosen if sample["verdict"] == "got worse"]
    assert len(worse) <= 1
    assert all(sample["gain"] < 0 for sample in worse)
    shuffle = np.random.default_rng(1).permutation
    again = choose_samples(
        *(table.take(shuffle(table.num_rows)) for table in (inputs.before, inputs.after, inputs.heldout))
    )
    assert again == chosen


def test_samples_show_the_turns_of_episodes(inputs):
    template = load_templates().get_template("samples.html.j2")
    chosen = choose_samples(inputs.before, as_episodes(inputs.after, "50", "75"), inputs.heldout)
    shown = template.render(samples=chosen)
    assert shown.count('<ol class="episode">') == shown.count("<pre>Higher.</pre>") == len(chosen) > 0
    assert shown.count("<pre>The answer is ") == len(chosen)  # single responses of the initial checkpoint


def test_long_completions_are_cut_with_a_note():
    assert shorten("x" * 2_000, 1_500) == "x" * 1_500 + " … (500 more characters)"
    assert shorten("short", 1_500) == "short"


def test_of_pass_at_k_the_page_shows_powers_of_two_and_the_largest():
    sizes = {"all": 32, "code": 6}
    names = ["pass_rate", *(f"pass@{k}" for k in range(2, 33)), "rewards/pass@3"]
    rows = [
        {"benchmark": benchmark, "metric": metric}
        for metric in names
        for benchmark, most in sizes.items()
        if not metric.startswith("pass@") or int(metric.removeprefix("pass@")) <= most
    ]
    shown = {name: [row["metric"] for row in sections.select_shown(rows) if row["benchmark"] == name] for name in sizes}
    assert shown["all"] == ["pass_rate", "pass@2", "pass@4", "pass@8", "pass@16", "pass@32", "rewards/pass@3"]
    assert shown["code"] == ["pass_rate", "pass@2", "pass@4", "pass@6", "rewards/pass@3"]


@pytest.mark.long
def test_the_page_says_that_the_table_has_every_k(inputs, page):
    three = pa.Table.from_pylist(
        [row | {"metric": "pass@3"} for row in inputs.evaluation.to_pylist() if row["metric"] == "pass@4"],
        schema=inputs.evaluation.schema,
    )
    fuller = render(dataclasses.replace(inputs, evaluation=pa.concat_tables([inputs.evaluation, three])))
    assert "has every k" in fuller
    assert "has every k" not in page
    assert "pass@3" not in fuller


def test_a_policy_that_is_often_truncated_is_a_warning(inputs):
    text = render(inputs)
    assert "policy &#39;after&#39;: responses are cut off at max_tokens (held out 8.0%, " in text


@pytest.mark.parametrize(("share", "warned"), [(0.5, True), (0.99, False)])
def test_a_source_that_lost_most_of_its_rows_is_a_warning(inputs, share, warned):
    loss = {"stage": "merging", "source": "sums", "rows": 190, "lost": 180, "reasons": {"…% like a prompt": 180}}
    first, *others = inputs.summaries
    stages = [dataclasses.replace(first, facts={"losses": [loss]}), *others]
    text = render(dataclasses.replace(inputs, summaries=stages, warn_if_lost=share))
    assert ("source &#39;sums&#39;: merging dropped 180 of 190 rows" in text) == warned


@pytest.mark.parametrize(("dtype", "repeats"), [("bfloat16", False), ("float32", True), (None, True)])
def test_responses_in_16_bits_are_not_repeated_and_the_page_says_what_to_set(inputs, dtype, repeats):
    first, *others = inputs.summaries
    page = render(dataclasses.replace(inputs, summaries=[dataclasses.replace(first, facts={"dtype": dtype}), *others]))
    assert ("Sampled in bfloat16" not in page) == repeats
    assert ("engine.dtype: float32" not in page) == repeats


def test_a_page_links_the_files_beside_it_and_the_page_of_a_cluster_none(inputs, page):
    files = ["data.yaml", "evaluation.yaml", "mixture.parquet", "evaluation.parquet"]
    linked = re.findall('href="([^#"]+)"', render(dataclasses.replace(inputs, files=files)))
    assert linked == ["../index.html", "data.yaml", "evaluation.yaml", "mixture.parquet"]
    assert re.findall('href="([^#"]+)"', page) == []


def test_stage_cards_and_rows_lead_to_their_sections(page):
    cards = re.findall('<b><a href="#([a-z]+)">([a-z ]+)</a></b>', page)
    assert cards == [
        ("sources", "sourcing"),
        ("difficulty", "difficulty"),
        ("mixture", "mixing"),
        ("training", "training"),
        ("evaluation", "evaluation"),
    ]
    assert page.count('<a href="#set-aside">') == 3, "two sources, and the total"
    assert '<td><a href="#source-1">products</a></td>' in page


def test_the_name_of_a_reward_keeps_its_underscores(inputs):
    rows = [row | {"metric": "rewards/mine.short_and_number"} for row in inputs.evaluation.to_pylist()[:3]]
    table = pa.concat_tables([inputs.evaluation, pa.Table.from_pylist(rows, schema=inputs.evaluation.schema)])
    page = render(dataclasses.replace(inputs, evaluation=table))
    assert "rewards/mine.short_and_number" in page
    assert "pass rate" in page
