"""Distance from the training cells, perceptual hash and stain."""

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from ml.datasets.cells import simulate_cell
from ml.images.image_quality_features import optical_density
from ml.images.picture import difference_hash, hash_distance
from ml.release.ood_detector import FeatureDistance, fit_feature_distance
from ml.util.arrays import FloatArray


@pytest.mark.parametrize(("n", "d"), [(400, 8), (60, 128)])
def test_familiar_cells_are_within_and_strange_ones_beyond(n: int, d: int) -> None:
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(d, d)) / np.sqrt(d)
    known, held_out, new = (rng.normal(size=(m, d)) @ mix + 3 for m in (n, 2000, 2000))
    found = fit_feature_distance(known, held_out)
    assert found is not None
    detector = found.as_detector(2)

    def flagged(features: FloatArray) -> npt.NDArray[np.bool_]:
        named = np.arange(len(features)) % 2
        scores = detector.judge(features, named, None, {})
        np.testing.assert_array_equal(scores.distance > 1, scores.flagged)
        assert np.isnan(scores.percentile).all()
        return scores.flagged

    np.testing.assert_array_equal(flagged(new), found(new) > found.threshold)
    assert flagged(held_out).mean() == pytest.approx(0.005, abs=0.001)
    assert flagged(new).mean() < 0.012
    assert flagged(new + 6 * mix[0]).mean() > flagged(new).mean()
    assert flagged(np.full((1, d), np.nan)).all()
    again = FeatureDistance.from_bytes(found.to_bytes())
    np.testing.assert_array_equal(again(new), found(new))


def test_a_feature_that_never_varies_does_no_harm() -> None:
    rng = np.random.default_rng(1)
    known = np.concatenate([rng.normal(size=(50, 3)), np.zeros((50, 1))], axis=1)
    found = fit_feature_distance(known, known)
    assert found is not None
    assert np.isfinite(found(known)).all()


def test_too_few_cells_give_none_and_bad_bytes_an_error() -> None:
    assert fit_feature_distance(np.ones((5, 2)), np.ones((50, 2))) is None
    with pytest.raises(ValueError, match="not a feature distance"):
        FeatureDistance.from_bytes(b"x")
    with pytest.raises(ValueError, match="misshapen"):
        FeatureDistance(np.zeros(2), np.zeros((3, 3)), 1.0)
    with pytest.raises(ValueError, match="must be"):
        FeatureDistance(np.zeros(2), np.eye(2), 1.0)(np.zeros((1, 3)))


def test_near_duplicates_have_near_hashes_and_other_cells_do_not() -> None:
    cells = [Image.fromarray(simulate_cell(i, seed=9, size=96).pixels) for i in range(12)]
    hashes = [difference_hash(cell) for cell in cells]
    for cell, own in zip(cells, hashes, strict=True):
        brighter = Image.fromarray(np.clip(np.asarray(cell).astype(int) + 8, 0, 255).astype(np.uint8))
        smaller = cell.resize((90, 90))
        assert hash_distance(own, difference_hash(brighter)) <= 4
        assert hash_distance(own, difference_hash(smaller)) <= 4
        assert -(2**63) <= own < 2**63
    apart = [hash_distance(a, b) for i, a in enumerate(hashes) for b in hashes[:i]]
    assert min(apart) > 4
    assert difference_hash(Image.new("RGB", (50, 50), "white")) == 0


def test_optical_density_is_that_of_the_colour() -> None:
    assert optical_density(np.full((4, 4, 3), 255, dtype=np.uint8)) == (0.0, 0.0, 0.0)
    red = np.zeros((2, 2, 3), dtype=np.uint8)
    red[..., 0] = 255
    assert optical_density(red) == pytest.approx((0.0, np.log10(256), np.log10(256)))
    assert optical_density(np.full((2, 2, 1), 25, dtype=np.uint8)) == pytest.approx((np.log10(256 / 26),) * 3)
