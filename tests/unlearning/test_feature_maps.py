"""Figure 2: which layer and channels are shown, and what the maps are."""

import jax.numpy as jnp
import numpy as np

from fuprune.data.preprocess import to_float
from fuprune.surgery import capture
from fuprune.unlearning.feature_maps import telling_feature_maps
from tests.tiny import TinyNet, tiny_dataset, tiny_variables


def test_maps_are_those_of_the_most_and_least_telling_channel():
    """Two images of the class first, then one of each other class."""
    model, variables, dataset = TinyNet(), tiny_variables(), tiny_dataset(12)
    scores = {"conv1": [9.0, 0, 0, 0, 0, 0], "conv2": [0.1, 0.5, 0.2, 0.05, 0.1, 0.1]}
    shown = telling_feature_maps(
        model, variables, dataset, scores, target=2, prepare=to_float
    )
    assert (shown.layer, shown.most, shown.least) == ("conv2", 1, 3)
    assert shown.arrays["labels"].tolist() == [2, 2, 0, 1, 3]
    images = to_float(None, jnp.asarray(shown.arrays["images"]))
    output = capture(model, variables, images)["conv2"]
    np.testing.assert_allclose(
        shown.arrays["maps_most"], np.maximum(output[..., 1], 0), atol=1e-6
    )
    following = [np.maximum(output[..., channel], 0) for channel in (2, 0)]
    np.testing.assert_allclose(shown.arrays["maps_next"], following, atol=1e-6)
