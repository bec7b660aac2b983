"""What an audit can be asked for; also most of the config's section `audit`."""

from collections.abc import Mapping
from typing import Annotated, Any

from fuprune.audit.record import KINDS
from fuprune.options import option, options, some_of

# A network, anything that `models.adapt` takes, and its variables.
Model = tuple[Any, Mapping[str, Any] | None]


# A table reads better by row than by argument.
# fmt: off
@options
class AuditOptions:
    """What is measured, on how many images, and what counts as equivalent."""

    tests: Annotated[str, some_of(*KINDS)] = option("all", "measures to take")
    confidence: float = option(0.95,
        "confidence of the intervals, and of the headline as a whole", ge=0.5, lt=1)
    margin_accuracy: float = option(0.005,
        "difference in accuracy that counts as equivalent", gt=0, lt=1)
    margin_range: float = option(1.0,
        "difference that counts as equivalent in all other measures, in ranges of the "
        "retrained models", gt=0)
    max_examples: int = option(2000,
        "training images looked at, forgotten ones and others each",
        ge=2, le=2**31 - 1)
    batch_size: int = option(32,
        "images per step of relearning and of shadow training", ge=1, le=65536)
    relearn_steps: int = option(20,
        "training steps of relearning", ge=1, le=1000000)
    relearn_learning_rate: float = option(0.01,
        "learning rate of relearning", gt=0, le=1000)
    relearn_draws: int = option(2,
        "times that each model is taught again", ge=1, le=1000)
    probe_images: int = option(1000,
        "test images that probes are fitted and scored on", ge=4, le=2**31 - 1)
    shadows: int = option(0,
        "shadow models for membership inference; 0 for none, else tens",
        ge=0, le=1000)
    shadow_steps: int = option(300,
        "training steps of each shadow model", ge=1, le=1000000)
    shadow_learning_rate: float = option(0.05,
        "learning rate of each shadow model, at the start", gt=0, le=1000)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of measures to take, in the order of `record.KINDS`."""
        asked = self.tests.split(",")
        return tuple(kind for kind in KINDS if "all" in asked or kind in asked)
# fmt: on
