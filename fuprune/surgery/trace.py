"""A network's own jaxpr, run on held arrays.

What a primitive makes of held operands is its rule, in `RULES`, or in `CALLS` if it
runs a jaxpr itself; one without a rule gets its operands in full.

`Program.examine` and `follow_cuts` run it on shapes alone, to see which layers there
are and what is left of every parameter after a plan: one that is applied to a dead
channel dies with it, and what a kernel would read of a dead channel is not stored.
"""

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from fuprune.surgery import arithmetic, layout
from fuprune.surgery.arrays import Cut, Cuts, Path, by_path, dead_value, names
from fuprune.surgery.findings import Findings, SurgeryError, Whole
from fuprune.surgery.held import (
    Held,
    Origin,
    Pair,
    in_full,
    is_static,
    normal,
    onto,
    whole,
)

# Frames of a traceback that are not the network's own code.
_NOT_THE_NETWORK = tuple(
    str(pathlib.Path(package).parent)
    for package in (jax.__file__, flax.__file__, __file__)
)
ELEMENTWISE = (
    "abs add add_any and atan2 cbrt ceil clamp convert_element_type copy copy_p cos"
    " cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le"
    " log log1p logistic lt max min mul ne neg nextafter not or pow reduce_precision"
    " rem round rsqrt select_n sign sin sinh sqrt square stop_gradient sub tan tanh xor"
).split()
# What is done if operands are held; other primitives get them in full.
RULES: dict[str, arithmetic.Rule] = {
    **dict.fromkeys(ELEMENTWISE, arithmetic.elementwise),
    "conv_general_dilated": arithmetic.convolution,
    "fuprune_conv_forward": arithmetic.kernel_convolution,
    "fuprune_batch_norm_forward": arithmetic.kernel_batch_norm,
    "dot_general": arithmetic.dot_general,
    "reduce_sum": arithmetic.reduce_sum,
    "reduce_max": arithmetic.reduce_extreme,
    "reduce_min": arithmetic.reduce_extreme,
    "reduce_window_max": arithmetic.reduce_window,
    "reduce_window_min": arithmetic.reduce_window,
    "reduce_window_sum": arithmetic.reduce_window,
    "broadcast_in_dim": layout.broadcast_in_dim,
    "concatenate": layout.concatenate,
    "pad": layout.pad,
    "reshape": layout.reshape,
    "slice": layout.slice_,
    "split": layout.split,
    "squeeze": layout.reshape,
    "transpose": layout.transpose,
}


def interpret(jaxpr, constants, operands, findings: Findings) -> list[Held]:
    """Runs a jaxpr on held arrays; `findings` are told of what parameters become."""
    values: dict[Any, Held] = {}

    def read(atom) -> Held:
        if isinstance(atom, core.Literal):
            return _constant(atom.val, atom.aval)
        return values[atom]

    values.update(zip(jaxpr.constvars, map(whole, constants), strict=True))
    values.update(zip(jaxpr.invars, operands, strict=True))
    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        results = _evaluate(eqn, operands, findings)
        if CALLS.get(eqn.primitive.name) is not _call:
            sees = any(h.sees_images for h in operands)
            results = [h._replace(sees_images=sees) for h in results]
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _constant(value, aval) -> Held:
    if np.ndim(value) or jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return whole(value)
    # Known while the network is traced: a dead channel plus one half is one half.
    number = np.asarray(value, aval.dtype)[()]
    return whole(value, number)._replace(uniform=True)


def _evaluate(eqn, operands, findings) -> list[Held]:
    name = eqn.primitive.name
    if name in CALLS:
        return CALLS[name](eqn, operands, findings)
    findings.handled.clear()
    findings.inner_work += _inner_work(eqn)
    if all(h.is_full and not h.origins and h.rest is None for h in operands):
        results = "neither a cut nor a parameter is involved"
    elif name in RULES:
        results = RULES[name](eqn, operands, findings)
    else:
        results = "there is no rule for it"
    if isinstance(results, str):
        results = _run_whole(eqn, operands, results, findings)
    _note_unhandled(operands, results, findings)
    return results


def _note_unhandled(operands, results, findings):
    """All indices stay of parameters that are used in a way nobody understood.

    Those neither live on in a result nor were noted by a rule.
    """
    going_on = set().union(*(h.origins for h in results))
    for h in operands:
        for pair in h.origins:
            if pair not in going_on and pair not in findings.handled:
                findings.read(pair, None)


def _run_whole(eqn, operands, reason, findings) -> list[Held]:
    """Runs an equation on whole operands, and notes what had to be filled in."""
    missing = sum(math.prod(h.shape) - math.prod(h.sizes) for h in operands)
    if missing:
        found = Whole(eqn.primitive.name, reason, _source(eqn), missing)
        findings.whole.append(found)
    arrays = [h.data if h.is_full else in_full(h) for h in operands]
    return [whole(result) for result in _bind(eqn, arrays)]


def _inner_work(eqn) -> int:
    """FLOPs of the products inside a loop, once per step, or inside branches."""
    found = 0
    for value in eqn.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(inner, "jaxpr", inner)
            if isinstance(jaxpr, core.Jaxpr):
                found += sum(_work(e) + _inner_work(e) for e in jaxpr.eqns)
    return found * eqn.params.get("length", 1) if found else 0


def _work(eqn) -> int:
    """FLOPs of a product of whole arrays."""
    if eqn.primitive.name not in ("dot_general", "conv_general_dilated"):
        return 0
    kernel, out = eqn.invars[1].aval.shape, math.prod(eqn.outvars[0].aval.shape)
    if eqn.primitive.name == "conv_general_dilated":
        numbers = eqn.params["dimension_numbers"]
        return 2 * out * (math.prod(kernel) // kernel[numbers.rhs_spec[0]])
    (_, contracted), _ = eqn.params["dimension_numbers"]
    return 2 * out * math.prod(kernel[axis] for axis in contracted)


def _bind(eqn, arrays) -> list[Any]:
    """Runs one equation on whole arrays, as JAX does."""
    params = eqn.primitive.get_bind_params(eqn.params)
    results = eqn.primitive.bind(*arrays, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


def _source(eqn) -> str:
    """The line of the network's own code that an equation comes from."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if not frame.file_name.startswith(_NOT_THE_NETWORK):
            return f"{frame.file_name}:{frame.line_num} ({frame.function_name})"
    return str(eqn.source_info.name_stack) or "an unknown place"


# Calls.


def _inner(eqn):
    """The jaxpr that a call runs, and its constants."""
    inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())


def _call(eqn, operands, findings) -> list[Held]:
    jaxpr, constants = _inner(eqn)
    return interpret(jaxpr, constants, operands, findings)


def _custom_jvp(eqn, operands, findings) -> list[Held]:
    """A function with a derivative of its own, which runs on the same indices."""
    if all(h.is_full and not h.origins for h in operands):
        return [whole(x) for x in _bind(eqn, [h.data for h in operands])]
    jaxpr, constants = _inner(eqn)
    results = interpret(jaxpr, constants, operands, findings)
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    # A rest that is an array may carry a gradient, which the closure below could not
    # pass on, and tangents of integers have a type that no rule knows. The formula is
    # then differentiated as it stands.
    floating = all(jnp.issubdtype(aval.dtype, jnp.floating) for aval in avals)
    if not floating or any(np.ndim(h.rest) for h in operands):
        return results
    # The formula is run again below, and what it reads has been noted above.
    silent = Findings(findings.shapes)

    @jax.custom_jvp
    def function(*arrays):
        held = _holding(operands, arrays)
        return [h.data for h in interpret(jaxpr, constants, held, silent)]

    @function.defjvp
    def derivative(primals, tangents):
        # Traced at whole shapes, as the network is; the cuts come in with `held`.
        rule = jax.make_jaxpr(lambda *pair: jax.jvp(lambda *x: _bind(eqn, x), *pair))(
            avals, avals
        )
        held = _holding(operands, primals) + [
            Held(t, h.shape, h.kept, t.dtype.type(0))
            for h, t in zip(operands, tangents, strict=True)
        ]
        found = interpret(rule.jaxpr, rule.consts, held, silent)
        # Results first, then their tangents, each on the indices of its result.
        like = [*results, *results]
        laid = [onto(h, r.kept) for h, r in zip(found, like, strict=True)]
        return laid[: len(results)], laid[len(results) :]

    return _holding(results, function(*(h.data for h in operands)))


def _holding(held, arrays) -> list[Held]:
    return [h._replace(data=array) for h, array in zip(held, arrays, strict=True)]


def _custom_vjp(eqn, operands, findings) -> list[Held]:
    """A function with a backward pass of its own, which runs on whole operands.

    If the function is elementwise, such as a rounding with a straight-through gradient,
    its formula says which of its results are cut, and they are cut again.
    """
    computed = _run_whole(eqn, operands, "its backward pass is its own", findings)
    jaxpr, constants = _inner(eqn)
    if _is_elementwise(jaxpr):
        held = interpret(jaxpr, constants, operands, findings)
        if all(h.is_full or is_static(h.rest) for h in held):
            laid = [onto(c, h.kept) for c, h in zip(computed, held, strict=True)]
            return _holding(held, laid)
    findings.handled.clear()
    _note_unhandled(operands, computed, findings)
    return computed


def _is_elementwise(jaxpr) -> bool:
    return all(
        _is_elementwise(_inner(eqn)[0])
        if eqn.primitive.name == "jit"
        else eqn.primitive.name in (*ELEMENTWISE, "broadcast_in_dim")
        for eqn in jaxpr.eqns
    )


CALLS: dict[str, Callable] = {
    **dict.fromkeys(("jit", "closed_call", "checkpoint", "remat2"), _call),
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
}


# The network as a whole.


class Program(NamedTuple):
    """A network traced at one batch, and what is cut of its variables."""

    jaxpr: Any  # closed, of the variables' leaves and then those of the arguments
    shapes: dict[Path, jax.ShapeDtypeStruct]  # of the variables, uncut
    out_paths: list[Path]  # of the leaves of the result
    out_tree: Any
    cuts: Mapping[Pair, np.ndarray]  # axis of a variable -> kept indices
    # While it is found out what the cuts bring about, parameters are taken to die with
    # the channels they are applied to, unless they are used elsewhere as well.
    explores: bool = False
    shared: frozenset[Pair] = frozenset()

    @property
    def arguments(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of the leaves of the arguments, the images first."""
        return self.jaxpr.in_avals[len(self.shapes) :]

    def kept(self, pair: Pair) -> np.ndarray:
        """The kept indices of a variable's axis, all if it is not cut."""
        path, axis = pair
        return np.asarray(self.cuts.get(pair, np.arange(self.shapes[path].shape[axis])))

    def stored(self) -> dict[Path, jax.ShapeDtypeStruct]:
        """The shapes of the variables after their cuts."""
        found = {}
        for path, x in self.shapes.items():
            sizes = [len(self.kept((path, axis))) for axis in range(len(x.shape))]
            found[path] = jax.ShapeDtypeStruct(sizes, x.dtype)
        return found

    def cuts_by_value(self) -> Cuts:
        """The cuts in the order of the variables, fit for hashing."""
        return tuple(
            Cut(path, axis - len(x.shape), x.shape[axis], tuple(kept.tolist()))
            for path, x in self.shapes.items()
            for axis in range(len(x.shape))
            if (kept := self.cuts.get((path, axis))) is not None
        )

    def run(
        self, leaves: Sequence[Any], arguments: Sequence[Any]
    ) -> tuple[list[Held], Findings]:
        """The results, held, from the stored leaves of its variables and arguments."""
        operands = []
        for leaf, (path, x) in zip(leaves, self.shapes.items(), strict=True):
            origins = {(path, i): Origin(i, True) for i in range(len(x.shape))}
            kept = normal([self.cuts.get(pair) for pair in origins], x.shape)
            dies = self.explores and not origins.keys() & self.shared
            rest = None
            # Typed keys have no number to be dead with.
            is_number = not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)
            if is_number and (dies or origins.keys() & self.cuts.keys()):
                rest = np.asarray(dead_value(path), x.dtype)[()]
            operands.append(Held(leaf, x.shape, kept, rest, origins))
        operands += [whole(x)._replace(sees_images=True) for x in arguments]
        findings = Findings(self.shapes)
        jaxpr, constants = self.jaxpr.jaxpr, self.jaxpr.consts
        return interpret(jaxpr, constants, operands, findings), findings

    def examine(self) -> tuple[list[Held], Findings]:
        """`run` on shapes alone: nothing is computed."""
        found = []

        def go(leaves, arguments):
            # By the closure: kept indices and rests are host values, which `eval_shape`
            # would turn into shapes if they were returned.
            found.append(self.run(leaves, arguments))
            return 0

        jax.eval_shape(go, list(self.stored().values()), self.arguments)
        return found[0]


def trace(function: Callable, variables: Any, arguments: Any, cuts: Cuts) -> Program:
    """Traces `function(variables, *arguments)` of an uncut network.

    The variables are cut already. All arrays may be shapes.
    """
    pairs, tree = jax.tree_util.tree_flatten_with_path(variables)
    cuts_at, shapes, kept = by_path(cuts), {}, {}
    for key, leaf in pairs:
        path, shape = names(key), list(leaf.shape)
        for cut in cuts_at.get(path, ()):
            shape[cut.axis] = cut.size
            kept[path, cut.axis + len(shape)] = np.asarray(cut.kept)
        shapes[path] = jax.ShapeDtypeStruct(shape, leaf.dtype)
    # Shapes suffice, and no array of the network ends up as a constant in the jaxpr.
    jaxpr, out = jax.make_jaxpr(function, return_shape=True)(
        jax.tree.unflatten(tree, shapes.values()), *arguments
    )
    out_pairs, out_tree = jax.tree_util.tree_flatten_with_path(out)
    return Program(jaxpr, shapes, [names(p) for p, _ in out_pairs], out_tree, kept)


def follow_cuts(program: Program) -> tuple[Program, list[Held]]:
    """Returns the program with all that its cuts bring about, and how it holds outputs.

    Each pass sees the parameters that died in the one before. The last changes nothing.
    """
    planned = program.cuts
    cuts: dict[Pair, np.ndarray] = dict(planned)
    # A gate's bias is not read where the gated channel is dead; once it is cut, the sum
    # that it enters reads it in full. What was cut in vain stays whole, which is never
    # wrong, and the passes come to an end.
    in_vain: set[Pair] = set()
    shared: set[Pair] = set()
    for _ in range(20):
        exploring = program._replace(cuts=cuts, explores=True, shared=frozenset(shared))
        _, findings = exploring.examine()
        again = not findings.shared() <= shared
        shared |= findings.shared()
        # From the plan again in every pass, so that a cut which no longer follows from
        # the others does not stay.
        after = dict(planned)
        for pair, kept in findings.reads.items():
            path, axis = pair
            if kept is None or len(kept) == program.shapes[path].shape[axis]:
                continue
            if pair not in in_vain:
                after[pair] = np.intersect1d(kept, planned.get(pair, kept))
        in_vain |= cuts.keys() - after.keys()
        same = after.keys() == cuts.keys() and not again
        if same and all(np.array_equal(after[p], cuts[p]) for p in cuts):
            settled = program._replace(cuts=cuts)
            # Without assumptions: an array is dead where its parameters are.
            return settled, settled.examine()[0]
        cuts = after
    raise SurgeryError(
        "the cuts of this network do not settle; a parameter is used in ways that"
        " disagree."
    )
