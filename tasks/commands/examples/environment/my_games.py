from tasks.environments.interface import EpisodeOver, Outcome


async def count_up(prompt, generate, *, target):
    """Each turn must be the number after the environment's."""
    right, turn = 0, await generate()
    try:
        while turn.text.strip() == str(right + 1):
            right += 1
            if right >= target or turn.last:
                break
            turn = await generate(f"{right + 1}")
            right += 1
    except EpisodeOver:  # a limit: what was counted so far is worth something
        pass
    return Outcome(right / target, passed=right >= target)
