"""Estimated cycles are added up as often as their loops turn."""

import pathlib

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
MODULE = """HloModule jit_round, is_scheduled=true

%groups_condition (p: (s32[])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(3)
  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %constant.1), direction=LT
}

%steps_condition (p: (s32[], s32[])) -> pred[] {
  ROOT %lt.2 = pred[]{:T(512)} compare(%i, %bound), direction=LT
}

%steps_body (p: (s32[], s32[])) -> (s32[], s32[]) {
  %fusion.1 = f32[8] fusion(%x), backend_config={"estimated_cycles":"100"}
}

%groups_body (p: (s32[])) -> (s32[]) {
  %fusion.2 = f32[8] fusion(%x), backend_config={"estimated_cycles":"10"}
  %while.1 = (s32[]) while(%t), condition=%steps_condition, body=%steps_body
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %copy.1 = f32[8] copy(%x), backend_config={"estimated_cycles":"1"}
  %while.2 = (s32[]) while(%t), condition=%groups_condition, body=%groups_body, metadata
}
"""


@pytest.fixture
def count_cycles(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import accelerator_estimate

    return accelerator_estimate.count_cycles


def test_loops_count_as_often_as_they_turn(count_cycles):
    """Three groups of four steps: the loop over steps has no constant bound."""
    assert count_cycles(MODULE, 4) == 1 + 3 * (10 + 4 * 100)


def test_what_cannot_be_counted_is_refused(count_cycles):
    """A branch has no one cost; leaving it out would flatter."""
    branch = MODULE.replace("copy(%x)", "conditional(%x)")
    with pytest.raises(ValueError, match="cannot count"):
        count_cycles(branch, 4)
