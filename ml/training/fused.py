"""Fused network: class probabilities, concentration and φ in one graph.

Computed in float32, as ``ml.calibration`` does it in float64.
"""

import numpy as np
import torch
from torch import Tensor, nn

from ml.calibration.calibration import Calibration, Refinement, Summaries
from ml.calibration.disagreement_map import ALWAYS_ALLOWED, IDENTITY, LARGEST_RISE, AnyMap, DisagreementMap, PairHead
from ml.calibration.logistic_normal import nodes
from ml.util.arrays import FloatArray

# halvings of an interval: below the rounding of float32
_STEPS = 30
_LEAST, _MOST = 1e-9, 1 - 6e-8
# steps that move members to a mean, and the share of the last one that the next repeats, which speeds them up
_MATCHING, _MOMENTUM = 40, 0.6


def _buffer(values: FloatArray) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _differ(probs: Tensor) -> Tensor:
    """Mean 1 − Σf² (N,) of sorted probabilities (N, S, K), without cancellation."""
    rest = probs[..., 1:]
    return (probs[..., 0] * rest.sum(dim=-1) + (rest * (1 - rest)).sum(dim=-1)).mean(dim=1)


def _log_sigmoid(values: Tensor) -> Tensor:
    """Exact log σ(x), also below −18."""
    return values.clamp(max=0.0) - torch.log1p(torch.exp(-values.abs()))


def _sorted(values: Tensor) -> Tensor:
    return torch.topk(values, values.shape[-1]).values


class _SummariesGraph(nn.Module):
    centre: Tensor
    spread: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, summaries: Summaries) -> None:
        super().__init__()
        for name in ("centre", "spread", "low", "high"):
            self.register_buffer(name, _buffer(getattr(summaries, name)))

    def forward(self, logits: Tensor) -> Tensor:
        logs = _sorted(torch.log_softmax(logits, dim=1))
        largest = logs[:, 0] - torch.logsumexp(logs[:, 1:], dim=1)
        entropy = -(torch.exp(logs) * logs).sum(dim=1)
        raw = torch.stack([largest, largest * largest, entropy, logs[:, 0] - logs[:, 1]], dim=1)
        standardised = (raw - self.centre) / self.spread
        return torch.minimum(torch.maximum(standardised, self.low), self.high)


class _MapGraph(nn.Module):
    slopes: Tensor

    def __init__(self, mapped: AnyMap) -> None:
        super().__init__()
        self.beta = isinstance(mapped, DisagreementMap)
        self.offset = float(mapped.offset)
        if isinstance(mapped, DisagreementMap):
            self.low, self.high = float(mapped.low), float(mapped.high)
        else:
            self.register_buffer("slopes", _buffer(mapped.slopes))
            self.knots = [float(knot) for knot in mapped.knots]

    def forward(self, dpe: Tensor) -> Tensor:
        """Logits of mapped DPEs (N,)."""
        inside = dpe.clamp(_LEAST, _MOST)
        if self.beta:
            return self.low * torch.log(inside) - self.high * torch.log1p(-inside) + self.offset
        z = torch.log(inside) - torch.log1p(-inside)
        between = [(z - low).clamp(0.0, high - low) for low, high in zip(self.knots[:-1], self.knots[1:], strict=True)]
        terms = [(z - self.knots[0]).clamp(max=0.0), *between, (z - self.knots[-1]).clamp(min=0.0)]
        return torch.stack(terms, dim=1) @ self.slopes + self.offset


class _PairGraph(nn.Module):
    weight: Tensor

    def __init__(self, head: PairHead, summaries: Summaries) -> None:
        super().__init__()
        self.share, self.bias = float(head.share), float(head.bias)
        self.register_buffer("weight", _buffer(head.weight))
        self.summaries = _SummariesGraph(summaries)

    def forward(self, mapped: Tensor, raw: Tensor, features: Tensor) -> Tensor:
        """Logarithm (N,) of φ″."""
        inside = mapped.clamp(_LEAST, _MOST)
        seen = [self.summaries(raw), (torch.log(inside) - torch.log1p(-inside)).unsqueeze(1), features]
        own = torch.sigmoid(torch.cat(seen, dim=1) @ self.weight + self.bias)
        return torch.log((1 - self.share) * mapped + self.share * own)


class _MatchGraph(nn.Module):
    def __init__(self, refinement: Refinement) -> None:
        super().__init__()
        self.mapped = _MapGraph(refinement.disagreement_map or IDENTITY)
        self.pair = None
        if refinement.pair_head is not None and refinement.pair_summaries is not None:
            self.pair = _PairGraph(refinement.pair_head, refinement.pair_summaries)

    def forward(self, logits: Tensor, a: Tensor, raw: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Calibrated logits (N, S, K) and log concentrations (N,) that match φ′."""
        below = _sorted(logits)
        below = below - below[..., :1]
        differ = _differ(torch.softmax(below, dim=-1))
        log_wanted = _log_sigmoid(self.mapped(torch.exp(_log_sigmoid(a)) * differ))
        if self.pair is not None:
            log_wanted = self.pair(torch.exp(log_wanted), raw, features)
        target = torch.exp(log_wanted)
        highest = (a + LARGEST_RISE).clamp(min=ALWAYS_ALLOWED)
        room = (differ - target).clamp(min=1e-30)
        moved = torch.where(differ > target, torch.minimum(log_wanted - torch.log(room), highest), highest)
        needed = torch.exp(log_wanted - _log_sigmoid(moved))
        # rounding alone is no reason to flatten
        sharpness = torch.where(differ < needed * (1 - 1e-5), _sharpness(below, needed), torch.ones_like(needed))
        return logits * sharpness[:, None, None], moved


def _sharpness(below: Tensor, wanted: Tensor) -> Tensor:
    """Inverse temperature (N,), at most 1, by bisection."""
    # With two leading classes 1 − Σf² is level, then steep: Newton steps would overshoot.
    low, high = torch.zeros_like(wanted), torch.ones_like(wanted)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        enough = _differ(torch.softmax(below * middle[:, None, None], dim=-1)) >= wanted
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return high


class Calibrated(nn.Module):
    """Calibration graph: logits and features to probabilities and φ."""

    scale: Tensor
    offset: Tensor
    weight: Tensor
    by_case: Tensor
    apart: Tensor

    def __init__(self, calibration: Calibration, n_classes: int) -> None:
        super().__init__()
        # W and b of the scaling, from its values at zero and the unit vectors
        offset = calibration.scaling(np.zeros((1, n_classes)))[0]
        self.register_buffer("scale", _buffer((calibration.scaling(np.eye(n_classes)) - offset).T))
        self.register_buffer("offset", _buffer(offset))
        self.constant = calibration.constant_disagreement
        refinement, head = calibration.refinement, calibration.concentration
        self.summaries = None if refinement.summaries is None else _SummariesGraph(refinement.summaries)
        if refinement.temperature_weight is not None:
            self.register_buffer("by_case", _buffer(refinement.temperature_weight))
        self.has_head = head is not None
        self.matched = None
        self.has_members = refinement.loadings is not None
        if refinement.loadings is not None:
            self.register_buffer("apart", _buffer(nodes() @ refinement.loadings.T))
        if head is not None:
            self.register_buffer("weight", _buffer(head.weight))
            self.bias = float(head.bias)
            if refinement.moves_disagreement:
                self.matched = _MatchGraph(refinement)

    def forward(self, logits: Tensor, features: Tensor) -> tuple[Tensor, ...]:
        """Outputs as ``output_names``."""
        scaled = logits @ self.scale.T + self.offset
        hidden = features
        if self.summaries is not None:
            seen = self.summaries(logits)
            scaled = scaled * torch.exp(-(seen @ self.by_case)).unsqueeze(1)
            hidden = torch.cat([features, seen], dim=1)
        a = hidden @ self.weight + self.bias if self.has_head else None
        members = self._members(scaled) if self.has_members else scaled.unsqueeze(1)
        if self.matched is not None and a is not None:
            members, a = self.matched(members, a, logits, features)
        by_member = torch.softmax(members, dim=-1)
        probs, differ = by_member.mean(dim=1), _differ(_sorted(by_member))
        stated = differ if a is None else torch.exp(_log_sigmoid(a)) * differ
        if self.constant is not None:
            stated = torch.zeros_like(stated) + self.constant
        return (probs, stated) if a is None or self.has_members else (probs, a, stated)

    def _members(self, scaled: Tensor) -> Tensor:
        """Logits (N, S, K) of members with the mean softmax(scaled)."""
        # generalised iterative scaling (Darroch and Ratcliff 1972): a graph has no solver
        target = torch.log_softmax(scaled, dim=1)
        before = mu = target
        for _ in range(_MATCHING):
            ahead = mu + _MOMENTUM * (mu - before)
            mean = torch.softmax(ahead.unsqueeze(1) + self.apart, dim=-1).mean(dim=1)
            before, mu = mu, ahead + target - torch.log(mean.clamp(min=1e-37))
        return mu.unsqueeze(1) + self.apart


class Fused(nn.Module):
    """Fused graph: image to probabilities and φ."""

    def __init__(self, network: nn.Module, calibration: Calibration, n_classes: int) -> None:
        super().__init__()
        self.network = network
        self.calibrated = Calibrated(calibration, n_classes)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Outputs as ``output_names``."""
        result: tuple[Tensor, ...] = self.calibrated(*self.network(image))
        return result


def output_names(calibration: Calibration) -> list[str]:
    """Outputs of a fused graph, in order."""
    single = calibration.concentration is not None and calibration.refinement.loadings is None
    head = ["log_concentration"] if single else []
    return ["class_probs", *head, "disagreement_prob"]
