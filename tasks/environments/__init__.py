"""Environments: episodes of several turns, in which a program answers the policy between its turns.

    prompt ──► turn ──► environment: a tool's output, a user's next message ──► turn ──► ... ──► reward
               sampled  inserted                                                sampled

An environment is an async function, or a class, that a data file names by its import path, or one that comes with the
project. It runs in a process of its own beside the engines (`worker`, `sessions`), is handed the prompt and a function
`generate` (`interface`), and returns when the episode ends. Tokens go in and tokens come out (`conversation`): what the
policy sampled is never detokenised and tokenised again, and what the environment inserts carries no loss. `episode`
runs one episode from its prompt to a `Completion`, which every stage treats as it treats a single response.
"""
