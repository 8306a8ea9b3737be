"""Paths that tests read: the checkout, and real rows that lie beside it or where `RLVR_TEST_DATA` says."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("RLVR_TEST_DATA", ROOT.parent / "shared" / "data"))
