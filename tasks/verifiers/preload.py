"""Imported by the forkserver, so that every worker is born with SymPy and the checkers in memory."""

from tasks.verifiers import registry

registry.warm_up()
