"""Implements the command `rlvr`: one module for each subcommand, which is imported when the subcommand is called.

Modules import flytekit, pandas and torch inside their functions, so that help and completion need none of them.
"""
