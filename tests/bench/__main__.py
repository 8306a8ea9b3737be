"""Runs every benchmark, each in a process of its own so that none inherits another's threads or memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tasks.machine import cpu_variables
from tasks.verifiers import VerifiersConfig
from tests.bench.episodes import figures as of_episodes
from tests.bench.figures import Figure, publish
from tests.bench.relay import COUNTS
from tests.bench.rungs import PUBLISHED
from tests.bench.simulation import SHARES
from tests.bench.verifiers_chat import ALL
from tests.training.hosts import missing

FOLDER = Path("outputs/bench")
STAGES = ("fork", "load", "tests", "end")
ENVIRONMENT = os.environ | {"PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1"}


class MeasureError(Exception):
    """A benchmark that did not end well."""


def measure(module: str, what: str, environment: Mapping[str, str] = {}) -> dict[str, float]:
    """The figures that `python -m tests.bench.<module> <what>` prints as its last line."""
    print(f"measuring {module}: {what} ...", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{module}", what, str(FOLDER)],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MeasureError(f"{module} {what} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def timed(*command: str) -> float:
    """Wall seconds of a command that succeeds."""
    print(f"timing {' '.join(command)} ...", flush=True)
    started = time.perf_counter()
    subprocess.run(command, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def verifiers() -> list[Figure]:
    """Judgements/s of each verifier on one core, latency and memory, the pool's own cost, and the cost of hangs."""
    math, constraints = measure("verifiers", "mathematics"), measure("verifiers", "instructions")
    code, pool, hanging = (measure("verifiers", what) for what in ("code", "pool", "hanging"))
    source = "published" if constraints["published"] else "made"
    figures = [
        Figure.at_least(
            "math", math["ours_per_second"], "judgements/s/core", "math-verify alone", math["bare_per_second"], 0.8
        ),
        *_latency("math", math),
        Figure.above(f"precise_if, {source} responses", constraints["checks_per_second"], "checks/s/core", 2000),
        *_latency("precise_if", constraints),
    ]
    python = code.pop("python/per_second")
    for kind in sorted({name.partition("/")[0] for name in code}):
        found = {name.partition("/")[2]: value for name, value in code.items() if name.startswith(kind)}
        alone = found["per_second"]
        figures.append(Figure.above(f"code, {kind}", alone, "programs/s/core", 40))
        figures.append(
            Figure.stated(f"code, {kind}, pool", found["pool_per_second"], "programs/s/core", "without a pool", alone)
        )
        figures.append(
            Figure.stated(
                f"code, {kind}, groups of 8", found["grouped_per_second"], "programs/s/core", "bare Python", python
            )
        )
        figures += _latency(f"code, {kind}", found)
        whole = sum(found[f"{stage}_ms"] for stage in STAGES)
        figures += [
            Figure.stated(f"code, {kind}: {stage}", found[f"{stage}_ms"], "ms", "all stages", whole) for stage in STAGES
        ]
    figures.append(
        Figure.stated("pool, cheapest call", pool["per_second"], "calls/s", "without a pool", pool["alone_per_second"])
    )
    figures += _latency("pool, cheapest call", pool)
    name = "5% of 1,000 responses hang"
    return [
        *figures,
        Figure.none(f"{name}: verdicts that differ, all cores busy", hanging["differing"], "of 5,000", "idle"),
        Figure.none(f"{name}: errors", hanging["errors"], "of 10,000", "none hangs"),
        Figure.above(f"{name}: rate of the others, all cores busy", hanging["loaded_rate"], "of that without", 0.6),
        Figure.stated(f"{name}: rate of the others, idle", hanging["idle_rate"], "of that without", "none hangs", 1.0),
    ]


def chat() -> list[Figure]:
    """How well talk to the grader is found, by all rules and by each, and what it costs."""
    found = measure("verifiers_chat", "rules")
    rules = sorted({name.partition("/")[0] for name in found if "/" in name}, key=lambda name: (name != ALL, name))
    figures = []
    for rule in rules:
        precision, recall = found[f"{rule}/precision"], found[f"{rule}/recall"]
        figures.append(Figure.above(f"talk to the grader, {rule}: precision", precision, "of what is found", 0.95))
        if rule == ALL:
            figures.append(Figure.above(f"talk to the grader, {rule}: recall", recall, "of the hostile", 0.95))
        else:
            share = found[f"{ALL}/recall"]
            figures.append(Figure.stated(f"talk to the grader, {rule}: recall", recall, "of the hostile", ALL, share))
    return [*figures, Figure.below("talk to the grader, 20,000 characters", found["long_ms"], "ms", 100)]


def data() -> list[Figure]:
    """CPU seconds and memory of the data stages, compared with polars and `datasets`, at two numbers of rows."""
    fewer, many = (measure("data", f"stages:{count}") for count in (200_000, 1_000_000))
    peers = {peer: measure("data", f"{peer}:200000") for peer in ("datasets", "polars")}
    name = "data, 200k rows: prompts without exact duplicates"
    seconds = {peer: found["start_seconds"] + found["exact_merging_seconds"] for peer, found in peers.items()}
    both = fewer["start_seconds"] + fewer["sourcing_seconds"] + fewer["exact_merging_seconds"]
    memory = max(fewer["sourcing_mib"], fewer["exact_merging_mib"])
    ratio = 15 / 9.7  # of the first measurement: 15 CPU seconds are the aim, and `datasets` took 9.7
    return [
        Figure.at_most(name, both, "CPU s", "datasets", seconds["datasets"], ratio),
        Figure.stated(name, both, "CPU s", "polars", seconds["polars"]),
        *(Figure.stated(name, memory, "MiB", peer, found["exact_merging_mib"]) for peer, found in peers.items()),
        *(
            figure
            for stage in ("sourcing", "exact_merging", "screening", "merging", "check_of_the_mixture", "mixing")
            for figure in _of_data_stage(stage, fewer, many, peers)
        ),
    ]


def _of_data_stage(
    stage: str, fewer: Mapping[str, float], many: Mapping[str, float], peers: Mapping[str, Mapping[str, float]]
) -> list[Figure]:
    few, most = (found[f"{stage}_seconds"] for found in (fewer, many))
    name = stage.replace("_", " ")
    return [
        *(
            Figure.stated(f"data, 200k rows: {name}", few, "CPU s", f"{peer}, whole work", found["whole_seconds"])
            for peer, found in peers.items()
        ),
        Figure.at_most(f"data, 1M rows: {name}", most, "CPU s", "5 x 200k", 5 * few, 1.3),
        Figure.below(f"data, 1M rows: {name}", many[f"{stage}_mib"], "MiB", 4096),
    ]


def simulation() -> list[Figure]:
    """OlmoRL's ladder, and what active sampling saves, with the real controller and fleet in virtual time."""
    found, sampled = measure("simulation", "ladder"), measure("simulation", "sampling")
    rungs = list(PUBLISHED)
    last, wide = found[rungs[-1]], "synchronous, wide"
    published = {rung: PUBLISHED[rung] / PUBLISHED[rungs[0]] for rung in rungs}
    window = int(found[f"{wide}/window"])
    return [
        Figure.at_least(
            f"ladder, total, windows of {window}", last, "trained tokens/s", wide, found[wide], published[rungs[-1]]
        ),
        *(
            Figure.stated(
                f"ladder, {rung}, window of {int(found[f'{rung}/window'])}",
                found[rung] / found[wide],
                f"x {wide}",
                "Olmo 3",
                published[rung],
            )
            for rung in rungs
        ),
        Figure.stated("ladder, the learner's idle share on the last rung", found["idle"], "", "Olmo 3, 32B", 0.75),
        *(
            Figure.at_most(
                f"active sampling, {share:.0%} teach nothing",
                sampled[f"active {share}"],
                "generated / trained",
                "DAPO's rounds of 3",
                sampled[f"dynamic {share}"],
                1.0,
            )
            for share in SHARES
        ),
        *(
            Figure.at_most(
                f"active sampling, {share:.0%} teach nothing",
                sampled[f"active {share}"],
                "generated / trained",
                "the bound",
                1 / (1 - share),
                1.1,
            )
            for share in SHARES
        ),
    ]


def controller() -> list[Figure]:
    """CPU time that the controller takes for a completion, and whether it grows with what is in flight."""
    few, more, most = (1_000, 10_000, 100_000)
    found = {count: measure("controller", str(count))["milliseconds"] for count in (few, more, most)}
    return [
        Figure.below(f"controller, {most:,} in flight", found[most], "ms/completion", 1),
        *(
            Figure.stated(
                f"controller, {count:,} in flight", found[count], "ms/completion", f"{few:,} in flight", found[few]
            )
            for count in (more, most)
        ),
    ]


def ladder() -> list[Figure]:
    """OlmoRL's ladder with real engines of a tiny model, each rung beside its simulation."""
    found = measure("ladder", "rungs")
    rungs = [name.removesuffix("/trained") for name in found if name.endswith("/trained")]
    first, last = "synchronous", rungs[-1]
    steps = sorted((int(name.removeprefix("curve/")), value) for name, value in found.items() if "curve/" in name)
    (_, one), (most, many) = steps[0], steps[-1]
    rates = {rung: found[f"{rung}/trained"] for rung in rungs}
    return [
        Figure.stated(f"real engines: a decoding step of {most} sequences", 1000 * many, "ms", "of one", 1000 * one),
        Figure.at_least("real engines: ladder, total", rates[last], "trained tokens/s", first, rates[first], 2),
        *(
            Figure.stated(f"real engines: {rung}", rates[rung], "trained tokens/s", first, rates[first])
            for rung in rungs
        ),
        *(
            Figure.stated(f"simulated: {rung}", found[f"{rung}/simulated"], "trained tokens/s", "measured", rates[rung])
            for rung in rungs
        ),
        Figure.stated("real engines: the learner's idle share, last rung", found[f"{last}/idle"], "", "paper", 0.75),
    ]


def _latency(name: str, found: Mapping[str, float]) -> list[Figure]:
    return [
        Figure.stated(f"{name}: p99", found["p99_ms"], "ms", "p50", found["p50_ms"]),
        Figure.stated(f"{name}: memory", found["rss_mib"], "MiB", "a worker's limit", VerifiersConfig().memory_mib),
    ]


def training() -> list[Figure]:
    """A step of ours beside TRL's, the learner alone, and what engine and learner do where nothing else takes time."""
    ours, trl = measure("training", "ours"), measure("training", "trl")
    learner, padded = (
        measure("learner", "compare", cpu_variables.LEARNER),
        measure("learner", "trl", cpu_variables.LEARNER),
    )
    stage, bare = measure("generation", "stage"), measure("generation", "bare")
    trained, generated, alone = "trained tokens/s", "output tokens/s", learner["shared"]
    engine = bare["tokens_per_second"]
    by_turns = 1 / (1 / learner["bare"] + 1 / engine)  # each takes all cores
    together = "bare engine, forward and backward, by turns"
    return [
        Figure.at_least("training step", ours["trained"], trained, "TRL GRPOTrainer", trl["trained"], 4),
        Figure.stated("training step", ours["trained"], trained, together, by_turns),
        Figure.stated("learner alone", alone, trained, "a prompt per response", learner["apart"]),
        Figure.at_least("learner alone", alone, trained, "forward and backward", learner["bare"], 0.9),
        Figure.at_least("learner alone", alone, trained, "TRL, padded", padded["trained"], 1.5),
        Figure.at_most("objective", learner["objective"], "steps", "a learner step", 1.0, 0.03),
        Figure.at_least("difficulty stage", stage["tokens_per_second"], generated, "bare engine", engine, 0.95),
        Figure.stated("actor while training", ours["generated"], generated, "bare engine, all cores", engine),
    ]


def episodes() -> list[Figure]:
    """Episodes of several turns, beside single completions of as many sampled tokens."""
    return of_episodes(measure("episodes", "nothing"), measure("episodes", "turns"))


def evaluation() -> list[Figure]:
    """Tokens/s of the evaluation on several benchmarks, beside the same requests to vLLM alone."""
    stage, bare = measure("evaluation", "stage"), measure("evaluation", "bare")
    requests = f"evaluation, {stage['requests']:.0f} requests of three benchmarks"
    rates = (stage["tokens_per_second"], bare["tokens_per_second"])
    return [Figure.at_least(requests, rates[0], "output tokens/s", "vLLM's LLM.generate", rates[1], 0.95)]


def intervals() -> list[Figure]:
    """Coverage, width and agreement of intervals and p-values, in the worst of many cells of known truth."""
    figures = []
    for name, part in (("pass rates", "cells"), ("pass@k, majority@k", "blocks")):
        found = measure("intervals", part)
        cells = f"intervals of {name}, {found['cells']:.0f} cells"
        figures += [
            Figure.above(f"{cells}: lowest coverage of rates", found["rate"], "of draws", 0.93),
            Figure.above(f"{cells}: lowest coverage of gains", found["gain"], "of draws", 0.93),
            Figure.below(f"{cells}: p-value and interval disagree", found["disagree"], "of draws", 0.05),
            Figure.below(f"{cells}: p < 0.05 without a gain", found["false"], "of draws", 0.07),
        ]
        if name == "pass rates":
            figures += [
                Figure.at_most(f"{cells}: {what} at 0.5", found[f"{what}_width"], "widths", "plain t", 1.0, 1.2)
                for what in ("rate", "gain")
            ]
    power = measure("intervals", "power")
    return [
        *figures,
        Figure.stated("smallest detectable gain by plan: lowest power", power["lowest"], "of draws", "planned", 0.8),
        Figure.stated("smallest detectable gain by plan: highest power", power["highest"], "of draws", "planned", 0.8),
    ]


def report() -> list[Figure]:
    """Seconds and megabytes of the comparison and the report of many rollouts, beside a bare read of their table."""
    count = 100_000
    found = measure("report", str(count))
    name, bare = f"report, {count:,} rollouts", found["bare_cpu"]
    return [
        Figure.below(f"{name}: comparing and drawing", found["compare_seconds"] + found["render_seconds"], "s", 5),
        Figure.below(f"{name}: size", found["report_mb"], "MB", 5),
        Figure.below(f"{name}: memory", found["mib"], "MiB", 2048),
        *(
            Figure.stated(f"{name}: {part}", found[f"{part}_cpu"], "CPU s", "pyarrow: read the table", bare)
            for part in ("compare", "render")
        ),
        Figure.stated(f"{name}: drawing", found["render_cpu"], "CPU s", "of a small run", found["small_cpu"]),
    ]


def view() -> list[Figure]:
    """CPU seconds and memory of writing a view's logs, beside JSON Lines of the same responses."""
    figures = []
    for count, words in ((100_000, 300), (10_000, 3_000)):
        found, name = measure("view", f"{count}x{words}"), f"view, {count:,} responses of {words:,} words"
        figures += [
            Figure.stated(f"{name}: logs", found["logs_cpu"], "CPU s", "JSON Lines", found["lines_cpu"]),
            Figure.below(f"{name}: memory", found["mib"], "MiB", 1024),
        ]
    return figures


def checkpoints() -> list[Figure]:
    """How long training waits for a checkpoint."""
    found = measure("checkpoint", "share", cpu_variables.LEARNER)
    slowed = "checkpoint: held, and slowed by the writing"
    return [
        Figure.below("checkpoint: the learner is held", found["held"], "of a step", 0.05),
        Figure.stated(slowed, found["background"], "of a step", "before", found["before"]),
    ]


def logits() -> list[Figure]:
    """Log-probabilities by chunks, beside all logits at once."""
    chunked, whole = measure("logits", "chunked"), measure("logits", "whole")
    name, once = "log-probabilities, 16k x 49k", "all logits at once"
    return [
        Figure.at_most(name, chunked["mib"], "MiB", once, whole["mib"], 1 / 8),
        Figure.stated(name, chunked["seconds"], "s", once, whole["seconds"]),
    ]


def updates() -> list[Figure]:
    """How long an engine pauses for new weights, and how much of that digests cost."""
    found, undigested = measure("generation", "update"), measure("generation", "undigested")
    size = f"{found['megabytes']:.0f} MB"
    pauses = found["pause_seconds"], undigested["pause_seconds"]
    return [
        Figure.at_most(f"weight update, pause, {size}", pauses[0], "s", "without digests of tensors", pauses[1], 1.5),
        Figure.below(f"weight update, pause, {size}", found["pause_seconds"], "s", 0.2),
        Figure.below(f"weight update, total, {size}", found["total_seconds"], "s", 0.6),
    ]


def weights() -> list[Figure]:
    """How long the learner takes to write a version of the weights."""
    found = measure("weights", "write")
    rates = {name: found["megabytes"] / 1000 / found[name] for name in ("reused", "new_file", "memcpy")}
    name = f"weights, written, {found['megabytes']:.0f} MB"
    return [
        Figure.at_least(name, rates["reused"], "GB/s", "copied, and a new file", rates["new_file"], 1.3),
        Figure.at_least(name, rates["reused"], "GB/s", "memcpy", rates["memcpy"], 0.25),
    ]


def relay() -> list[Figure]:
    """What the relay reaches of a link's rate, to several hosts at once."""
    if reason := missing():
        raise MeasureError(f"the relay was not measured: {reason}")
    found = measure("relay", "links")
    rates = {name: found["megabytes"] / found[name] for name in found if name.startswith(("relay", "copy"))}
    unit = "MB/s to each host"
    return [
        figure
        for count in COUNTS
        for figure in (
            Figure.at_least(f"relay, hosts: {count}", rates[f"relay {count}"], unit, "the link", found["link"], 0.5),
            Figure.stated(
                f"relay, hosts: {count}", rates[f"relay {count}"], unit, "a plain copy to all", rates[f"copy {count}"]
            ),
        )
    ]


def commands() -> list[Figure]:
    """What a user waits for before anything is computed."""
    run = [str(Path(sys.executable).with_name("pyflyte")), "run", "workflows/rlvr.py", "rlvr"]
    help_seconds = timed(*run, "--help")
    timed(*run)  # fills the cache where it is empty
    light = measure("commands", "help")
    click = light.pop("click")
    return [
        *(Figure.at_most(name, seconds, "CPU s", "import click", click, 3) for name, seconds in light.items()),
        Figure.below("pyflyte run ... --help", help_seconds, "s", 4),
        Figure.below("second run, all cached", timed(*run), "s", 20),
    ]


def mistakes() -> list[Figure]:
    """What a user waits for until a mistake is named; those of training include the start of Ray or of an engine."""
    limits = {"commands": 5, "files": 10, "training": 60}
    return [
        Figure.below(f"mistake: {name}", seconds, "s", limit)
        for table, limit in limits.items()
        for name, seconds in measure("mistakes", table).items()
    ]


PARTS = (
    *(verifiers, chat, data, simulation, controller, ladder),
    *(training, episodes, evaluation, intervals, report, view, checkpoints, logits, updates, weights, relay),
    *(commands, mistakes),
)


def main() -> None:
    """Measure, print, write `outputs/bench/benchmarks.json`; a part that fails is named at the end."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    figures: list[Figure] = []
    failed = []
    for part in PARTS:
        try:
            figures += part()
        except (MeasureError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr, flush=True)
            failed.append(part.__name__)
    publish(figures, FOLDER / "benchmarks.json")
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
