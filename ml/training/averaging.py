"""A moving average of a network's weights: what is validated and kept where the configuration asks for it."""

from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ml.training.networks import Network

Tensors = tuple[Tensor, ...] | list[Tensor]


def average_weights(network: Network, decay: float) -> AveragedModel:
    """Moving average of a network's weights, and of the statistics that its normalisation keeps.

    It reaches back over all steps so far until these are about 9 / (1 − decay), so that short runs are
    averaged over a tenth of themselves and not mostly over the random start.
    """

    def update(averages: Tensors, current: Tensors, steps: Tensor | int) -> None:
        get_ema_multi_avg_fn(min(decay, (1 + int(steps)) / (10 + int(steps))))(averages, current, steps)

    return AveragedModel(network, multi_avg_fn=update, use_buffers=True)
