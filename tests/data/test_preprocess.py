import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.data.preprocess import crop_and_flip, normalise


def draw_images(shape=(24, 6, 5, 3), dtype=np.uint8):
    # No zeros, so that padding cannot be mistaken for image.
    return np.random.default_rng(0).integers(1, 256, size=shape).astype(dtype)


def every_view(image, padding):
    """All crops of the padded image and their mirror images."""
    height, width, _ = image.shape
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    views = []
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = padded[top : top + height, left : left + width]
            views += [crop, crop[:, ::-1]]
    return np.stack(views)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_each_image_becomes_one_of_its_crops_or_their_mirror(dtype):
    images = draw_images(dtype=dtype)
    result = np.asarray(crop_and_flip(jax.random.key(3), images, padding=2))
    assert result.dtype == dtype
    chosen = []
    for image, view in zip(images, result, strict=True):
        matches = np.flatnonzero((every_view(image, 2) == view).all(axis=(1, 2, 3)))
        assert len(matches) == 1
        chosen.append(matches[0])
    # Images of a batch do not move together.
    assert len(set(chosen)) > 10


def test_every_shift_and_both_sides_are_drawn():
    image = draw_images((1, 3, 3, 1))
    batch = jnp.asarray(np.repeat(image, 2_000, axis=0))
    result = np.asarray(crop_and_flip(jax.random.key(0), batch, padding=1))
    views = every_view(image[0], 1)
    times = (result[:, None] == views[None]).all(axis=(2, 3, 4)).sum(axis=0)
    assert times.sum() == 2_000
    # 18 views: 111 each, with a standard deviation of 10.
    np.testing.assert_allclose(times, 2_000 / 18, atol=50)


def test_normalise_scales_each_channel_on_the_host_as_on_the_device():
    images = draw_images()
    mean, std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    host, device = (
        normalise(images, mean, std),
        normalise(jnp.asarray(images), mean, std),
    )
    assert isinstance(host, np.ndarray) and isinstance(device, jax.Array)
    np.testing.assert_array_equal(host, device)
    expected = (images / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(host, expected, atol=1e-5)
