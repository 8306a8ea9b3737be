"""Where the verifier finds the data with which it judges what the generators made."""

import os

from tests.paths import DATA

os.environ.setdefault("NLTK_DATA", str(DATA / "nltk_data"))  # before the first import of nltk
