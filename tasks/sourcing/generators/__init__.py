"""Prompts made here: instruction following with checkable constraints, and tiny Python functions with assertions.

Generators are pure: the same arguments give the same rows, on every machine.
"""


class TooFewPromptsError(ValueError):
    """More distinct prompts were asked for than the generator can make."""
