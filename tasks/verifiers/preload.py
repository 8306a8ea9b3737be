"""Imported by the forkserver, so that every worker is born with SymPy and the checkers in memory."""

from tasks.verifiers import registry

for _verifier in registry.available():
    registry.room(_verifier).warm_up()
