def in_tags(completions, **columns):
    """Return 1 for a completion that puts something into answer tags, else 0."""
    return [float("<answer>" in completion[0]["content"]) for completion in completions]
