"""Runs the command `rlvr` with this Python: `python -m tasks.commands`."""

from tasks.commands.group import main

if __name__ == "__main__":
    main()
