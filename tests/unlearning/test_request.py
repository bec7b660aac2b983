"""Requests: three kinds, one split of the federation, and who serves which."""

import chex
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from fuprune.data.federated import federate
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.request import (
    ForgetRequest,
    as_request,
    check_request,
    describe_request,
    forgotten,
    holders,
    missing_classes,
    participating,
    remaining,
    warn_of,
)
from tests.tiny import tiny_dataset
from tests.unlearning.small import (
    SmallNet,
    SoftmaxRegression,
    forget_by,
    held_by,
    initial,
    make_job,
    poisoned,
    remembering,
)

LINEAR = SoftmaxRegression(num_classes=4)
DATASET = tiny_dataset(40)
DATA = federate(DATASET, np.array_split(np.arange(40), 5))


@hypothesis.settings(max_examples=20, deadline=None)
@hypothesis.given(
    kind=st.sampled_from(ForgetRequest._fields),
    draw=st.sets(st.integers(0, 39), min_size=1, max_size=8),
)
def test_a_request_splits_the_federation_in_two(kind, draw):
    limit = {"classes": 4, "clients": 5, "examples": 40}[kind]
    request = ForgetRequest(**{kind: tuple({number % limit for number in draw})})
    gone, left = held_by(forgotten(DATA, request)), held_by(remaining(DATA, request))
    for client, (a, b) in enumerate(zip(gone, left, strict=True)):
        assert not a & b and a | b == held_by(DATA)[client]
        for image in range(40):
            if image in a | b:
                named = {
                    "classes": int(DATASET.labels[image]),
                    "clients": client,
                    "examples": image,
                }[kind]
                assert (image in a) == (named in request.targets)
    chex.assert_equal_shape([DATA.rows, remaining(DATA, request).rows])


def test_a_tuple_of_ints_is_classes():
    assert as_request((3, 1, 3)) == ForgetRequest(classes=(3, 1))
    assert as_request(np.asarray([2])).kind == "classes"
    assert describe_request(ForgetRequest(clients=(3, 17))) == "clients 3, 17"
    assert describe_request(ForgetRequest(examples=tuple(range(40)))) == "40 examples"


@pytest.mark.parametrize(
    "request_, message",
    [
        (ForgetRequest(), "names no class to forget, and no client or example"),
        (ForgetRequest((1,), (2,)), "names classes and clients; allowed: one kind"),
        ((3.7,), r"names \(3.7,\); allowed: whole numbers"),
        (ForgetRequest(examples=(np.float64(2),)), "allowed: whole numbers"),
        (ForgetRequest(clients=(5,)), "names client 5, who holds no .* 0 to 4"),
        (ForgetRequest(clients=(-1,)), "names client -1, who holds no"),
        (ForgetRequest(examples=(40,)), "names example 40, .* 0 to 39"),
        (ForgetRequest(classes=(4,)), "names class 4; allowed: 0 to 3"),
        (ForgetRequest(clients=(0, 1, 2, 3, 4)), "no example would remain"),
        (ForgetRequest(examples=tuple(range(40))), "no example would remain"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(request_, message):
    with pytest.raises(ValueError, match=message) as caught:
        forget("fine_tune_only", DATA, request_, [])
    assert "\n" not in str(caught.value)


def test_what_nobody_holds_cannot_be_forgotten():
    data = federate(DATASET, [np.arange(0, 10), [], np.arange(10, 30)])
    gone = remaining(data, ForgetRequest(clients=(0,)))
    for given, client in ((data, 1), (gone, 0)):
        with pytest.raises(ValueError, match=f"client {client}, who holds no example"):
            check_request(ForgetRequest(clients=(client,)), given)
    with pytest.raises(ValueError, match="example 35, which no client holds"):
        check_request(ForgetRequest(examples=(35,)), data)


def test_the_only_holder_of_a_class_is_warned_about():
    parts = [np.flatnonzero(DATASET.labels == u) for u in range(4)]
    data = federate(DATASET, parts)
    request = ForgetRequest(clients=(2,))
    (line,) = warn_of(data, request)
    assert "client 2 alone holds every example of class 2" in line
    assert "never sees it" in line and "forgets the whole class" in line
    assert warn_of(DATA, ForgetRequest(clients=(2,))) == []
    assert warn_of(data, ForgetRequest(classes=(2,))) == []


def test_holders_are_read_though_they_are_no_participants():
    request = ForgetRequest(clients=(3,))
    job = make_job(LINEAR, {}, DATA, participants=(0, 1))._replace(request=request)
    assert holders(DATA, request) == (3,)
    np.testing.assert_array_equal(job.forgotten.lengths, [0, 0, 0, 8, 0])
    np.testing.assert_array_equal(job.remaining.lengths, [8, 8, 0, 0, 0])


ONE_CLASS_EACH = federate(
    DATASET, [np.flatnonzero(DATASET.labels == u % 4) for u in (0, 1, 2, 3, 0, 1)]
)


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    ids=st.sets(st.integers(0, 5), min_size=1), classes=st.sets(st.integers(0, 5))
)
def test_missing_classes_are_those_no_participant_holds(ids, classes):
    held = {k % 4 for k in ids}
    missing = missing_classes(ONE_CLASS_EACH, tuple(ids), sorted(classes))
    assert missing == tuple(u for u in sorted(classes) if u not in held)


@pytest.mark.parametrize("ids", [(), (6,), (-1,)])
def test_participants_that_do_not_exist_are_refused(ids):
    with pytest.raises(ValueError, match="one or more client ids from 0 to 5"):
        participating(ONE_CLASS_EACH, ids)


def test_a_client_that_is_named_twice_takes_part_once():
    given = (SmallNet(), initial(SmallNet()), ONE_CLASS_EACH, (1,))
    options = [dict(rate=0.3, participants=ids) for ids in ((1, 2, 1), (1, 2))]
    notes = [forget_by("class_pruning", *given, **x).notes for x in options]
    assert notes[0] == notes[1] and notes[0]["participants"] == 2


REQUESTS = (
    ForgetRequest(classes=(1,)),
    ForgetRequest(clients=(1,)),
    ForgetRequest(examples=(9, 10, 22)),
)
# Those that need a history or an engine of their own have tests of their own, and
# softmax regression has no channels to cut.
CASES = [
    (name, request)
    for name, method in METHODS.items()
    for request in REQUESTS
    if not method.needs and name != "sisa"
    if request.kind != "classes" or "prune" not in method.sections
]
QUICK = {"fed_osd": {"rounds": 1}, "unsir": {"noise_steps": 2}, "ssd": {"alpha": 0.2}}


def forget(name, data, request, seen):
    tune, quick = remembering(seen), QUICK.get(name, {})
    variables = initial(LINEAR)
    return forget_by(name, LINEAR, variables, data, request, fine_tune=tune, **quick)


@pytest.mark.parametrize("name, request_", CASES)
def test_every_kind_is_served_or_refused(name, request_):
    """What is fine-tuned on is what remains; without reading, images do not matter."""
    seen, method = [], METHODS[name]
    if request_.kind not in method.serves:
        with pytest.raises(ValueError, match=f"{name} serves requests of .*, but"):
            forget(name, DATA, request_, seen)
        assert not seen
        return
    result = forget(name, DATA, request_, seen)
    if method.fine_tunes and not method.trains_on_forgotten:
        ((_, _, data, _),) = seen
        assert held_by(data) == held_by(remaining(DATA, request_))
    other = forget(name, poisoned(DATA, request_), request_, [])
    if method.reads_forgotten and not method.trains_on_forgotten:
        with pytest.raises(AssertionError):
            chex.assert_trees_all_close(result.variables, other.variables, atol=1e-7)
    else:
        chex.assert_trees_all_equal(result.variables, other.variables)
