"""Imported by the forkserver, so that every worker is born with SymPy and the checkers in memory."""

import gc

from tasks.verifiers import registry

registry.warm_up()
gc.collect()
gc.freeze()  # workers share what is in memory now, and their collections need not walk it: a tenth of a second each
