"""A training run driven in a process of its own, so that it can be killed, and what it leaves can be counted."""

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import time
from collections import Counter

import psutil

from tasks.tables.parquet import read_table
from tasks.tables.schemas import LEDGER
from tasks.training.records.response_files import TRAINING_ROLLOUTS
from tasks.training.run import RunInputs, train

EXIT_SECONDS = 30
LOG = "driver.log"
"""What a driver warned of, in its run folder."""

ENGINE, LEARNER = "EngineCore", "ray::LearnerRank"
"""Names of processes."""


def process_of(name):
    """A process of this name below this one; waits for it where it has not been seen yet."""

    def is_named(process):
        return name in " ".join(process.cmdline())

    deadline = time.monotonic() + EXIT_SECONDS
    while time.monotonic() < deadline:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended
                # what it starts has its name for a moment, until that becomes another program
                if is_named(process) and not is_named(process.parent()):
                    return process
        time.sleep(0.1)
    raise AssertionError(f"there is no {name}")


def drive(recipe, model, prompts, folder, kills, kill_driver_after, watch, pretend_gpu):
    """The driver of a training run, to be run in a process of its own; after step n it kills a process `kills[n]`."""
    import ray

    processes = folder / "processes.json"
    logging.basicConfig(level=logging.WARNING, handlers=[logging.StreamHandler(), logging.FileHandler(folder / LOG)])

    def on_step(metrics):
        watch(folder, metrics)
        if name := kills.get(metrics["step"]):
            process_of(name).kill()

    def on_saved(checkpoint):
        # those that were there before as well: what outlives its parent is no descendant any more
        known = json.loads(processes.read_text()) if processes.exists() else []
        there = map(identity, psutil.Process().children(recursive=True))
        processes.write_text(json.dumps([*known, *(each for each in there if each not in known)]))
        if checkpoint.name == f"step_{kill_driver_after:08d}":
            os.kill(os.getpid(), signal.SIGKILL)

    # A GPU as a workstation has it whose torch is built for CPUs: Ray counts it, and the run trains without it; unless
    # it is pretended that torch is built for it. Then ranks and engines are given it, and compute on CPUs all the same.
    if pretend_gpu:
        import torch

        torch.backends.cuda.is_built = lambda: True
    ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    result = train(RunInputs(recipe, model, prompts, folder, on_step=on_step, on_saved=on_saved))
    (folder / "resumed_from").write_text(str(result.resumed_from))


def identity(process):
    """Of a process among all that there ever were: numbers come again."""
    return [process.pid, process.create_time()]


def running(known):
    """Those of some processes, by `identity`, that are running."""
    return [each for each in psutil.process_iter(["name"]) if identity(each) in known]


def no_one(_folder, _metrics):
    """Watches nothing."""


def run(recipe, model, prompts, folder, *, kills=(), kill_driver_after=0, watch=no_one, pretend_gpu=False):
    """Drive a run to its end; returns the exit code, when no process of the run is left.

    `watch`, a function of a module, is called in the driver with the run folder and the metrics of each step.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=drive, args=(recipe, model, prompts, folder, dict(kills), kill_driver_after, watch, pretend_gpu)
    )
    process.start()
    process.join()
    assert (folder / "processes.json").exists(), f"the driver ended with {process.exitcode} before it saved anything"
    known = json.loads((folder / "processes.json").read_text())
    left = [each.info["name"] for each in psutil.wait_procs(running(known), EXIT_SECONDS)[1]]
    assert not left, f"{left} are left after {EXIT_SECONDS} s"
    return process.exitcode


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_groups(folder, recipe, *, may_fail=False):
    """Every group has one fate, every step its groups, and each response is kept with the fate of its group.

    None fails, unless it `may_fail`: its environment was killed.
    """
    rows = read_table(folder / "ledger.parquet", LEDGER).to_pylist()
    assert [row["group"] for row in rows] == list(range(len(rows)))
    trained = Counter(row["step"] for row in rows if row["fate"] == "trained")
    assert trained == dict.fromkeys(range(recipe.steps), recipe.groups_per_step)
    assert [row["step"] for row in metrics(folder)] == list(range(recipe.steps))
    files = sorted((folder / "rollouts").glob("*.parquet"))
    kept = Counter(
        (row["group"], row["fate"], row["step"])
        for file in files
        for row in read_table(file, TRAINING_ROLLOUTS).to_pylist()
    )
    generated = {(row["group"], row["fate"], row["step"]): len(row["num_tokens"]) for row in rows if row["num_tokens"]}
    assert kept == generated, (
        f"{kept - Counter(generated)} is kept and in no ledger; {Counter(generated) - kept} is not kept"
    )
    for row in rows:
        assert row["fate"] in ("trained", "zero_variance", "stale", "unused", *["failed"] * may_fail), row
