"""fuprune inside another JAX program: no config, no files, only functions.

Trains a small network on the digits in a federation of ten clients, forgets the class
9, and prints what is left of it. Run it as it is: `python docs/embedding_example.py`.
"""

import jax
import jax.numpy as jnp
import optax

import fuprune


def main(rounds: int = 5, tune_rounds: int = 3) -> dict[str, float]:
    """Train, forget, compare; returns the accuracies it prints."""
    train = fuprune.load_dataset("digits", split="train")
    test = fuprune.load_dataset("digits", split="test")
    parts = fuprune.bias_partition(
        train.labels, num_clients=10, num_classes=10, bias=0.2, seed=0
    )
    data = fuprune.federate(train, parts)

    model = fuprune.create("resnet20", num_classes=10, input_shape=(8, 8, 1))
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))

    def algorithm(model):
        return fuprune.fed_avg(
            model,
            client_optimizer=optax.sgd(0.1, momentum=0.9),
            local_epochs=2,
            batch_size=16,
        )

    def accuracies(model, variables):
        evaluate = fuprune.make_evaluator(model, test, num_classes=10)
        result = evaluate(variables)
        return result.accuracy_on([9]), result.accuracy_without([9])

    trainer = algorithm(model)
    fitted = fuprune.fit(
        trainer,
        trainer.init(variables),
        data,
        key=jax.random.key(1),
        cohort_size=5,
        rounds=rounds,
    )

    def fine_tune(model, variables, data, key):
        trainer = algorithm(model)
        return fuprune.fit(
            trainer,
            trainer.init(variables),
            data,
            key=key,
            cohort_size=5,
            rounds=tune_rounds,
        )

    forgotten = fuprune.class_pruning(
        model,
        fitted.state.variables,
        data,
        (9,),
        key=jax.random.key(2),
        fine_tune=fine_tune,
        num_classes=10,
        rate=0.2,
    )
    before = accuracies(model, fitted.state.variables)
    after = accuracies(forgotten.model, forgotten.variables)
    print(f"before: class 9 {before[0]:.1%}, the others {before[1]:.1%}")
    print(f"after:  class 9 {after[0]:.1%}, the others {after[1]:.1%}")
    return {"u_before": before[0], "r_before": before[1], "u": after[0], "r": after[1]}


if __name__ == "__main__":
    main()
