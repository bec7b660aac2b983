"""The manifests of launch/: valid, and of one mind about their numbers and names."""

import pytest
import yaml


@pytest.fixture
def jobset(repository):
    return yaml.safe_load((repository / "launch/k8s-jobset.yaml").read_text())


def job_of(jobset):
    (replicated,) = jobset["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def command_of(jobset):
    (container,) = job_of(jobset)["template"]["spec"]["containers"]
    return container["command"]


def test_processes_and_pods_agree(jobset):
    job, command = job_of(jobset), command_of(jobset)
    assert job["completionMode"] == "Indexed"
    assert f"--num_processes={job['parallelism']}" in command
    assert job["parallelism"] == job["completions"]
    assert job["backoffLimit"] == 0, "pods are restarted together or not at all"
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] > 0


def test_its_command_is_one_that_fuprune_takes(jobset, monkeypatch, tmp_path):
    """Anywhere: an image with the package has no configs/ of its own."""
    from fuprune import main

    monkeypatch.chdir(tmp_path)
    command = command_of(jobset)
    assert command[:3] == ["python3", "-m", "fuprune.main"]
    flags = [flag.replace("$(JOB_COMPLETION_INDEX)", "1") for flag in command[3:]]
    parsed = main.parse(["fuprune", *flags])
    assert (parsed.num_processes, parsed.process_id) == (2, 1)


@pytest.fixture
def federation(repository):
    text = (repository / "launch/k8s-federation.yaml").read_text()
    parts = list(yaml.safe_load_all(text))
    return {(part["kind"], part["metadata"]["name"]): part for part in parts}


def test_nodes_reach_the_gate_and_nothing_else(federation):
    link = federation["StatefulSet", "fuprune-link"]["spec"]["template"]
    node = federation["StatefulSet", "fuprune-node-0"]["spec"]["template"]
    (service,) = federation["Service", "fuprune-link"]["spec"]["ports"]
    (door,) = link["spec"]["containers"][0]["ports"]
    assert service["targetPort"] == door["containerPort"]
    flags = link["spec"]["containers"][0]["command"]
    assert f"--port={door['containerPort']}" in flags and "--host=fuprune-link" in flags
    command = node["spec"]["containers"][0]["command"]
    assert f"--superlink=fuprune-link:{service['port']}" in command
    policy = federation["NetworkPolicy", "fuprune-node"]["spec"]
    assert (
        policy["podSelector"]["matchLabels"].items()
        <= node["metadata"]["labels"].items()
    )
    assert "ingress" not in policy and set(policy["policyTypes"]) == {
        "Ingress",
        "Egress",
    }
    to = policy["egress"][0]["to"][0]["podSelector"]["matchLabels"]
    assert to == link["metadata"]["labels"]
    for pod in (link, node):
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
    mounts = node["spec"]["containers"][0]["volumeMounts"]
    assert {m["name"] for m in mounts if m.get("readOnly")} == {"keys", "data"}
