"""Runs `view` as a module: `python -m tasks.view RUN`."""

from tasks.machine.error_report import run_command
from tasks.view.command import view

if __name__ == "__main__":
    run_command(view)
