"""Fixtures of all tests that play episodes in real processes."""

from tests.environments.test_episode import play, shared, tokenizer  # noqa: F401
