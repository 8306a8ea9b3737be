"""A valid specification stays the same on its way through Flyte, after which all its fields are set."""

import json
import random

import pytest
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal, LiteralMap, Scalar
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from tasks.config.fields import sort_keys
from tasks.config.loading import SpecError, load_yaml, merge_extended, read_yaml
from tasks.difficulty.spec import DifficultySpec, RolloutSpec
from tasks.flyte.stages import config_digest
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.experiments import Experiment, ExperimentFile
from tasks.inputs.files import DATA_SPECS, EVALUATIONS, RECIPES, DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.mixing.spec import MixtureSpec
from tasks.sourcing.loader_specs import Loader
from tasks.sourcing.loaders import add_fingerprint, divide_into_batches
from tasks.verifiers import VerifiersConfig

TEMPLATE = {
    "nodeSelector": {"a.b/c": "d"},
    "containers": [{"name": "primary", "resources": {"limits": {"rdma/ib": 1}}}],
}
NODE = {"cpu": 9, "accelerator": "nvidia-h100", "template": TEMPLATE}
CLUSTER = {"gpus_per_node": 4, "node": NODE, "head": {"interruptible": True, "template": "heads"}}
ROUNDS = {"kind": "dynamic"}
FILES = [
    *((DataFile, read_yaml(path)) for path in sorted(DATA_SPECS.glob("*.yaml"))),
    *((Recipe, merge_extended(read_yaml(path), Recipe)) for path in sorted(RECIPES.glob("*.yaml"))),
    *((EvaluationFile, merge_extended(read_yaml(path), EvaluationFile)) for path in sorted(EVALUATIONS.glob("*.yaml"))),
    (
        Recipe,
        {"lora": {"rank": 8, "alpha": 16}, "resampling": {"kind": "dynamic"}, "async_steps": 0, "cluster": CLUSTER},
    ),
    (VerifiersConfig, {"judge": {"kind": "reward_model", "model": "m"}, "code": {"remote": {"url": "http://code"}}}),
    (MixtureSpec, {"domains": {"math": {"weight": 2.0}}, "heldout": 5, "seed": 3}),
    (RolloutSpec, {"sampling": {"seed": 1}, "engine": {"dtype": "float32"}, "verifier_workers": 2}),
]


def without_some(value, draw):
    """The value without some of its keys, at any depth."""
    if isinstance(value, dict):
        return {key: without_some(each, draw) for key, each in value.items() if draw(st.integers(0, 7)) > 0}
    return [without_some(each, draw) for each in value] if isinstance(value, list) else value


def through_flyte(spec):
    context, kind = FlyteContextManager.current_context(), type(spec)
    literal = TypeEngine.to_literal(context, spec, kind, TypeEngine.to_literal_type(kind))
    return TypeEngine.to_python_value(context, literal, kind)


def form(spec):
    """The literal that a form of Flyte's console sends: a protobuf `Struct`, in which every number is a double."""
    return Literal(scalar=Scalar(generic=json_format.Parse(spec.model_dump_json(), Struct())))


def test_a_description_of_an_option_is_no_part_of_an_interface():
    class Described(MixtureSpec):
        """Another description."""

    Described.__module__ = MixtureSpec.__module__
    Described.model_fields["heldout"].description = "Other words."
    assert TypeEngine.to_literal_type(Described) == TypeEngine.to_literal_type(MixtureSpec)


def test_a_model_of_the_users_own_is_described_as_flytekit_does():
    class Own(BaseModel):
        size: int = 1

    assert TypeEngine.to_literal_type(Own).metadata["properties"]["size"]["default"] == 1


@pytest.mark.parametrize(("model", "content"), FILES, ids=lambda value: getattr(value, "__name__", ""))
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_valid_specification_stays_the_same(model, content, data):
    try:
        spec = model.model_validate(without_some(content, data.draw))
    except (ValidationError, SpecError):
        return
    assert through_flyte(spec) == spec
    assert through_flyte(through_flyte(spec)) == spec


def test_what_files_become_stays_the_same():
    for model, content in FILES:
        spec = model.model_validate(content)
        assert through_flyte(spec) == spec
        if isinstance(spec, Recipe):
            assert through_flyte(spec.run) == spec.run
        if isinstance(spec, DataFile) and spec.name == "quickstart":
            read = divide_into_batches([add_fingerprint(source) for source in spec.sources])
            assert [through_flyte(batch) for batch in read] == read


def test_a_file_launched_from_the_console_is_the_same_with_the_same_digest():
    context = FlyteContextManager.current_context()
    for model, content in FILES:
        spec = model.model_validate(content)
        launched = TypeEngine.to_python_value(context, form(spec), model)
        assert launched == spec
        values = (made.model_dump(mode="json") for made in (launched, spec))
        assert len({json.dumps(value, sort_keys=True) for value in values}) == 1  # 24 and 24.0 are equal, not the same
        assert config_digest(launched) == config_digest(spec)


ORDERED = ("variants", "policies", "compared")
"""Mappings whose order is part of the result."""
EXPERIMENTS = [Experiment.of(load_yaml(ExperimentFile, path)) for path in sorted(ExperimentFile.folder.glob("*.yaml"))]


def shuffled(value, chance, *, ordered=False):
    """The value with the keys of its mappings in a random order, but for those whose order counts."""
    if isinstance(value, list):
        return [shuffled(each, chance) for each in value]
    if not isinstance(value, dict):
        return value
    keys = list(value) if ordered else chance.sample(list(value), len(value))
    return {key: shuffled(value[key], chance, ordered=key in ORDERED) for key in keys}


def literal_of(spec):
    kind = type(spec)
    made = TypeEngine.to_literal(FlyteContextManager.current_context(), spec, kind, TypeEngine.to_literal_type(kind))
    return made.to_flyte_idl().SerializeToString(deterministic=True)


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_a_files_mappings_has_no_part_in_its_digest_or_its_literal(seed):
    chance, context = random.Random(seed), FlyteContextManager.current_context()
    dumped = [(Experiment, experiment.model_dump(mode="json")) for experiment in EXPERIMENTS]
    dumped += [(BenchmarkFile, read_yaml(path)) for path in sorted(BenchmarkFile.folder.glob("*.yaml"))]
    for model, content in (*FILES, *dumped):
        spec = model.model_validate(content)
        other = model.model_validate(shuffled(content, chance))
        shown = shuffled(json.loads(spec.model_dump_json()), chance)
        launched = Literal(scalar=Scalar(generic=json_format.ParseDict(shown, Struct())))
        for read in (other, TypeEngine.to_python_value(context, launched, model)):
            assert literal_of(read) == literal_of(spec)
            assert config_digest(read) == config_digest(spec)


@pytest.mark.parametrize(
    ("model", "name", "item"),
    [
        (EvaluationFile, "policies", {}),
        (DifficultySpec, "compared", {"chat_template_kwargs": {"enable_thinking": True}}),
    ],
)
def test_the_order_of_policies_and_variants_is_part_of_the_result_and_is_kept_on_the_way(model, name, item):
    one, other = (model.model_validate({name: dict.fromkeys(names, item)}) for names in (("b", "a"), ("a", "b")))
    assert config_digest(one) != config_digest(other)
    context = FlyteContextManager.current_context()
    for launched in (through_flyte(one), TypeEngine.to_python_value(context, form(one), model)):
        assert list(getattr(launched, name)) == ["b", "a"]
    with pytest.raises(ValidationError, match="a list of mappings of one key each, whose keys differ"):
        model.model_validate({name: [{"a": item}, {"a": item}]})


def test_the_order_of_an_experiments_variants_is_kept_on_the_way():
    context = FlyteContextManager.current_context()
    for experiment in EXPERIMENTS:
        launched = TypeEngine.to_python_value(context, form(experiment), Experiment)
        assert list(launched.variants) == list(experiment.variants)
        assert launched == experiment


def test_integral_doubles_of_a_free_mapping_are_integers_and_no_others():
    def config(**values):
        loader = {"kind": "reasoning_gym", "dataset": "products", "size": 1, "config": values}
        return TypeAdapter(Loader).validate_python(loader).config

    assert repr(config(b=2.0, a=[1.0, 0.5])) == "{'a': [1, 0.5], 'b': 2}"
    assert repr(config(large=1e300)) == "{'large': 1e+300}", "no integer that a message holds"
    assert sort_keys({"b": [{2: "x", "a": 1.0}]}) == {"b": [{2: "x", "a": 1}]}


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        (DataFile, "mixture.heldout", 24.5),
        (DataFile, "max_prompt_chars", 0.5),
        (Recipe, "steps", 2.5),
        (EvaluationFile, "sampling.samples", "four"),
        (Recipe, "stepz", 2),
    ],
)
def test_a_mistake_in_a_form_is_one_sentence_with_the_key(model, key, value):
    literal = form(next(spec for spec in load_quickstart() if isinstance(spec, model)))
    *path, last = key.split(".")
    inner = literal.scalar.generic
    for name in path:
        inner = inner[name]
    inner[last] = value
    context = FlyteContextManager.current_context()
    with pytest.raises(SpecError) as caught:
        TypeEngine.literal_map_to_kwargs(context, LiteralMap({"given": literal}), {"given": model})
    sentence = str(caught.value)
    assert sentence.startswith(f"given: {key}")
    assert "\n" not in sentence
    assert len(sentence) < 2000
