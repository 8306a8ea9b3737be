"""Removes the thinking part of a response, for all verifiers."""

from __future__ import annotations


def strip_thinking(response: str) -> str:
    """Return the response without its thinking part, which no verifier scores.

    Everything up to the last `</think>` is thinking, whether or not a `<think>` opens it: chat templates often put the
    opening tag into the prompt. If thinking was opened and never closed, the result is the empty string.
    """
    _, closed, rest = response.rpartition("</think>")
    if not closed and response.lstrip().startswith("<think>"):
        return ""
    return rest.strip()
