"""Whether a candidate lives on one annotator's labels: what it gains by all labels, and what without theirs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from ml.metrics.paired_change import Change, shifts_of

#: Probability that a candidate of annotators who are alike is refused because it seems to lean on one of them.
FALSE_REFUSALS = 0.025


@dataclass(frozen=True)
class Stability:
    """The judgement by all labels, with which the one without each annotator is compared.

    Attributes:
        whole: change from champion to candidate by all labels.
        cluster: (N,) patients of the cases.
        n_annotators: who are left out in turn.
    """

    whole: Change
    cluster: npt.NDArray[np.int64]
    n_annotators: int

    @property
    def limit(self) -> float:
        """Standard errors that a change may be worse without one annotator.

        Two would refuse every fifth to third good candidate of five annotators, since each of them is tried twice.
        """
        return -float(ndtri(FALSE_REFUSALS / (2 * max(self.n_annotators, 1))))

    def reasons(self, name: str, change: Change) -> list[str]:
        """Why a candidate is refused that is worse without one annotator; none where it is as good.

        Args:
            name: of the annotator.
            change: from the champion to a candidate fitted without their labels, by the others' labels of the same
                cases.
        """
        words = {"L": "L", "L_D": "L_φ"}
        return [
            f"the change of {words[loss]} leans on {name}: without their labels it is {shift.value:.4f} worse "
            f"({shift.value / shift.se:.1f} standard errors, {self.limit:.1f} are allowed)"
            for loss, shift in shifts_of(change, self.whole, self.cluster).items()
            if shift.se > 0 and shift.value > self.limit * shift.se
        ]
