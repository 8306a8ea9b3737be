"""This project's generators of prompts: checkable constraints, tiny Python functions with assertions, and open tasks.

Generators are pure: the same arguments give the same rows, on every machine.
"""


class TooFewPromptsError(ValueError):
    """Raised where a generator cannot make as many distinct prompts as its size asks for."""
