"""Runs the command `tokens`: `python -m tasks.token_page RUN --step N`."""

from tasks.machine.error_report import run_command
from tasks.token_page.command import tokens

if __name__ == "__main__":
    run_command(tokens)
