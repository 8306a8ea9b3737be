"""One training step with the controller and a real rank in one process: the files that it enters, and the calls.

    python -m tests.training.one_step MODEL FOLDER

prints a JSON object: `files`, the files of tasks/ in the order in which they are entered between the controller's call
and the end of the optimizer step; `calls`, the functions of tasks/ that call each other from `Controller._train` to
`policy_loss`.
"""

import asyncio
import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path

from tasks.planning.virtual_clock import run_in_virtual_time
from tasks.training.control.controller import Controller
from tasks.training.learner import trainer
from tasks.training.learner.client import RayLearner
from tasks.training.learner.rank import LearnerRank
from tasks.training.learner.restartable import RestartingLearner
from tests.paths import ROOT
from tests.training.stand_ins import Run, config, prompts

CLOCK = "tasks/planning/virtual_clock.py"
"""The event loop of the stand-ins, which no real run has."""
COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
ORIGIN_FRAMES = 50
"""The depth to which Python records where a coroutine was made."""


class EndedError(Exception):
    """The step is over, and so is the run."""


class Rank(LearnerRank):
    """A rank without Ray."""

    def location(self):
        return "", ""


class Handle:
    """Looks like the Ray handle of a rank, which is called in this process."""

    def __init__(self, rank, record):
        self._rank, self._record = rank, record

    def __getattr__(self, name):
        return Method(getattr(self._rank, name), self._record)


class Method:
    """A method of a rank. Its call begins another stack, as a call of another process does."""

    def __init__(self, call, record):
        self._call, self._record = call, record

    def remote(self, *arguments):
        self._record.remote_call = callers()
        return self._answer(arguments)

    async def _answer(self, arguments):
        return self._call(*arguments)


class Record:
    """What one step enters and calls."""

    def __init__(self):
        self.files, self.calls, self.remote_call = [], [], []

    def start(self):
        sys.setprofile(self._enter)

    def _enter(self, frame, event, _argument):
        file = of_tasks(frame.f_code.co_filename)
        if event == "call" and file not in (None, CLOCK, *self.files):
            self.files.append(file)

    def stop(self):
        sys.setprofile(None)


def of_tasks(filename):
    """A file's path in the repository; None if it is not in tasks/."""
    path = Path(filename)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT / "tasks") else None


def callers():
    """Functions of tasks/ that have called each other up to here, innermost first.

    They are on the stack of this process; below the coroutine of a task continues the stack that called it. A function
    that awaits the coroutine that another one has called, to limit its time, is not a caller. A comprehension is a part
    of its function.
    """
    frame, stack = sys._getframe(), []
    while frame and frame.f_code is not Method._answer.__code__:
        stack.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    if frame is None:
        stack += [(filename, name) for filename, _, name in asyncio.current_task().get_coro().cr_origin]
    functions = ((of_tasks(path), name) for path, name in stack if name not in COMPREHENSIONS)
    return [f"{file} {name}" for file, name in functions if file not in (None, CLOCK)]


def watch(record):
    """Have the first step recorded, and the run end with it."""
    train, step, loss = Controller._train, RestartingLearner.step, trainer.policy_loss

    async def recorded_train(self, *arguments):
        record.start()
        await train(self, *arguments)
        raise EndedError

    async def recorded_step(self, *arguments):
        report = await step(self, *arguments)
        record.stop()
        return report

    def recorded_loss(*arguments):
        way = [*callers(), *record.remote_call]
        way = way[: way.index("tasks/training/control/controller.py _train") + 1]
        record.calls = [*reversed(way), "tasks/objective/loss.py policy_loss"]
        return loss(*arguments)

    Controller._train, RestartingLearner.step, trainer.policy_loss = recorded_train, recorded_step, recorded_loss


async def main(model, folder, record):
    options = config(learner={"cpu_threads": 1}, async_steps=0, max_staleness=0)
    learner = RayLearner(lambda _: Handle(Rank(options, model), record), options)
    await learner.start()
    short = [replace(prompt, token_ids=[number, number]) for number, prompt in enumerate(prompts(4), 1)]
    await Run(Path(folder), options, short, learner=learner).run()


if __name__ == "__main__":
    record = Record()
    watch(record)
    sys.set_coroutine_origin_tracking_depth(ORIGIN_FRAMES)
    with contextlib.suppress(EndedError):
        run_in_virtual_time(main(*sys.argv[1:], record))
    print(json.dumps({"files": record.files, "calls": record.calls}))
