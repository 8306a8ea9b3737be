"""A mixture that holds every prompt out is refused before a source is read, where the sources' sizes are known."""

import pytest

from tasks.config.loading import SpecError
from tasks.inputs.files import DataFile
from tasks.inputs.heldout import check_heldout
from tasks.sourcing.loaders import PEEK, Row


def source(name, **options):
    given = {"domain": "math", "verifier": "math", "loader": {"kind": "jsonl", "path": f"{name}.jsonl"}}
    return {"name": name, **given, **options}


def check(mixture, rows, *sources):
    data = DataFile.model_validate({"name": "mine", "sources": list(sources), "difficulty": None, "mixture": mixture})
    heads = {spec.name: [Row(number, {}) for number in range(rows)] for spec in data.sources}
    check_heldout(data, heads)


@pytest.mark.parametrize(
    ("mixture", "rows", "options"),
    [
        ({"heldout": 8}, 8, {}),
        ({"heldout": 1, "domains": {"math": {"heldout": 9}}}, 8, {}),
        ({"heldout": 8}, PEEK, {"limit": 8}),
        ({"heldout": 8}, PEEK, {"loader": {"kind": "reasoning_gym", "dataset": "products", "size": 8}}),
    ],
)
def test_no_prompt_left_is_refused(mixture, rows, options):
    with pytest.raises(SpecError, match=r"mine: mixture: no prompt is left to train on: all are held out.* 8 prompts"):
        check(mixture, rows, source("one", **options))


@pytest.mark.parametrize(
    ("mixture", "rows", "options"),
    [
        ({"heldout": 7}, 8, {}),
        ({"heldout": 0.9}, 8, {}),
        ({"heldout": PEEK}, PEEK, {}),  # more rows may follow the first ones
        ({"heldout": 8}, 8, {"where": {"kind": "a"}}),  # rows of another kind may come first
    ],
)
def test_a_prompt_that_may_be_left_is_not(mixture, rows, options):
    check(mixture, rows, source("one", **options))


def test_the_sizes_of_a_domains_sources_add_up_and_one_domain_is_enough():
    check({"heldout": 8}, 8, source("one"), source("two"))
    code = source("two", domain="code", verifier="code")
    check({"heldout": 8, "domains": {"code": {"heldout": 0}}}, 8, source("one"), code)
