"""What a table's footer says of where it came from."""

import platform

from tasks.evaluation.spec import EvaluationSpec
from tasks.lineage.code_digest import code_digest
from tasks.lineage.provenance import made_from
from tasks.machine.image import NAME, image
from tasks.tables.parquet import build_table, read_metadata, write_table
from tasks.tables.schemas import PROMPTS

MODULE = "tasks.mixing.task"


def footer(**spec):
    return made_from(MODULE, inputs={"prompts": "a" * 64}, seed=3, **spec)


def test_a_footer_has_inputs_specification_seed_code_and_image(tmp_path, monkeypatch):
    monkeypatch.setenv(NAME, "registry.example/team/rlvr-data:v1")
    table = build_table([], PROMPTS, "here")
    said = read_metadata(write_table(tmp_path / "t.parquet", table, PROMPTS, footer(max_pass_rate=0.5)))
    assert (said["inputs"], said["spec"], said["seed"]) == ({"prompts": "a" * 64}, {"max_pass_rate": 0.5}, 3)
    assert (said["code_version"], said["image"]) == (code_digest(MODULE), "registry.example/team/rlvr-data:v1")


def test_the_digest_of_a_specification_leaves_out_how_a_stage_runs():
    here, elsewhere = (footer(evaluation=EvaluationSpec(verifier_workers=workers)) for workers in (1, 7))
    assert here["spec"] != elsewhere["spec"]
    assert here["spec_digest"] == elsewhere["spec_digest"]
    other = EvaluationSpec.model_validate({"sampling": {"max_tokens": 7}})
    assert footer(evaluation=other)["spec_digest"] != here["spec_digest"]


def test_without_an_image_it_is_this_environment_and_a_pod_says_what_is_missing(monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    assert image() == f"this environment, Python {platform.python_version()}"
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "a1b2")
    assert image().startswith("an image without its name in FLYTE_INTERNAL_IMAGE, Python")
