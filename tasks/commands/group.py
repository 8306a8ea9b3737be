"""Defines the command `rlvr`."""

from __future__ import annotations

from pathlib import Path

import click

from tasks.commands import bash
from tasks.commands.lazy import LazyGroup, Subcommand
from tasks.failures import MistakeError
from tasks.machine.error_report import run_command
from tasks.machine.packages import HOME, PACKAGES
from tasks.machine.quiet import silence_libraries

COMMANDS = {
    "new": Subcommand("tasks.commands.new:new", "Write the files of an example into FOLDER"),
    "check": Subcommand("tasks.commands.check:check", "Check FILES against each other, without a run"),
    "run": Subcommand("tasks.commands.run:run", "Run the pipeline, or one part of it, here or on a cluster"),
    "train": Subcommand("tasks.commands.train:train", "Train by RECIPE on a mixture, without Flyte"),
    "view": Subcommand("tasks.commands.view:view", "Open the rollouts of RUN in a browser"),
    "show": Subcommand("tasks.commands.show:show", "Print questions of a benchmark in RUN, with responses"),
    "tokens": Subcommand("tasks.commands.tokens:tokens", "Write a page with responses of a step, token by token"),
    "trace": Subcommand("tasks.commands.trace:trace", "Print the history of a prompt, by its id or its row"),
    "compare": Subcommand("tasks.commands.compare:compare", "Compare the options and results of RUNS"),
    "diff": Subcommand("tasks.commands.diff:diff", "Compare the sources of the mixtures BEFORE and AFTER"),
    "plan": Subcommand("tasks.commands.plan:plan", "Compute what RECIPE needs of GPUs, without using any"),
    "recipes": Subcommand("tasks.commands.plan:recipes", "Print the table of all included recipes, or of some"),
    "play": Subcommand("tasks.commands.play:play", "Play the environments of the data file FILE without a model"),
    "launch": Subcommand("tasks.commands.launch:launch", "Launch the registered launch plan NAME"),
    "fetch": Subcommand("tasks.commands.fetch:fetch", "Download the results of EXECUTION into a folder in outputs/"),
    "prune": Subcommand("tasks.commands.prune:prune", "Print what can be removed from outputs/, or remove it"),
    "doctor": Subcommand("tasks.commands.doctor:doctor", "Check this machine, a cluster, or a model"),
}
"""The subcommands, in the order of the help."""

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""Settings of click for all commands."""


@click.group(cls=LazyGroup, subcommands=COMMANDS, context_settings=SETTINGS)
@click.version_option(package_name="rlvr-flyte")
def rlvr() -> None:
    """Reinforcement learning with verifiable rewards: data, training and evaluation as one cached pipeline."""
    check_working_directory(Path.cwd())
    silence_libraries()


def check_working_directory(folder: Path) -> None:
    """Check that a folder contains no package with the name of one of ours.

    Processes of a run look for packages in the working directory first, and would import that one.

    Raises:
        MistakeError: there is such a package.
    """
    for name in PACKAGES:
        for path, ours in ((folder / name, HOME / name), (folder / f"{name}.py", None)):
            is_package = path.is_file() if ours is None else (path / "__init__.py").is_file()
            if is_package and (ours is None or not path.samefile(ours)):  # a checkout may be reached through a link
                raise MistakeError(
                    f"{path} has the name of a package of rlvr-flyte, which is in {HOME}, and a run would import it "
                    "instead: rename it, or run in another folder"
                )


def main() -> None:
    """Run the command `rlvr`."""
    bash.install()
    run_command(lambda: rlvr(prog_name="rlvr"))
