"""All pages in Chromium: windows of 390 and 1280 pixels, light and dark, the keyboard, links, and nothing fetched."""

import dataclasses
import io
import json
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from tasks.charts import decks
from tasks.commands.diff import diff
from tasks.reporting import experiment, page
from tasks.reporting.index import write_index
from tasks.tables.parquet import build_table, write_table
from tasks.tables.schemas import EVALUATION, MIXTURE
from tests import browser
from tests.mixing.test_mix import SIZES, run
from tests.reporting.synthetic_run import metrics, report_inputs
from tests.reporting.test_experiment_page import COMPARED, COST, VARIANTS, figure

pytestmark = pytest.mark.long  # a browser

REPORT, INDEX, EXPERIMENT, DIFF, DECK = PAGES = (
    "20261101-000000-aaaaaaaa/report.html",
    "index.html",
    "experiments/20261102-000000-cccccccc/experiment.html",
    "diff.html",
    "deck.html",
)
RUN, OTHER = "20261101-000000-aaaaaaaa", "20261102-000000-bbbbbbbb"
LONG = "a_name_that_somebody_gave_and_that_has_no_end_" * 3


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The folder of all outputs, with one page of each kind: two runs of different data, a part, an experiment."""
    folder = tmp_path_factory.mktemp("outputs")
    inputs = report_inputs(per_source=20)
    tables = [f"{name}.parquet" for name in ("prompts", "mixture", "heldout", "selected")]
    files = [*(f"{name}.yaml" for name in ("data", "training", "evaluation")), *tables]
    for number, name in enumerate((RUN, OTHER)):
        (folder / name).mkdir()
        (folder / name / "report.html").write_text(page.render(dataclasses.replace(inputs, files=files)))
        for file in files:
            (folder / name / file).touch()
        sources = [{"name": f"{LONG}{number}", "loader": {"path": f"/{LONG}/{LONG}"}}]
        options = {"data": {"name": LONG, "sources": sources}, "training": {"steps": number}}
        gain = {"before": 0.2, "after": 0.3, "gain": 0.1, "gain_low": 0.01, "gain_high": 0.2, "seconds": 60.0}
        recipe = {"model": "SmolLM2-135M-Instruct", "recipe": "grpo", "overridden": [f"{LONG} = 1"]}
        summary = {"title": "mine", "options": options, "stages": {"model": {"seconds": 1.0, "cached": True}}}
        (folder / name / "summary.json").write_text(json.dumps(gain | recipe | summary))
    part = folder / "20261103-000000-mix_prompts-7"
    part.mkdir()
    (part / "summary.json").write_text(json.dumps({"title": LONG, "part": "mix_prompts", "seconds": 0.4}))
    _write_experiment(folder / EXPERIMENT)
    mixtures = [write_table(folder / f"{n}.parquet", run(SIZES, size=n).train, MIXTURE) for n in (20, 40)]
    CliRunner().invoke(diff, [*map(str, mixtures), "--page", str(folder / DIFF)], catch_exceptions=False)
    deck = decks.difficulty(inputs.graded, 3, "below 0.6", 0.625) + decks.mixture(inputs.mixture, 3, [{LONG: 1}])
    (folder / DECK).write_text(f'<!DOCTYPE html><meta name="viewport" content="width=device-width">{deck}')
    write_index(folder)
    return folder


def _write_experiment(path):
    path.parent.mkdir(parents=True)
    rates = [figure("slow", 0.5), figure("fast", 0.7), figure("fast", 0.2, baseline="slow")]
    rewards = [figure(name, 0.25, metric="rewards/tidy") for name in VARIANTS]
    runs = {name: [metrics(5, np.random.default_rng(1))] for name in VARIANTS}
    reports = {"slow": [f"../../{RUN}/report.html"], "fast": [f"../../{OTHER}/report.html"]}
    table = build_table([*rates, *rewards], EVALUATION, "made up")
    summaries = {name: [{"cost": COST}] for name in VARIANTS}
    compared = [COMPARED, {**COMPARED, "benchmark": "all"}]
    path.write_text(experiment.render("rates", VARIANTS, runs, table, compared, summaries, reports))


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as started:
        yield started


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_outside_of_the_window(chromium, outputs, name, width):
    with browser.opened(chromium, outputs / name, width=width) as shown:
        for unfolded in (False, True):
            shown.evaluate(browser.FOLD, unfolded)
            assert shown.evaluate(browser.BEYOND) == []
            assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_tables_of_ordinary_names_are_whole(chromium, outputs, tmp_path):
    run = tmp_path / RUN
    run.mkdir()
    figures = {"before": 0.158, "after": 0.358, "gain": 0.2, "gain_low": 0.092, "gain_high": 0.283, "seconds": 1644.0}
    about = {"title": "quickstart", "model": "SmolLM2-135M-Instruct", "recipe": "quickstart", "overridden": ["a = 1"]}
    (run / "summary.json").write_text(json.dumps(figures | about | {"stages": {}}))
    (run / "view").mkdir()
    (run / "view" / "index.html").touch()
    for path, table in ((outputs / REPORT, "#evaluation .scroll"), (write_index(tmp_path), ".scroll")):
        with browser.opened(chromium, path, width=1200) as shown:
            cut = f"[...document.querySelectorAll('{table}')].filter(box => box.scrollWidth > box.clientWidth)"
            assert shown.evaluate(f"{cut}.length") == 0


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_and_pictures_an_alternative(chromium, outputs, name, scheme):
    with browser.opened(chromium, outputs / name, scheme=scheme) as shown:
        shown.evaluate(browser.FOLD, True)
        assert shown.evaluate(browser.FAINT) == []
        assert shown.evaluate(browser.NAMELESS) == []


@pytest.mark.parametrize("name", PAGES[:-1])
def test_a_page_is_dark_if_the_system_is(chromium, outputs, name):
    with browser.opened(chromium, outputs / name, scheme="dark") as shown:
        corner = shown.screenshot(clip={"x": 0, "y": 0, "width": 1, "height": 1})
    assert max(Image.open(io.BytesIO(corner)).convert("RGB").getpixel((0, 0))) < 64


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(chromium, outputs, name):
    with browser.opened(chromium, outputs / name) as shown:
        links, ids = shown.evaluate(browser.LINKS), shown.evaluate(browser.IDS)
    own = outputs / name
    for link in map(urlsplit, links):
        path = unquote(link.path)
        assert link.scheme == "file", link
        assert (outputs / path).is_file(), path
        assert not link.fragment or (path == str(own.resolve()) and unquote(link.fragment) in ids), link.fragment


@pytest.mark.parametrize("name", [REPORT, INDEX])
def test_the_keyboard_reaches_and_opens_what_is_folded(chromium, outputs, name):
    with browser.opened(chromium, outputs / name) as shown:
        folded = shown.evaluate("document.querySelectorAll('details').length")
        opened = 0
        for _ in range(400):
            shown.keyboard.press("Tab")
            if shown.evaluate(browser.AT_FOLDED):
                shown.keyboard.press("Enter")
                opened += 1
            if opened == folded:
                break
        assert opened == folded > 0
        assert shown.evaluate("[...document.querySelectorAll('details')].every(one => one.open)")


def test_a_run_is_one_line_and_leads_to_its_report_and_back(chromium, outputs):
    with browser.opened(chromium, outputs / INDEX) as shown:
        heights = shown.evaluate("[...document.querySelectorAll('.runs tbody tr')].map(row => row.offsetHeight)")
        assert len(heights) == 3
        assert max(heights) < 60
        shown.click("text=bbbbbbbb")
        assert shown.url.endswith(f"{OTHER}/report.html")
        shown.click("text=All runs")
        assert shown.url.endswith("index.html")
        shown.click("text=cccccccc")
        shown.click("text=report")
        assert shown.url.endswith(f"{RUN}/report.html")


def test_a_card_leads_to_its_section_and_the_top_is_at_hand_there(chromium, outputs):
    with browser.opened(chromium, outputs / REPORT) as shown:
        shown.click(".strip a:text('training')")
        assert shown.url.endswith("#training")
        shown.wait_for_function("document.querySelector('nav').getBoundingClientRect().top === 0")
        shown.click("nav a:text('Top')")
        assert shown.url.endswith("#top")
