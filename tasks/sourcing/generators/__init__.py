"""Contains this project's prompt generators: verifiable constraints, tiny Python functions with assertions, open tasks.

Generators are pure: the same arguments give the same rows, on every machine.
"""


class TooFewPromptsError(ValueError):
    """Raised if a generator cannot produce as many distinct prompts as its size requires."""
