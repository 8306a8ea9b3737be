"""Shows the turns of an episode, of any table of rollouts, on pages, decks and terminals.

    row: turns, outcome, finish_reason ──► ShownEpisode ──► html     reports, pages of benchmarks, decks
                                                       └──► lines    terminals

What the policy sampled and what the environment inserted are told apart, and the end of the episode follows them. The
text of both is hostile: HTML is escaped by the template, and no line moves a terminal's cursor.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.excerpts.texts import MOST_CHARS, Excerpt, limit_of

FOLDER = Path(__file__).parent
"""The folder of `episode.css`, the rules of the style of `ShownEpisode.html`, for the loaders of pages' templates."""
MOST_TURNS = 30
"""Turns of an episode that are shown; of a longer one half of them from either end."""
TERMINAL_TURNS, TERMINAL_CHARS = 12, 2_400
"""Turns of an episode, and characters of them together, that a terminal shows."""
END_CHARS = 600
"""Characters of the words of an episode's end."""

Verdict = Literal["passed", "failed", "unjudged", "open"]
"""The end of an episode by its environment: it passed, it did not, it has no reward, or the verifier judges."""


@dataclass(frozen=True)
class ShownTurn:
    """A turn as it is shown.

    Attributes:
        role: role of who speaks, such as `assistant`.
        is_sampled: whether the policy sampled it; otherwise the environment inserted it.
        begins_anew: whether a conversation begins with it in place of the one before.
        text: what is said.
    """

    role: str
    is_sampled: bool
    begins_anew: bool
    text: Excerpt


@dataclass(frozen=True)
class ShownEpisode:
    """An episode as it is shown.

    Attributes:
        first: its turns after the prompt, or the first ones of many.
        last: the last ones of many.
        left_out: number of turns between the two.
        verdict: its end, by its environment.
        end: its end in words.
    """

    first: tuple[ShownTurn, ...]
    last: tuple[ShownTurn, ...]
    left_out: int
    verdict: Verdict
    end: Excerpt

    @classmethod
    def of_row(
        cls, row: Mapping[str, Any], most_turns: int = MOST_TURNS, most_chars: int = MOST_CHARS
    ) -> ShownEpisode | None:
        """Return the episode in a row of rollouts; None for a single response.

        Args:
            row: with `finish_reason`, and with `turns` and `outcome` where the table has these columns.
            most_turns: turns that are shown at most.
            most_chars: characters of these turns together, at most; the longest lose their middles.
        """
        turns, outcome = row.get("turns") or [], row.get("outcome")
        if not turns and outcome is None:
            return None
        verdict, words = _end(outcome)
        if row["finish_reason"] == "length":
            words = f"cut off at a limit; {words}"
        tail = most_turns // 2
        first, last = (
            (turns, []) if len(turns) <= most_turns else (turns[: most_turns - tail], turns[len(turns) - tail :])
        )
        limit = limit_of((len(turn["content"]) for turn in (*first, *last)), most_chars)
        return cls(
            _shown(first, limit),
            _shown(last, limit),
            len(turns) - len(first) - len(last),
            verdict,
            Excerpt.of(words, END_CHARS),
        )

    @property
    def turns(self) -> tuple[ShownTurn, ...]:
        """The turns that are shown."""
        return (*self.first, *self.last)

    def within(self, limit: int) -> ShownEpisode:
        """Return it with so much of the middles of turns left out that none has more than `limit` bytes in a page."""
        first, last = (
            tuple(replace(turn, text=turn.text.within(limit)) for turn in part) for part in (self.first, self.last)
        )
        return replace(self, first=first, last=last)

    @property
    def html(self) -> Markup:
        """The episode as HTML, escaped."""
        return Markup(_template().render(episode=self))  # noqa: S704 - escaped by the template

    def lines(self, indent: str = "") -> Iterator[str]:
        """Yield the episode as lines for a terminal: `▸` stands before what the policy sampled, `↺` where the
        conversation begins anew.
        """
        for turn in self.first:
            yield f"{indent}{_line(turn)}"
        if self.left_out:
            yield f"{indent}  […] {self.left_out:,} turns left out"
        for turn in self.last:
            yield f"{indent}{_line(turn)}"
        yield f"{indent}■ {self.end.line}"


def _shown(turns: Sequence[Mapping[str, Any]], limit: int) -> tuple[ShownTurn, ...]:
    anew = [turn["anew"] for turn in turns]
    begins = [now and not before for before, now in itertools.pairwise([False, *anew])]
    return tuple(
        ShownTurn(turn["role"], turn["sampled"], begin, Excerpt.of(turn["content"], limit))
        for turn, begin in zip(turns, begins, strict=True)
    )


def _line(turn: ShownTurn) -> str:
    role = Excerpt(turn.role).line
    mark = "▸" if turn.is_sampled else "↺" if turn.begins_anew else " "
    return f"{mark} {role}: {turn.text.line or '(empty)'}"


def _end(outcome: str | None) -> tuple[Verdict, str]:
    """Return the verdict in the column `outcome` (`tasks.generation.interface.EpisodeEnd`), and its words."""
    if outcome is None:
        return "open", "the verifier judges the last turn"
    end = json.loads(outcome)
    if end["reward"] is None:
        return "unjudged", f"no reward: {end['error'] or 'no reason is known'}"
    verdict: Verdict = "passed" if end["passed"] else "failed"
    return verdict, f"reward {end['reward']:g} from the environment, {'passed' if end['passed'] else 'not passed'}"


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = "{:,}".format
    return environment.get_template("episode.html.j2")
