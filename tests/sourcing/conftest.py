"""Where the verifier finds the data with which it judges what the generators made."""

import os
from pathlib import Path

DATA = Path(os.environ.get("RLVR_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
os.environ.setdefault("NLTK_DATA", str(DATA / "nltk_data"))  # before the first import of nltk
