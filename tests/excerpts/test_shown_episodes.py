"""Episodes as people see them: who said what, how it ended, bounded and harmless."""

import re

import pytest

from tasks.excerpts.episodes import MOST_TURNS, TERMINAL_CHARS, TERMINAL_TURNS, ShownEpisode
from tasks.excerpts.texts import MOST_CHARS
from tasks.generation.interface import Completion, EpisodeEnd
from tasks.rollouts.episodes import episode_columns
from tasks.verifiers.scores import FunctionFailure
from tests.excerpts.shown import HOSTILE, columns, game, outcome, turn


def shown(*guesses, finish_reason="stop", end=None, **given):
    return ShownEpisode.from_row({**columns(*guesses, end=end), "finish_reason": finish_reason}, **given)


@pytest.mark.parametrize("row", [{}, {"turns": None, "outcome": None}, {"turns": []}])
def test_a_single_response_is_no_episode(row):
    assert ShownEpisode.from_row({"response": "50", "finish_reason": "stop", **row}) is None


def test_what_was_sampled_and_what_was_inserted_are_told_apart():
    episode = shown("50", "75", end=outcome())
    assert list(episode.lines("  ")) == [
        "  ▸ assistant: 50",
        "    user: Higher.",
        "  ▸ assistant: 75",
        "  ■ reward 1 from the environment, passed",
    ]
    items = re.findall(r'<li class="(\w+)"><b>(\w+)</b> <small>(\w+)</small><pre>([^<]*)</pre>', episode.html)
    assert items == [
        ("sampled", "assistant", "sampled", "50"),
        ("inserted", "user", "inserted", "Higher."),
        ("sampled", "assistant", "sampled", "75"),
    ]
    assert '<li class="end passed">reward 1 from the environment, passed</li>' in episode.html


def test_a_conversation_that_begins_anew_is_marked_once():
    turns = [*game("50"), turn("system", "s", anew=True), turn("user", "u", anew=True), *game("75")]
    episode = ShownEpisode.from_row({"turns": turns, "outcome": None, "finish_reason": "stop"})
    assert list(episode.lines())[:4] == ["▸ assistant: 50", "↺ system: s", "  user: u", "▸ assistant: 75"]
    assert episode.html.count("begins the conversation anew") == 1


@pytest.mark.parametrize(
    ("end", "finish_reason", "verdict", "words"),
    [
        (None, "stop", "open", "the verifier judges the last turn"),
        (None, "length", "open", "cut off at a limit; the verifier judges the last turn"),
        (outcome(0.25, passed=False), "stop", "failed", "reward 0.25 from the environment, not passed"),
        (outcome(1.0), "length", "passed", "cut off at a limit; reward 1 from the environment, passed"),
        (
            outcome(None, passed=False, error="it raised ValueError"),
            "stop",
            "unjudged",
            "no reward: it raised ValueError",
        ),
    ],
)
def test_the_end_is_a_reward_a_failure_or_the_verifiers(end, finish_reason, verdict, words):
    episode = shown("50", finish_reason=finish_reason, end=end)
    assert (episode.verdict, episode.end.head) == (verdict, words)


def test_a_failure_before_the_first_turn_is_shown_as_tables_hold_it():
    end = EpisodeEnd(None, error="environment a.b raised KeyError", failure=FunctionFailure("a.b", "raised KeyError"))
    row = episode_columns(Completion("", [], [], "stop", [], end=end))
    episode = ShownEpisode.from_row({**row, "finish_reason": "stop"})
    assert episode.turns == ()
    assert list(episode.lines()) == ["■ no reward: environment a.b raised KeyError"]


def test_hostile_turns_are_harmless():
    row = {"turns": [turn(HOSTILE, HOSTILE)], "outcome": outcome(None, error=HOSTILE), "finish_reason": "stop"}
    episode = ShownEpisode.from_row(row)
    assert all(line.isprintable() for line in episode.lines())
    assert len(list(episode.lines())) == 2
    assert "<script>" not in episode.html
    assert episode.html.count("&lt;script&gt;") == 3
    assert (episode.html.count("</pre>"), episode.html.count("</li>")) == (1, 2)


def test_of_many_turns_both_ends_are_shown():
    episode = shown(*(str(number) for number in range(100)))
    assert len(episode.turns) == MOST_TURNS
    assert episode.left_out == 199 - MOST_TURNS
    assert (episode.turns[0].text.head, episode.turns[-1].text.head) == ("0", "99")
    assert f"{199 - MOST_TURNS} turns left out" in episode.html
    lines = list(shown(*"abcdefghijkl", most_turns=TERMINAL_TURNS).lines())
    assert len(lines) == TERMINAL_TURNS + 2
    assert lines[TERMINAL_TURNS // 2] == f"  […] {23 - TERMINAL_TURNS} turns left out"
    assert shown("a", "b", "c", most_turns=3).left_out == 2
    assert [turn.text.head for turn in shown("a", "b", "c", most_turns=3).turns] == ["a", "Higher.", "c"]


def test_long_turns_lose_their_middles_and_short_ones_nothing():
    episode = shown("a" * 50_000, "short", "b" * 50_000)
    assert sum(len(turn.text.head) + len(turn.text.tail) for turn in episode.turns) <= MOST_CHARS
    assert [bool(turn.text.left_out) for turn in episode.turns] == [True, False, False, False, True]
    assert "characters left out" in episode.html
    lines = list(shown("a" * 50_000, most_chars=TERMINAL_CHARS).lines())
    assert max(map(len, lines)) < TERMINAL_CHARS + 40


def test_empty_turns_say_so():
    row = {"turns": game("", ""), "outcome": None, "finish_reason": "stop"}
    assert next(ShownEpisode.from_row(row).lines()) == "▸ assistant: (empty)"
    assert ShownEpisode.from_row(row).html.count("<pre>(empty)</pre>") == 2
