"""What a cut does to one array: entries are taken out, or filled with a constant."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def cut_array(
    array: Any, axes: Sequence[tuple[int, Any]], dead: float | None = None
) -> Any:
    """An array cut along some axes.

    Args:
      array: of NumPy or JAX, traced or not; without axes to cut it comes back as it is.
      axes: (axis, kept positions) of each axis to cut; axes may count from the end.
      dead: what the other entries are filled with; None takes them out.
    """
    if not axes:
        return array
    numpy = jnp if isinstance(array, Tracer) else np
    result = array if numpy is jnp else np.asarray(array)
    for axis, positions in axes:
        if dead is None:
            result = numpy.take(result, np.asarray(positions), axis=axis)
            continue
        kept = np.isin(np.arange(array.shape[axis]), positions)
        # Broadcasts along the axes behind; those in front need nothing.
        kept = kept.reshape([-1] + [1] * (array.ndim - axis % array.ndim - 1))
        result = numpy.where(kept, result, np.asarray(dead, array.dtype))
    if isinstance(array, Tracer) or not isinstance(array, jax.Array):
        return result
    # Cut on the host, where a hundred different shapes need no compilation, and sent
    # back to wherever the array was.
    return jax.device_put(result, array.sharding)
