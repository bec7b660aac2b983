"""Units that differ in their key alone train with one compiled program."""

from fuprune.federated.objective import classification
from fuprune.run import assembly


def test_seeds_share_an_algorithm(monkeypatch):
    """The same model, rounds and rates give the same object; anything else does not."""
    calls = []
    monkeypatch.setattr(
        assembly, "make_algorithm", lambda *a, **k: calls.append(k) or object()
    )
    made = {}

    def algorithm(model="net", objective=None, rounds=20):
        schedule = assembly.Schedule(rounds, 0.1)
        return assembly.shared_algorithm(
            made, "setup", model, schedule, objective=objective
        )

    first = algorithm()
    assert algorithm() is first and len(calls) == 1
    assert algorithm(rounds=10) is not first
    assert algorithm(model="slim") is not first
    # An objective may hold arrays of its own, and a network without a hash is no key.
    own = classification(0.1)
    assert algorithm(objective=own) is not algorithm(objective=own)
    assert algorithm(model=["net"]) is not algorithm(model=["net"])
    assert len(calls) == 7
