"""A mistake in a YAML file is shown with its line, and a caret below its column."""

import pytest

from tasks.config.yaml_text import SHOWN, YamlError, parse_yaml


def place(text):
    with pytest.raises(YamlError) as refused:
        parse_yaml(text)
    sentence, line, caret = str(refused.value).split("\n")
    return sentence, line, caret.index("^")


@pytest.mark.parametrize(
    ("text", "said", "marked"),
    [
        ("steps: 2\nschedule: constant: 3\n", "line 2, column 19: mapping values are not allowed here", ": 3"),
        ("steps: 2\nseed: 1\nsteps: 3\n", "line 3, column 1: the key 'steps' occurs twice", "steps: 3"),
        ("a:\n  - 1\n b: 2\n", "line 3, column 2: expected <block end>", "b: 2"),
        ("a: 1\nb:\tc:\n", "line 2, column 3: found character '\\t'", " c:"),
    ],
)
def test_the_caret_is_below_the_mistake(text, said, marked):
    sentence, line, column = place(text)
    assert sentence.startswith(f"not valid YAML: {said}")
    assert line[column:] == marked


def test_an_open_list_is_shown_at_the_end_of_its_line():
    sentence, line, column = place("a: 1\nb: [1, 2\n\n")
    assert sentence.startswith("not valid YAML: line 2, column 9:")
    assert line[:column].strip() == "b: [1, 2"


def test_of_a_long_line_the_place_of_the_mistake_is_shown():
    _, line, column = place("x" * 1000 + ": here: no" + "y" * 1000)
    assert len(line) <= SHOWN + 2
    assert line[column - 5 : column + 4] == " here: no"[:9]


@pytest.mark.parametrize("text", ["[", "}", "a: \x00b", "- &x 1\n- *y", "!!python/object:os.system a", "\ta", "{a: 1"])
def test_every_error_of_the_parser_is_one_of_yaml(text):
    with pytest.raises(YamlError, match=r"^not valid YAML: \S"):
        parse_yaml(text)
