"""UNSIR: images of noise that stand for the class are what the network unlearns with.

Tarun, Chundawat, Mandal and Kankanhalli, "Fast Yet Effective Machine Unlearning" (IEEE
TNNLS 2023). The server makes noise that the model takes least for the class,

    x = argmin -CE(model(x), class) + penalty mean |x|^2,

trains the model to call it the class (impair), and fine-tuning without the class
repairs what broke. The paper's impairing step mixes remaining images in, which a server
does not have.
"""

import jax
import jax.numpy as jnp
import optax

from fuprune.federated.client import split_params
from fuprune.models.adapt import adapt
from fuprune.options import option, options
from fuprune.unlearning.job import Job, UnlearnResult
from fuprune.unlearning.method import method


@options
class Options:
    """Options of unsir."""

    images: int = option(32, "images of noise per class", ge=1, le=65_536)
    noise_steps: int = option(25, "steps that make the noise, by Adam", ge=0, le=10_000)
    noise_rate: float = option(0.1, "learning rate of these steps", gt=0, le=1000)
    penalty: float = option(0.1, "weight of the noise's squared norm", ge=0)
    impair_steps: int = option(20, "steps that teach the noise", ge=0, le=10_000)
    impair_rate: float = option(0.02, "learning rate of these steps", gt=0, le=1000)


@method("unsir", options=Options)
def unsir(job: Job, o: Options) -> UnlearnResult:
    """Teach noise the names of the classes, then fine-tune without them.

    The stage `impaired` is the model before the fine-tuning.
    """
    model = adapt(job.model)
    params, rest = split_params(job.variables)
    labels = jnp.repeat(jnp.asarray(job.classes), o.images)
    shape = (len(labels), *job.data.images.shape[1:])

    def loss(params, images):
        # Statistics stay as they are: noise must leave no trace in them.
        logits = model.apply({"params": params, **rest}, images, train=False)
        logits = logits.astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.mean(losses)

    def unlike(images):
        size = jnp.mean(jnp.sum(images**2, axis=(1, 2, 3)))
        return o.penalty * size - loss(params, images)

    start, adam = jax.random.normal(job.own_key, shape), optax.adam(o.noise_rate)
    noise = descend(unlike, start, adam, o.noise_steps)
    sgd = optax.sgd(o.impair_rate)
    impaired = descend(lambda at: loss(at, noise), params, sgd, o.impair_steps)
    notes = {
        "loss_of_noise": float(loss(params, noise)),
        "loss_after_impairing": float(loss(impaired, noise)),
    }
    return job.recover({**rest, "params": impaired}, stage="impaired", notes=notes)


def descend(function, start, optimizer: optax.GradientTransformation, steps: int):
    """So many steps of an optimiser down a function."""

    def step(carry, _):
        at, state = carry
        updates, state = optimizer.update(jax.grad(function)(at), state, at)
        return (optax.apply_updates(at, updates), state), None

    run = jax.jit(lambda at: jax.lax.scan(step, (at, optimizer.init(at)), None, steps))
    return run(start)[0][0]
