"""Long texts lose their middles, and their sizes are those of what a page holds."""

import pytest

from tasks.excerpts.texts import MOST_CHARS, Excerpt, compute_limit, count_bytes, make_printable


def test_a_long_text_keeps_both_ends():
    text = "a" * MOST_CHARS + "b" * MOST_CHARS
    excerpt = Excerpt.from_text(text)
    assert (excerpt.head, excerpt.tail) == ("a" * (MOST_CHARS // 2), "b" * (MOST_CHARS // 2))
    assert excerpt.left_out == MOST_CHARS
    assert Excerpt.from_text(text[:MOST_CHARS]) == Excerpt(text[:MOST_CHARS])


@pytest.mark.parametrize("text", ["x" * 500, "<" * 500, "数" * 500, "x" * 400 + "<&数'" * 9_000, "\n", ""])
@pytest.mark.parametrize("limit", [0, 1, 7, 100, 10_000])
def test_within_a_limit_nothing_but_the_middle_is_lost(text, limit):
    whole = Excerpt.from_text(text)
    short = whole.within(limit)
    assert short.size <= limit
    assert len(short.head) + short.left_out + len(short.tail) == len(text)
    assert text.startswith(short.head)
    assert text.endswith(short.tail)
    assert whole.size > limit or short == whole


def test_sizes_are_those_of_escaped_bytes():
    assert [count_bytes(text) for text in ("ab", "<", "数", "")] == [2, 4, 3, 0]


@pytest.mark.parametrize(
    ("sizes", "total", "limit"),
    [
        ([10, 20, 30], 60, 30),  # all fit
        ([10, 20, 30], 50, 20),  # 10 + 20 + 20
        ([10, 100, 100], 60, 25),  # what the short one leaves goes to the others
        ([10, 10], 5, 2),
        ([10, 10], -5, 0),
        ([], 100, 0),
    ],
)
def test_the_limit_is_the_largest_that_fits(sizes, total, limit):
    assert compute_limit(sizes, total) == limit
    assert sum(min(one, limit) for one in sizes) <= max(total, 0)


def test_text_on_a_terminal_moves_no_cursor():
    assert make_printable("a\x1b[2J\x9bb\x07\x08\x7f\u202ec\r\nd 数") == "a[2Jbc\nd 数"
    assert Excerpt.from_text("a\x1b]0;\x07 b\r\n\tc").line == "a]0; b c"
    assert Excerpt.from_text("a" * 10 + "b" * 10, 4).line == "aa […] bb"
