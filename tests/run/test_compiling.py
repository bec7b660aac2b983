"""The clock of programs counts nested steps once, and what JAX really compiles."""

import time

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp

from fuprune.run import compiling


def intervals(tree, start):
    """A tree of nested steps as (start, end), inner ones first, and the outer end."""
    now, found = start + 1, []
    for child in tree:
        inner, now = intervals(child, now)
        found += inner
        now += 1
    return [*found, (start, now)], now


TREES = st.recursive(
    st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=9
)


@hypothesis.given(st.lists(TREES, max_size=4))
def test_time_covered_by_nested_steps_is_counted_once(trees):
    watch, now, expected = compiling.Stopwatch(), 0, 0
    for tree in trees:
        found, end = intervals(tree, now)
        for start, stop in found:
            watch.add(start, stop)
        expected += end - now
        now = end + 1
    assert watch.total() == expected


def test_steps_of_two_threads_that_overlap_are_not_added():
    watch = compiling.Stopwatch()
    watch.add(0.0, 2.0)
    watch.add(1.0, 3.0)
    assert watch.total() == 3.0
    watch.add(1.5, 2.5)  # of a thread that was slow to report
    assert watch.total() == 3.0


def test_a_compiled_function_takes_time_once():
    @jax.jit
    def function(x):
        return jnp.sin(x) @ jnp.cos(x.T)

    start, before = time.monotonic(), compiling.seconds()
    jax.block_until_ready(function(jnp.ones((3, 3))))
    taken = compiling.seconds() - before
    assert 0 < taken <= time.monotonic() - start
    jax.block_until_ready(function(jnp.ones((3, 3))))
    assert compiling.seconds() - before == taken
