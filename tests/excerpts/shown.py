"""Rows of rollouts that are episodes, made up."""

import json

HOSTILE = "<script>alert(1)</script>\x1b[2J\x9b\r</pre></li> 数"


def turn(role, content, *, sampled=False, anew=False):
    return {"role": role, "content": content, "sampled": sampled, "anew": anew, "token_ids": [1, 2]}


def game(*guesses, answer="Higher."):
    """The turns of an episode with these turns of the policy, and the same answer between any two."""
    turns = []
    for guess in guesses:
        turns += [turn("user", answer)] * bool(turns) + [turn("assistant", guess, sampled=True)]
    return turns


def outcome(reward=1.0, passed=True, error=None):
    return json.dumps({"reward": reward, "passed": passed, "error": error, "failure": None})


def columns(*guesses, end=None, **given):
    """The columns of an episode in a table of rollouts."""
    return {"turns": game(*guesses), "outcome": end, "response": guesses[-1] if guesses else "", **given}


def as_episodes(table, *guesses, end=None):
    """A table of rollouts all of which are the same episode, of two turns of the policy where none are given."""
    rows = [row | columns(*guesses or ("50", "75"), end=end or outcome()) for row in table.to_pylist()]
    return table.from_pylist(rows, table.schema)
