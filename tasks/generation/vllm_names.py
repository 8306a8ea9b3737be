"""Lists the names of vLLM's arguments and tool parsers in the version that this project pins.

Configurations are parsed on machines without vLLM, such as the preflight pod and the machine that submits a run.
Therefore the names are listed in `vllm_names.json` instead of being read from vLLM. A test compares them with the
installed vLLM.
"""

from __future__ import annotations

import json
from pathlib import Path

_CONTENT = json.loads(Path(__file__).with_suffix(".json").read_text())

VERSION: str = _CONTENT["version"]
"""Version of vLLM that has these names."""

ENGINE_ARGUMENTS: frozenset[str] = frozenset(_CONTENT["engine_arguments"])
"""Names of the public fields of vLLM's `AsyncEngineArgs`."""

SAMPLING_ARGUMENTS: frozenset[str] = frozenset(_CONTENT["sampling_arguments"])
"""Names of the public fields of vLLM's `SamplingParams`."""

TOOL_PARSERS: frozenset[str] = frozenset(_CONTENT["tool_parsers"])
"""Names of vLLM's tool call parsers (option `--tool-call-parser`)."""
