"""Shows the turns of an episode from any table of rollouts on pages, decks and terminals.

    row: turns, outcome, finish_reason ──► ShownEpisode ──► html     reports, decks
                                                       └──► lines    terminals

Sampled turns and inserted turns look different, and the end of the episode follows them. All texts are untrusted: the
template escapes HTML, and lines contain no control characters for terminals.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.excerpts.texts import MOST_CHARS, Excerpt, compute_limit

FOLDER = Path(__file__).parent
"""The folder of `episode.css`, the style sheet of `ShownEpisode.html`, for the template loaders of pages."""
MOST_TURNS = 30
"""Maximum number of turns to show. For longer episodes, half of them are from the beginning and half from the end."""
TERMINAL_TURNS, TERMINAL_CHARS = 12, 2_400
"""Maximum number of turns of an episode, and of their characters together, on a terminal."""
END_CHARS = 600
"""Maximum number of characters in the description of an episode's end."""

Verdict = Literal["passed", "failed", "unjudged", "open"]
"""The verdict of the environment on an episode: passed, failed, no reward, or left to the verifier."""


@dataclass(frozen=True)
class ShownTurn:
    """A displayed turn.

    Attributes:
        role: role of the speaker, such as `assistant`.
        is_sampled: whether the policy sampled the turn. Otherwise the environment inserted it.
        begins_anew: whether the conversation is restarted with this turn.
        text: text of the turn.
    """

    role: str
    is_sampled: bool
    begins_anew: bool
    text: Excerpt


@dataclass(frozen=True)
class ShownEpisode:
    """A displayed episode.

    Attributes:
        first: its turns after the prompt, or the first ones if there are many.
        last: the last turns if there are many.
        left_out: number of turns that are left out between the two.
        verdict: the verdict of its environment.
        end: description of its end.
    """

    first: tuple[ShownTurn, ...]
    last: tuple[ShownTurn, ...]
    left_out: int
    verdict: Verdict
    end: Excerpt

    @classmethod
    def from_row(
        cls, row: Mapping[str, Any], most_turns: int = MOST_TURNS, most_chars: int = MOST_CHARS
    ) -> ShownEpisode | None:
        """Return the episode in a row of rollouts, or None for a single response.

        Args:
            row: a row with `finish_reason`, and with `turns` and `outcome` if the table has these columns.
            most_turns: maximum number of turns to show.
            most_chars: maximum number of characters of these turns together. The longest are cut in the middle.
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
        limit = compute_limit((len(turn["content"]) for turn in (*first, *last)), most_chars)
        return cls(
            _make_turns(first, limit),
            _make_turns(last, limit),
            len(turns) - len(first) - len(last),
            verdict,
            Excerpt.from_text(words, END_CHARS),
        )

    @property
    def turns(self) -> tuple[ShownTurn, ...]:
        """The displayed turns."""
        return (*self.first, *self.last)

    @property
    def html(self) -> Markup:
        """Return the episode as HTML, escaped."""
        return Markup(_load_template().render(episode=self))  # noqa: S704 - escaped by the template

    def lines(self, indent: str = "") -> Iterator[str]:
        """Yield the episode as lines for a terminal: `▸` marks sampled turns, and `↺` restarted conversations."""
        for turn in self.first:
            yield f"{indent}{_format_turn(turn)}"
        if self.left_out:
            yield f"{indent}  […] {self.left_out:,} turns left out"
        for turn in self.last:
            yield f"{indent}{_format_turn(turn)}"
        yield f"{indent}■ {self.end.line}"


def _make_turns(turns: Sequence[Mapping[str, Any]], limit: int) -> tuple[ShownTurn, ...]:
    anew = [turn["anew"] for turn in turns]
    begins = [now and not before for before, now in itertools.pairwise([False, *anew])]
    return tuple(
        ShownTurn(turn["role"], turn["sampled"], begin, Excerpt.from_text(turn["content"], limit))
        for turn, begin in zip(turns, begins, strict=True)
    )


def _format_turn(turn: ShownTurn) -> str:
    role = Excerpt(turn.role).line
    mark = "▸" if turn.is_sampled else "↺" if turn.begins_anew else " "
    return f"{mark} {role}: {turn.text.line or '(empty)'}"


def _end(outcome: str | None) -> tuple[Verdict, str]:
    """Return the verdict in the column `outcome` (`tasks.generation.interface.EpisodeEnd`), and a description."""
    if outcome is None:
        return "open", "the verifier judges the last turn"
    end = json.loads(outcome)
    if end["reward"] is None:
        return "unjudged", f"no reward: {end['error'] or 'no reason is known'}"
    verdict: Verdict = "passed" if end["passed"] else "failed"
    return verdict, f"reward {end['reward']:g} from the environment, {'passed' if end['passed'] else 'not passed'}"


@cache
def _load_template() -> Any:
    jinja = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters["count"] = "{:,}".format
    return jinja.get_template("episode.html.j2")
