"""Forgetting in a model that somebody has: the function and the command."""

import dataclasses
import re

import numpy as np
import pytest
import safetensors.numpy
from flax import traverse_util

import fuprune
from fuprune.errors import InputError
from fuprune.main import main
from fuprune.run.forget import forget, read_classes
from tests.tiny import TinyNet, tiny_dataset, tiny_variables


def clients(dataset, number=3):
    parts = fuprune.iid_partition(dataset.labels, num_clients=number, seed=0)
    return fuprune.federate(dataset, parts)


def test_a_network_forgets_and_says_so_itself():
    model, dataset = TinyNet(), tiny_dataset()
    found = forget(
        model, tiny_variables(model), clients(dataset), 1, rate=0.3, test=dataset
    )
    images = dataset.images[:2] / np.float32(255)
    assert found.model.apply(found.variables, images).shape == (2, 4)
    assert found.after.parameters < found.before.parameters
    assert found.after.size < found.before.size
    text = repr(found)
    assert len(text.splitlines()) < 12 and "class 1" in text
    known = found.before._replace(u_accuracy=0.9, r_accuracy=0.9)
    verdicts = {(0.9, 0.9): "Gone? No", (0.0, 0.5): "fine-tune", (0.0, 0.9): "compare"}
    for (u_set, r_set), said in verdicts.items():
        after = known._replace(u_accuracy=u_set, r_accuracy=r_set)
        assert said in dataclasses.replace(found, before=known, after=after).verdict
    unknown = known._replace(u_accuracy=0.0)
    assert "Nothing" in dataclasses.replace(found, before=unknown).verdict
    shares = [evaluated(found.model, found.variables, dataset), found.after[:2]]
    np.testing.assert_allclose(*shares)


def evaluated(model, variables, dataset):
    evaluate = fuprune.make_evaluator(model, dataset, num_classes=4)
    evaluation = evaluate(variables)
    return evaluation.accuracy_on([1]), evaluation.accuracy_without([1])


def test_fine_tuning_sees_none_of_the_class_and_is_told():
    model, dataset = TinyNet(deep=False), tiny_dataset(24)
    data = clients(dataset)
    found = forget(model, tiny_variables(model), data, (1, 2), rate=0.1, rounds=2)
    assert "rounds of fine-tuning: 2" in repr(found)
    assert found.images == "the clients' images"
    # 12 of 24 images stay, and both rounds see each of them once.
    assert sum(r.metrics["images"] for r in found.result.fit.history) == 24


def test_classes_are_read_by_number_or_name_and_refused_with_the_list():
    names = ("cat", "dog", "hen")
    assert read_classes("2,cat", names) == (2, 0)
    for text in ("cow", "3", "-1", "dgo", "", "1,x"):
        with pytest.raises(InputError, match="allowed: some of 0 cat, 1 dog, 2 hen"):
            read_classes(text, names)
    with pytest.raises(InputError, match="did you mean dog"):
        read_classes("dgo", names)


def test_the_command_writes_a_slim_model_and_a_page(tmp_path, capsys):
    images, labels = tiny_dataset(40)
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    variables = tiny_variables(TinyNet(width=4, deep=False))
    flat = traverse_util.flatten_dict(variables, sep=".")
    arrays = {name: np.asarray(leaf) for name, leaf in flat.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "weights.safetensors")
    out = tmp_path / "slim.safetensors"
    flags = ["--classes", "1", "--data", f"npz:{tmp_path}/own.npz", "--clients", "2"]
    flags += ["--out", str(out), "--rate", "0.3"]
    factory = "tests.tiny:make_tiny"
    weights = ["--checkpoint", str(tmp_path / "weights.safetensors")]
    assert main(["fuprune", "forget", factory, *weights, *flags]) == 0
    assert f"Written: {out}" in capsys.readouterr().out
    assert "fuprune forget" in out.with_suffix(".md").read_text()
    assert main(["fuprune", "forget", factory, *flags]) == 2
    assert "--checkpoint" in capsys.readouterr().err


def test_an_audit_needs_a_run(capsys):
    assert main(["fuprune", "audit"]) == 2
    assert main(["fuprune", "audit", "nowhere"]) == 2
    assert re.search("no config file 'nowhere/config.json'", capsys.readouterr().err)
