"""Gradient norms that grow and stay grown."""

from stethoscope.detectors.loss_spike import LossSpike, LossSpikeConfig
from stethoscope.schemas.views import Step


class GradExplosionConfig(LossSpikeConfig, frozen=True, tag="grad_explosion", kw_only=True):
    """As ``loss_spike``, with limits for a quantity that is spiky by nature.

    Single steps of a hundred times the median are common, are clipped, and are gone two steps
    later; ten in a row at ten times the past are not. ``rise_ratio`` 9 is ten times the median.
    """

    lines: int = 10
    sigmas: float = 20.0
    rise_ratio: float = 9.0


class GradExplosion(LossSpike):
    """The gradient norm against its own recent past; the same rule as for the loss."""

    cause = "grad_explosion"
    noun = "gradient norm"

    def value(self, step: Step) -> float | None:
        """The norm, except on a step that the fp16 scaler skipped."""
        return None if step.skipped else step.grad_norm
