"""Formats a capacity plan as text for a terminal."""

from __future__ import annotations

from pathlib import Path

from tasks.planning.plan import Plan, Prompts
from tasks.sizing.gpu_memory_fit import PlanError, describe_fitting_placements
from tasks.sizing.pod_sizes import compute_head_needs
from tasks.sizing.roofline import GB, GPUS, Architecture
from tasks.training.cluster.pods import ClusterConfig, build_controller_pod

PUBLISHED = {
    "olmo3_think_32b": "about 1,170 s a step: 21 days on 224 GPUs for steps 750 to 2,300 (Ai2 on Olmo 3.1); 8 nodes "
    "learn, 20 generate, and the learner waits for 75% of its time (paper)",
    "olmo3_think_7b": "no days; the recipe has as many steps as its launch script allows, not as the run took",
}
"""Published numbers of a recipe's run, for comparison with a plan, by the recipe's name.

The sources are OlmoRL's section on compute resources, and Ai2's announcement of Olmo 3.1, which was trained for 21 more
days on 224 GPUs.
"""

CARDS = ("L4", "L40S", "H100")
"""GPUs with 24, 48 and 80 GB. The table contains the placements that fit on them."""


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def figure(number: float) -> str:
    """Format a number with two significant digits below ten, and as a whole number otherwise."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _format_duration(days: float) -> str:
    """Format days in the largest unit that gives at least one."""
    hours = 24 * days
    if days >= 1:
        return f"{days:,.1f} days"
    return f"{figure(hours)} hours" if hours >= 1 else f"{figure(60 * hours)} minutes"


def _format_price(plan: Plan, cluster: ClusterConfig) -> str:
    """Return the price of the GPU hours as the end of a line, or an empty text without `cluster.price_per_gpu_hour`."""
    price = cluster.price_per_gpu_hour
    return "" if price is None else f", {price * plan.gpu_hours:,.2f} at {price:g} an hour"


def _describe_controller(plan: Plan, cluster: ClusterConfig) -> list[tuple[str, str]]:
    """Return the rows on the controller's pod: its memory if it is a head, and the time available for scoring."""
    pod = build_controller_pod(plan.config, cluster)
    cores = pod.cpu or 1
    workers = plan.config.rewards.workers or cores
    seconds = workers / plan.judgements
    judging = (
        f"{figure(plan.judgements)} responses/s, {figure(seconds)} s of a core each with rewards.workers {workers}"
    )
    if plan.nodes == 1:
        return [("judging", judging)]
    needs = compute_head_needs(plan.config, cores)
    parts = ", ".join(f"{name} {gib:.1f}" for name, gib in needs.items() if gib >= 0.05)
    return [
        ("head", f"{sum(needs.values()):.1f} of {pod.memory_gib} GiB ({parts})"),
        ("judging", f"{judging}, on the head"),
    ]


def _describe_turns(plan: Plan) -> list[tuple[str, str]]:
    """Return the row on the moves between turns, if there is time sharing."""
    if not plan.config.takes_turns:
        return []
    return [
        (
            "time sharing",
            f"{plan.moved / GB:.1f} GB of the rank's states, and the engine's weights, to main memory and back: "
            f"{figure(plan.turn_seconds)} s of each turn",
        )
    ]


def _describe_placements(plan: Plan, gpu: str, model: Architecture) -> list[tuple[str, str]]:
    """Return a row for each size of GPU, with the placements that fit, if every rank can have an engine."""
    config = plan.config
    if config.placement == "apart" or not config.as_many_engines_as_ranks:
        return []
    by_memory = {GPUS[name].memory: name for name in (*CARDS, gpu)}
    return [
        (f"on {memory / GB:.0f} GB", f"{describe_fitting_placements(config, model, GPUS[name])} ({name})")
        for memory, name in sorted(by_memory.items())
    ]


def _describe_assumptions(plan: Plan, prompts: Prompts, cluster: ClusterConfig) -> list[tuple[str, str]]:
    """Return the rows on what a plan assumes, and on what it does not contain."""
    mean = prompts.mean(plan.config.sampling.max_tokens)
    rows = [
        (
            "assumed",
            f"{prompts.zero_variance:.0%} of the groups have no gradient (--zero-variance), and a response has "
            f"{mean:,.0f} tokens on average (--mean-tokens)",
        ),
        (
            "upper bound",
            "of the speed: judges, code tests, restarts and stragglers take no time. Difficulty, evaluation, the model "
            "check, and the loading of engines come in addition",
        ),
    ]
    if cluster.gpus_per_node:
        return rows
    return [("without GPUs", "as cluster.gpus_per_node is 0; what follows is computed as if it was on GPUs"), *rows]


def _describe_weights(plan: Plan) -> list[tuple[str, str]]:
    """Return the row on the way of the weights to engines, and on the source of its rates; none with an adapter."""
    if plan.config.lora:
        return []
    rates = plan.machines.weights
    origin = (
        f"measured on {rates.measured_on}"
        if rates.measured_on
        else "assumed: `make gpu-check JSON=file` measures both, --measured FILE reads them"
    )
    return [
        (
            "weights",
            f"the learner writes them for {figure(plan.weights / rates.write)} s, at {rates.write / GB:.1f} GB/s, and "
            f"an engine pauses for {figure(plan.engine.update_seconds)} s, at {rates.load / GB:.1f} GB/s for each GPU "
            f"({origin})",
        )
    ]


def _describe_measured(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows on which of the plan's inputs were measured on a GPU, and which were not."""
    rates, turns, weights = plan.machines.weights, plan.config.takes_turns, not plan.config.lora
    measured = ["memory of a rank (within 15%, on an H200)"]
    others = ["MFU and MBU (--mfu, --mbu)", "seconds a layer of a decoding step"]
    if weights:
        (measured if rates.measured_on else others).append("rates of weights")
    if turns:
        measured.append("states that leave a GPU (on an H200)")
        others.append("states that return to it")
    if plan.config.placement == "shared":
        others.append("how much engine and rank slow each other down")
    return [("measured", ", ".join(measured)), ("not measured", ", ".join(others))]


def _describe_placement(plan: Plan) -> str:
    config = plan.config
    return (
        f"{_count(config.learner.ranks, 'learner rank')} and {_count(config.actors.count, 'engine')}: "
        f"{figure(plan.simulated.step_seconds)} s a step, {_format_duration(plan.days)}, {figure(plan.gpu_hours)} "
        "GPU hours"
    )


def compare_placements(own: Plan | PlanError, best: Plan) -> list[tuple[str, str]]:
    """Return two rows: the recipe's own placement, or why it does not work, and the best one of a number of nodes."""
    written = str(own) if isinstance(own, PlanError) else f"{_count(own.nodes, 'node')}, {_describe_placement(own)}"
    return [("the recipe's own", written), (f"best of {best.nodes} nodes", _describe_placement(best))]


def format_plan(
    recipe: str,
    gpu: str,
    model: Architecture,
    plan: Plan,
    cluster: ClusterConfig,
    prompts: Prompts,
    own: Plan | PlanError | None = None,
) -> str:
    """Return the plan as lines of text, next to published numbers of the recipe's run.

    Args:
        recipe: name or path of the recipe.
        gpu: name of the GPU, a key of `roofline.GPUS`.
        model: shape of the policy.
        plan: the plan that was computed for them.
        cluster: the recipe's machines, for the pod that scores responses.
        prompts: the expected responses.
        own: the plan of the recipe's own placement if `plan` has another one, or the reason why there is none.
    """
    config, simulated, memory = plan.config, plan.simulated, plan.learner
    engine = config.actors.engine
    parts = ", ".join(f"{name} {size / GB:.1f}" for name, size in memory.uses.items() if size >= 0.05 * GB)
    beside = f", and {memory.offloaded / GB:.1f} GB of main memory" if memory.offloaded else ""
    step = plan.engine.step_seconds + plan.engine.sequence_seconds * plan.sequences
    window = config.groups_per_step * max(config.async_steps, 1) * config.sampling.samples
    rows = [
        *_describe_assumptions(plan, prompts, cluster),
        *_describe_measured(plan),
        *(compare_placements(own, plan) if own is not None else []),
        (
            "model",
            f"{model.parameters / 1e9:.1f} billion parameters, "
            + (f"{model.active_parameters / 1e9:.1f} of which a token passes, " if model.experts else "")
            + f"{model.compute_kv_cache_bytes(1) / 1024:.0f} KiB of cache a token",
        ),
        (
            "machines",
            f"{_count(plan.nodes, 'node')} of {gpu}: {_count(config.learner.ranks, 'learner rank')}, "
            + (
                f"with an engine {'in turns with' if config.takes_turns else 'beside'} each"
                if config.shares_gpus
                else f"{_count(config.actors.count, 'engine')} of {_count(engine.gpus, 'GPU')} each"
            ),
        ),
        ("learner rank", f"{memory.total / GB:.1f} of {plan.learner_room / GB:.0f} GB ({parts}){beside}"),
        (
            "engine",
            f"{plan.weights / GB:.0f} GB of weights, {plan.kv_room / GB:.0f} GB of cache: {plan.sequences} sequences "
            f"at a time, {1000 * step:.0f} ms a step",
        ),
        *_describe_weights(plan),
        *_describe_turns(plan),
        ("in the window", f"{window:,} responses, {window / config.actors.count:,.0f} an engine"),
        (
            "tokens/s",
            f"{simulated.tokens_per_second:,.0f} generated, {simulated.trained_tokens_per_second:,.0f} trained; the "
            f"learner could take {plan.learner_rate:,.0f}",
        ),
        ("idle", f"learner {simulated.learner_idle:.0%}, actors {simulated.actors_idle:.0%}"),
        *_describe_controller(plan, cluster),
        ("staleness", f"{simulated.staleness:.1f} versions, {simulated.staleness_max:.0f} at most"),
        (
            "time",
            f"{figure(simulated.step_seconds)} s a step, {_format_duration(plan.days)} on {_count(plan.gpus, 'GPU')} "
            "for "
            f"{_count(config.steps, 'step')}, {figure(plan.gpu_hours)} GPU hours{_format_price(plan, cluster)}",
        ),
        *([("published", PUBLISHED[name])] if (name := Path(recipe).stem) in PUBLISHED else []),
        ("bottleneck", plan.bottleneck),
        *_describe_placements(plan, gpu, model),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        [f"plan for {recipe} (computed, not measured)", *(f"  {name:<{width}}  {text}" for name, text in rows)]
    )
