"""Runs multi-turn episodes, in which a program (the environment) answers the policy between its turns.

    prompt ──► turn ──► environment: a tool's output, a user's next message ──► turn ──► ... ──► reward
               sampled  inserted                                                sampled

An environment is an async function or a class. A data file names it by its import path, or uses one that comes with
the project. It runs in a separate process next to the engines (`worker`, `sessions`), receives the prompt and a
function `generate` (`interface`), and returns when the episode ends. Tokens go in and tokens come out (`conversation`):
sampled tokens are never detokenised and tokenised again, and inserted tokens are masked out of the loss. `episode` runs
one episode from its prompt to a `Completion`, which every stage treats like a single response.
"""
