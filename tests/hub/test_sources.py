"""Shipped sources read repositories of the published shapes, from a stand-in of the hub."""

import pytest

from tasks.config.loading import SpecError, load_yaml
from tasks.generation.models import ModelError, ModelSpec, prepare_model
from tasks.inputs.files import DATA_SPECS, RECIPES, DataFile, Recipe, load_quickstart
from tasks.inputs.fingerprints import fingerprint_model
from tasks.inputs.preflight import check
from tasks.sourcing.loaders import open_rows, pin
from tasks.sourcing.prompts import build_prompts
from tasks.sourcing.spec import SourceSpec
from tests.hub.fixture import stand_in_hub  # noqa: F401 - a fixture
from tests.hub.mathematics import OMEGA_SETTINGS

pytestmark = pytest.mark.usefixtures("stand_in_hub")


def shipped(file, name):
    data = load_yaml(DataFile, DATA_SPECS / f"{file}.yaml")
    return next(source for source in data.sources if source.name == name)


def prompts_of(source):
    return build_prompts(pin(source), 8000)


@pytest.mark.parametrize(
    ("file", "name", "usable"),
    [
        ("gsm8k", "gsm8k", 12),
        ("axolotl_gsm8k", "gsm8k", 12),
        ("one_gpu", "gsm8k", 12),
        ("gsm8k_math", "gsm8k", 12),
        ("dapo_math_17k", "dapo-math-17k", 10),
        ("dolci_think_rl_7b", "dolci-think-rl-7b", 24),
        ("dolci_think_rl", "open-reasoner-zero", 8),
        ("dolci_think_rl", "klear-code", 6),
        ("dolci_think_rl", "synthetic-2", 6),
        ("dolci_think_rl", "wildchat", 6),
    ],
)
def test_a_shipped_source_reads_the_published_shape(file, name, usable):
    made = prompts_of(shipped(file, name))
    assert (made.counts["usable"], set(made.reasons) <= {"duplicate"}) == (usable, True)


def test_answers_are_what_stands_behind_the_mark():
    made = prompts_of(shipped("gsm8k", "gsm8k"))
    assert "1,201" in made.prompts.column("ground_truth")[0].as_py()


def test_a_published_mixture_has_all_its_verifiers():
    made = prompts_of(shipped("dolci_think_rl_7b", "dolci-think-rl-7b"))
    assert set(made.prompts.column("verifier").to_pylist()) == {
        "math",
        "code",
        "precise_if",
        "chat_reference",
        "chat_open",
    }


def omega(**loader):
    source = shipped("dolci_think_rl", "omega")
    changed = source.loader.model_copy(update=loader)
    return source.model_copy(update={"loader": changed, "limit": None, "top_up": None})


@pytest.mark.long
def test_one_entry_reads_all_configurations():
    source = pin(omega())
    assert source.loader.config == sorted(OMEGA_SETTINGS)
    columns = build_prompts(source, 8000).prompts.column("metadata").to_pylist()
    assert len(columns) == 5 * len(OMEGA_SETTINGS)
    assert all(any(f'"{setting}"' in text for text in columns) for setting in OMEGA_SETTINGS)


@pytest.mark.long
def test_patterns_choose_among_configurations_and_a_column_names_them():
    source = pin(omega(config=["arithmetic_*", "algebra_*"], config_column="part"))
    parts = [row.content["part"] for row in open_rows(source)]
    assert parts == ["arithmetic_gcd"] * 5 + ["algebra_func_area"] * 5 + ["algebra_linear_equation"] * 5
    with pytest.raises(SpecError, match=r"config = 'geometry_\*': .* has no such configuration; it has algebra_func"):
        pin(omega(config=["arithmetic_*", "geometry_*"]))


def test_a_set_that_was_renamed_is_found_under_its_former_name():
    source = shipped("gsm8k", "gsm8k")
    former = source.loader.model_copy(update={"dataset": "gsm8k", "revision": "main"})
    assert pin(source.model_copy(update={"loader": former})).loader.revision == source.loader.revision


def test_a_gated_set_is_one_sentence():
    loader = {"kind": "huggingface", "dataset": "someone/gated", "revision": "main"}
    source = SourceSpec.model_validate({"name": "src", "domain": "math", "verifier": "math", "loader": loader})
    with pytest.raises(SpecError, match=r"source 'src': loader: .*someone/gated is gated: ask for access"):
        list(open_rows(pin(source)))


def one_and_nemotron(**changes):
    whole = load_yaml(DataFile, DATA_SPECS / "dolci_think_rl.yaml")
    sources = [
        omega(config=["arithmetic_gcd"]),
        next(source for source in whole.sources if source.name == "nemotron-code"),
    ]
    given = {"name": "both", "sources": [source.model_dump(exclude_unset=True) for source in sources], **changes}
    return DataFile.model_validate(given)


def test_a_source_without_a_column_is_named_with_the_option_that_leaves_it_out(monkeypatch):
    monkeypatch.setattr("tasks.inputs.preflight.fingerprint_model", lambda spec: spec)
    files = load_quickstart()
    data = one_and_nemotron(difficulty=None)
    with pytest.raises(SpecError, match=r"'nemotron-code': .*no column 'test_cases'.*; leave_out: \[nemotron-code\]"):
        check(data, *files[1:])
    without = one_and_nemotron(difficulty=None, leave_out=["nemotron-code"])
    assert set(check(without, *files[1:])) == {"omega"}


def test_a_model_of_which_a_branch_alone_has_weights_is_read_from_that_branch(tmp_path):
    spec = load_yaml(Recipe, RECIPES / "grpo.yaml").model
    assert spec.source.revision == "refs/pr/2"
    found = fingerprint_model(spec)
    assert found.source.revision == fingerprint_model(found).source.revision
    with pytest.raises(ModelError, match=r"no chat template"):  # all files are there, and have nearly no content
        prepare_model(found, tmp_path / "branch")
    assert (tmp_path / "branch" / "model.safetensors").exists()
    main = spec.model_copy(update={"source": spec.source.model_copy(update={"revision": "main"})})
    with pytest.raises(ModelError, match=r"no weights \(\*\.safetensors\)"):
        prepare_model(main, tmp_path / "main")


def test_a_model_without_a_tokenizer_json_is_listed_with_its_commit():
    spec = ModelSpec.model_validate({"source": {"kind": "hub", "name": "someone/qwen2-tiny", "revision": "main"}})
    assert len(fingerprint_model(spec).source.revision) == 40
