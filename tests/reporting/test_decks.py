"""What decks show beside charts: figures, tables, samples of every source, and no markup of a model's."""

from tasks import charts
from tasks.charts import page, render_prompt_samples, render_rates, render_rollout_samples, render_table
from tests.excerpts.shown import HOSTILE, as_episodes
from tests.reporting.synthetic_run import SOURCES, report_inputs

INPUTS = report_inputs(per_source=6)


def test_samples_are_of_every_source_with_response_verdict_and_reason():
    shown = render_rollout_samples(INPUTS.graded, INPUTS.before)
    for source in SOURCES:
        assert f"<h3>{source}</h3>" in shown
    assert "page-sample passed" in shown
    assert "page-sample failed" in shown
    assert "score 0, " in shown
    assert "stopped by itself" in shown


def test_a_response_that_could_not_be_judged_says_why():
    rows = INPUTS.before.slice(0, 1).to_pylist()[0] | {"score": None, "error": "the judge did not answer"}
    shown = render_rollout_samples(INPUTS.graded, INPUTS.before.from_pylist([rows], INPUTS.before.schema))
    assert "page-sample unjudged" in shown
    assert "could not be scored: the judge did not answer" in shown


def test_text_of_others_is_text():
    shown = render_rollout_samples(INPUTS.graded, INPUTS.before)
    assert "<b>sure</b>" not in shown
    assert "&amp; &lt;b&gt;sure&lt;/b&gt;.\nSays base." in shown  # and its line breaks stay
    hostile = "<script>alert(1)</script>"
    assert "<script>" not in page({hostile: hostile}, render_table([{hostile: hostile}], hostile))


def test_prompts_are_shown_with_their_ground_truth_a_few_of_each_source():
    shown = render_prompt_samples(INPUTS.graded, per_source=2)
    assert shown.count("<b>prompt</b>") == 2 * len(SOURCES)
    assert "<b>ground truth</b>" in shown


def test_tables_have_numbers_to_the_right_and_words_for_names():
    shown = render_table([{"mean_score": 0.12345, "source": "a"}, {"mean_score": 1, "source": None}], "Title")
    assert shown.startswith("<h3>Title</h3>")
    assert '<th scope="col" class="n">mean score</th><th scope="col">source</th>' in shown
    assert '<td class="n">0.123</td>' in shown
    assert render_table([]) == ""


def test_scores_so_far_are_by_domain():
    shown = render_rates({"math": [1.0, 0.0], "code": []}, unjudged=3)
    assert '<td>math</td><td class="n">2</td><td class="n">0.5</td>' in shown
    assert "3 could not be scored" in shown


def test_equal_rows_give_equal_bytes():
    assert charts.render_rollout_samples(INPUTS.graded, INPUTS.before) == render_rollout_samples(
        INPUTS.graded, INPUTS.before
    )


def test_an_episode_is_shown_turn_by_turn():
    single, several = (
        render_rollout_samples(INPUTS.graded, table) for table in (INPUTS.before, as_episodes(INPUTS.before))
    )
    boxes = single.count("<pre>The answer is ")
    assert boxes == several.count('<ol class="episode">') == several.count("reward 1 from the environment, passed") > 0
    assert several.count("<pre>Higher.</pre>") == boxes
    assert "episode" not in single
    assert ".episode .inserted" in page({}, several)
    assert "<script>" not in render_rollout_samples(INPUTS.graded, as_episodes(INPUTS.before, HOSTILE))
