"""Inline pod templates are checked against the fields that Kubernetes has."""

import re

import pytest
import yaml

from tasks.inputs.files import Recipe
from tasks.kubernetes.client_fields import client_fields
from tasks.kubernetes.pod_fields import ROOT, fields
from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.kubernetes.pods import PodConfig
from tests.paths import ROOT as ROOT_FOLDER


def container(**changes):
    return {"containers": [{"name": "primary", **changes}]}


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ({"toleration": []}, "toleration: Kubernetes has no such field (did you mean 'tolerations'?)"),
        ({"metadata": {"name": "x"}}, "metadata.name: Kubernetes has no such field; there are: annotations, labels"),
        (container(envs=[]), "containers[0].envs: Kubernetes has no such field (did you mean 'env'?)"),
        (
            container(env=[{"name": "A", "value": 1}]),
            "containers[0].env[0].value = 1: must be a text; a number or true in quotes",
        ),
        ({"volumes": [{"name": "v", "emptyDir": None}]}, "volumes[0].emptyDir = None: must be a mapping"),
        ({"volumes": {"name": "v"}}, "volumes = {'name': 'v'}: must be a list"),
        ({"nodeSelector": {"gpu": True}}, "nodeSelector['gpu'] = True: must be a text"),
        ({"containers": [{"image": "x"}]}, "containers[0]: name is missing; the stage's own is 'primary'"),
        (container(args=["x"]), "containers: args of 'primary' is set by the stage"),
        (container(resources={"limits": {"memory": "1Gi"}}), "containers: memory among the resources of 'primary'"),
    ],
)
def test_a_template_that_kubernetes_would_refuse_is_one_sentence(template, problem):
    with pytest.raises(ValueError, match=re.escape(f"template: {problem}")):
        PodConfig(template=template)


def test_shared_memory_is_given_once():
    mounted = container(volumeMounts=[{"name": "m", "mountPath": SHARED_MEMORY}])
    PodConfig(template=mounted)
    with pytest.raises(ValueError, match="template mounts a volume on /dev/shm, and shared_memory_gib another"):
        PodConfig(template=mounted, shared_memory_gib=8)


def test_the_fields_are_those_of_the_kubernetes_client():
    client = pytest.importorskip("kubernetes.client")
    known, todo = fields(), [("V1PodSpec", ROOT)]
    assert ROOT == "PodSpec"
    seen = set()
    while todo:
        model, name = todo.pop()
        seen.add(name)
        kinds = getattr(client, model).openapi_types
        of_file = getattr(client, model).attribute_map
        assert set(known[name]) == set(of_file.values()), name
        for attribute, kind in kinds.items():
            inner = re.sub(r"(?i)^(list|dict)[\[(](str, )?(.+)[\])]$", r"\3", kind)
            ours = known[name][of_file[attribute]].strip("[]{}")
            if hasattr(client, inner):
                assert ours == re.sub(r"^(CoreV1|V1)", "", inner)
                todo += [(inner, ours)] if ours not in seen else []
    assert seen == set(known)


def test_the_file_of_fields_is_what_the_command_writes():
    pytest.importorskip("kubernetes.client")
    assert fields() == client_fields(), "stale: make pod-fields"


def test_the_examples_in_the_documentation_are_recipes():
    page = (ROOT_FOLDER / "docs" / "clusters.md").read_text()
    examples = re.findall(r"```yaml\n(.+?)```", page, re.DOTALL)
    recipe, grouped = (Recipe.model_validate(yaml.safe_load(example)) for example in examples)
    accelerators = {group: grouped.cluster.build_machine(group).node_label[1] for group in ("learner", "actors")}
    assert accelerators == {"learner": "nvidia-h100-80gb", "actors": "nvidia-l4"}
    assert recipe.cluster.node.node_label == ("cloud.google.com/gke-accelerator", "nvidia-h100-80gb")
