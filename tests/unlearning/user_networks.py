"""Networks that nobody here wrote: the ways in which users build Linen modules."""

import flax.linen as nn
import jax.numpy as jnp


class NormOnto(nn.Module):
    """A norm that adds a residual, handed over by keyword."""

    @nn.compact
    def __call__(self, x, *, onto=None, shift=None):
        x = nn.GroupNorm(num_groups=2)(x) * self.param("gain", nn.initializers.ones, ())
        x = x if shift is None else x + shift
        return x if onto is None else x + onto


class Residual(nn.Module):
    """Residuals by keyword and by position; an unbatched table as long as a batch."""

    width: int = 4

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        x = nn.Conv(self.width, (3, 3))(images)
        for i in range(2):
            y = nn.relu(nn.GroupNorm(num_groups=2)(x))
            y = nn.Conv(self.width, (3, 3), name=f"inner{i}")(y)
            table = jnp.linspace(0.0, 1.0, self.width)
            x = NormOnto(name=f"onto{i}")(y, onto=x, shift=table)
        return nn.Dense(4, name="head")(jnp.mean(nn.relu(x), axis=(1, 2)))


class Gate(nn.Module):
    """Two batches in by position, and a pair out of one of them."""

    @nn.compact
    def __call__(self, x, others):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        return x * scale + nn.Dense(x.shape[-1])(jnp.tanh(others["first"]))


class Gated(nn.Module):
    """A module that owns a parameter and a child, and reads a dictionary."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        x = nn.Dense(5)(images.reshape(images.shape[0], -1))
        x = Gate()(x, {"first": jnp.cos(x)})
        return nn.Dense(4, name="head")(x)


class Tied(nn.Module):
    """A kernel read a second time, past its module's call."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        flat = images.reshape(images.shape[0], -1)
        layer = nn.Dense(5, name="inner")
        x = jnp.tanh(layer(flat))
        back = jnp.tanh(x @ layer.variables["params"]["kernel"].T)
        return nn.Dense(4, name="head")(back)


class Rematerialised(nn.Module):
    """Layers inside a lifted transformation."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        x = nn.remat(nn.Dense)(5)(images.reshape(images.shape[0], -1))
        return nn.Dense(4, name="head")(jnp.tanh(x))


class WeightNormed(nn.Module):
    """A kernel that is computed from the parameters."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        x = nn.WeightNorm(nn.Dense(5))(images.reshape(images.shape[0], -1))
        return nn.Dense(4, name="head")(jnp.tanh(x))


class Standardised(nn.Module):
    """A kernel mapped on its way into a plain convolution."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        def standardise(tree):
            kernel = tree["params"]["kernel"]
            return {"params": {**tree["params"], "kernel": kernel - jnp.mean(kernel)}}

        layer = nn.map_variables(
            nn.Conv, "params", standardise, init=self.is_initializing()
        )
        x = nn.relu(layer(4, (3, 3))(images))
        return nn.Dense(4, name="head")(jnp.mean(x, axis=(1, 2)))


class Tokens(nn.Module):
    """Positions first: an axis that may be as long as the batch."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        x = images[:, :3, :, 0].swapaxes(0, 1)  # [3, B, W]
        x = jnp.tanh(nn.Dense(5)(x))
        return nn.Dense(4, name="head")(jnp.mean(x, axis=0))


class Scaled(nn.Module):
    """A layer that multiplies another one's answer, whoever owns that one."""

    inner: nn.Module

    @nn.compact
    def __call__(self, x):
        return self.param("scale", nn.initializers.ones, ()) * self.inner(x)


class Borrowed(nn.Module):
    """A layer handed to another module and used by it."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        layer = nn.Dense(5, name="lent")
        flat = images.reshape(images.shape[0], -1)
        x = jnp.tanh(Scaled(layer)(flat) + layer(flat * 0.5))
        return nn.Dense(4, name="head")(x)


class Lent(nn.Module):
    """A layer that only another module calls."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        layer = nn.Dense(5, name="lent")
        x = jnp.tanh(Scaled(layer)(images.reshape(images.shape[0], -1)))
        return nn.Dense(4, name="head")(x)


class Attended(nn.Module):
    """An embedding that is also read by another of its methods."""

    @nn.compact
    def __call__(self, images, train=False, mask=None):
        embed = nn.Embed(5, 6)
        codes = jnp.clip(images[:, 0, :, 0] * 5, 0, 4).astype(jnp.int32)
        x = jnp.mean(embed(codes), axis=1)
        return nn.Dense(4, name="head")(jnp.tanh(embed.attend(x)))


NETWORKS = {
    network.__name__: network
    for network in (
        Residual,
        Gated,
        Tied,
        Rematerialised,
        WeightNormed,
        Standardised,
        Tokens,
        Borrowed,
        Lent,
        Attended,
    )
}
