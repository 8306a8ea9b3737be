"""Defines the stage that downloads or converts the initial checkpoint once, as a Flyte output for all later stages."""

from __future__ import annotations

import json
from typing import NamedTuple

from flytekit import Resources

from images import GENERATION
from tasks.flyte.stages import Folder, Stopwatch, make_output_folder, make_scratch_path, show, shown_stage
from tasks.generation.models import ModelSpec
from tasks.generation.tokenizer_options import find_template_name
from tasks.storage.model_folder import count_weight_bytes
from tasks.tables.content_digest import seal
from tasks.tables.schemas import StageSummary


class PreparedModel(NamedTuple):
    """The outputs of `prepare_model`: a Hugging Face model folder and the stage's summary."""

    model: Folder
    summary: StageSummary


@shown_stage(container_image=GENERATION, requests=Resources(cpu="2", mem="4Gi"))
def prepare_model(spec: ModelSpec) -> PreparedModel:
    """Download or convert the model in `spec` to a Hugging Face folder with safetensors and a chat template."""
    from tasks import charts
    from tasks.generation.models import prepare_model as prepare

    watch = Stopwatch("model")
    folder = seal(prepare(spec, make_scratch_path("model")))
    size = count_weight_bytes(folder)
    shape = json.loads((folder / "config.json").read_text())
    template = "the model's own" if spec.chat_template is None else find_template_name(spec.chat_template)
    figures = {
        "model": spec.name,
        "weights": f"{size / 1e6:,.0f} MB",
        "digest": spec.fingerprint or "none",
        "chat template": template,
    }
    options = [
        {"key": key, "value": value} for key, value in sorted(shape.items()) if not isinstance(value, dict | list)
    ]
    show("model", charts.page(figures, charts.render_table(options, "Configuration")))
    return PreparedModel(make_output_folder(folder), watch.summary(f"{spec.name}, {size / 1e6:,.0f} MB", bytes=size))
