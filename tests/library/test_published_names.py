"""What 0.1.0 published as the library is still reachable, and the change log says where it went."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import secondread

ROOT = Path(__file__).parents[2]

#: Modules of 0.1.0's library that are gone, with their public names, and the door that has them now.
PUBLISHED = {
    "ml.u_statistics": (
        "metrics",
        "Kernel disagreement_kernel u_statistic expected_statistic statistic_loss statistic_calibration_loss",
    ),
    "ml.posteriors": (
        "metrics",
        "posterior_gain_terms posterior_gain posterior_epistemic_loss exact_posterior_epistemic_loss",
    ),
    "ml.triage_curves": ("metrics", "uncertainty_scores triage_recall net_benefit net_benefit_difference"),
    "ml.exact": ("metrics", "exact_metrics"),
    "ml.gate": ("metrics", "Change paired_change paired_changes"),
    "ml.decisions": ("distributions", "class_intervals expected_gain further_labels_expected majority_prob"),
    "ml.scaling": (
        "calibration",
        "Method METHODS Scaling mixture_log_likelihood scaling_loss temperature_loss fit_temperature affine_loss "
        "fit_affine choose_scaling",
    ),
    "ml.concentration": (
        "calibration",
        "ConcentrationHead concentration_loss fit_concentration joint_loss fit_jointly HeadKind choose_head",
    ),
    "ml.optimal_concentration": (
        "calibration",
        "Moments disagreement_optimum disagreement_lower_end posterior_optimum posterior_lower_end disagreement_error "
        "posterior_epistemic_error",
    ),
    "ml.dawid_skene": ("agreement", "DawidSkene dawid_skene"),
}


def _moved() -> dict[str, tuple[str, str]]:
    """Rows of the change log's table: old module, new module, door."""
    rows = re.findall(
        r"^  \| `([\w.]+)` \| `([\w.]+)` \| (?:`([\w.]+)` )?\|$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    return {old: (new, door) for old, new, door in rows}


@pytest.mark.parametrize("module", PUBLISHED)
def test_every_published_name_is_reachable_through_its_door(module: str) -> None:
    door, names = PUBLISHED[module]
    public, (new, listed_door) = getattr(secondread, door), _moved()[module]
    assert (public.__name__, listed_door) == (f"ml.{door}", f"ml.{door}")
    moved = import_module(new)
    assert [name for name in names.split() if getattr(public, name, None) is not getattr(moved, name)] == []
    assert set(names.split()) <= set(public.__all__)


def test_names_of_modules_that_became_folders_are_where_they_were() -> None:
    names = "gini dirichlet_multinomial_nll has_concentration moment_matched softmax_probs"
    assert set(names.split()) <= set(secondread.distributions.__all__)
    agreement = "as_label_matrix count_matrix krippendorff_alpha fleiss_kappa cohen_kappa DependenceTest"
    agreement += " marginal_homogeneity_test excess_disagreement_test"
    assert set(agreement.split()) <= set(secondread.agreement.__all__)


def test_the_change_log_names_modules_that_exist() -> None:
    moved = _moved()
    assert set(PUBLISHED) | {"ml.evaluate", "ml.plots", "ml.result_plots"} == set(moved)
    for new, _ in moved.values():
        import_module(new)
