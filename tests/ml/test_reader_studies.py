"""Percent correct and the area under the curve over readers and cases, against published worked examples.

Ratings: Van Dyke, White, Obuchowski, Geisinger, Lorig and Meziane 1993, 79th RSNA meeting: 114 patients, 45 of whom had
a dissection of the thoracic aorta, rated from 1 to 5 by five readers on two kinds of magnetic resonance imaging.
Results: Smith, Hillis and Pesce, MRMCaov 0.3.0 (user guide, sections "Binary Metrics", "Covariance Estimation" and
"Study Designs"), with the covariance of Gallas, Pennello and Myers 2007 for areas and the jackknife for shares.
"""

import numpy as np
import pytest

from ml.metrics.reader_studies import ReaderMean, area_under_curve, percent_correct
from ml.util.arrays import FloatArray

TRUTH = np.repeat([0, 1], [69, 45])
CINE = [
    "122151111111411111111131311214111113121211233131133111111221111332111555545554555434245555555154454553555115554451",
    "232222222322522232222222422223222222222222222222222222222432232222222535555542555442225555555243354552425225555352",
    "222235112242422232221232411322112224121412112222223211211221151421212545555555555542355555555252255552555225555552",
    "111111311111111111112111211112111111111111111111331111111111111311111555555555555555155555555554544553555125555555",
    "351211112221211122113221111211211231221113332111211111111341231212113525255551545452235555554144322151515115553552",
]
SPIN_ECHO = [
    "333222223213122222211111421312214323123122233111333113412421241442111535555554555544335555555355355554455535555551",
    "322222223222222122221222322222212212222231223222222222322322222222122535555552555344245455545252355532425525555552",
    "242222322211132222121121411512112122212221132111233113221232341242121525555555555354145555555253355543555534555551",
    "221111312111122111211111321212111122112111112121212211111212111323211545555554555455555555555455445555555535555555",
    "223122221222111222122212322321212222112121132122332122221222231233111525455555455343335555555251332532545533555553",
]


def ratings(lines: list[str]) -> FloatArray:
    return np.array([[float(digit) for digit in line] for line in lines])


def printed(study: ReaderMean) -> list[str]:
    """Estimate, MS(R), Cov2, StdErr, df and both ends, as R prints seven digits."""
    return [
        f"{value:.7g}"
        for value in (
            study.value,
            study.reader_mean_square,
            study.covariance,
            study.se,
            study.df,
            study.low,
            study.high,
        )
    ]


@pytest.mark.parametrize(
    ("lines", "published"),
    [
        (CINE, ["0.897037", "0.003082629", "0.0004771788", "0.0330712", "12.58802", "0.8253526", "0.9687214"]),
        (SPIN_ECHO, ["0.9408374", "0.001304602", "0.0002009512", "0.0214912", "12.53391", "0.8942323", "0.9874424"]),
    ],
)
def test_areas_are_the_published_ones(lines: list[str], published: list[str]) -> None:
    assert printed(area_under_curve(ratings(lines), TRUTH)) == published


def test_the_difference_of_areas_is_the_published_one() -> None:
    study = area_under_curve(ratings(CINE), TRUTH, minus=ratings(SPIN_ECHO))
    assert [f"{value:.7g}" for value in (study.value, study.se, study.df)] == ["-0.04380032", "0.02067154", "15.03418"]
    assert f"{study.low:.10f} {study.high:.10f}" == "-0.0878519409 0.0002512968"


def test_of_readers_who_read_other_cases_only_their_own_spread_counts() -> None:
    nested = np.full((5, 5 * 114), np.nan)
    for reader, row in enumerate(ratings(CINE)):
        nested[reader, 114 * reader : 114 * (reader + 1)] = row
    study = area_under_curve(nested, np.tile(TRUTH, 5))
    assert f"{study.se:.7g} {study.df:.3g} {study.low:.7f} {study.high:.7f}" == "0.02482994 4 0.8280981 0.9659760"


@pytest.mark.parametrize(
    ("lines", "published"),
    [
        (CINE, ["0.8222222", "0.009135802", "0.001646465", "0.05893747", "14.45681", "0.6961876", "0.9482568"]),
        (SPIN_ECHO, ["0.92", "0.00508642", "0.000382716", "0.03741657", "7.575855", "0.8328691", "1"]),
    ],
)
def test_shares_are_the_published_ones(lines: list[str], published: list[str]) -> None:
    correct = ratings(lines)[:, TRUTH == 1] >= 3
    assert printed(percent_correct(correct)) == published


def test_the_difference_of_shares_is_the_published_one() -> None:
    cine, spin_echo = (ratings(lines)[:, TRUTH == 1] >= 3 for lines in (CINE, SPIN_ECHO))
    study = percent_correct(cine, minus=spin_echo)
    assert [f"{value:.7g}" for value in (study.value, study.se, study.df)] == ["-0.09777778", "0.03780451", "15.71732"]
    assert f"{study.low:.7f} {study.high:.7f}" == "-0.1780371 -0.0175185"


def test_the_order_of_readers_and_cases_does_not_matter() -> None:
    rng, rows = np.random.default_rng(0), ratings(CINE)
    order, readers = rng.permutation(114), rng.permutation(5)
    one, other = area_under_curve(rows, TRUTH), area_under_curve(rows[readers][:, order], TRUTH[order])
    assert one.se == pytest.approx(other.se, rel=1e-9)
    assert percent_correct(rows >= 3).se == pytest.approx(percent_correct(rows[readers][:, order] >= 3).se, rel=1e-9)


@pytest.mark.parametrize(
    ("readings", "said"),
    [
        ([[1, 0], [1, 0]], "three readers"),
        ([[1, 0], [1, 2], [0, 1]], "1, 0 or NaN"),
        ([[1, np.nan], [1, 0], [0, 1]], "two cases"),
    ],
)
def test_what_cannot_be_a_study_is_refused(readings: list[list[float]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        percent_correct(readings)
    with pytest.raises(ValueError, match="named columns"):
        percent_correct({"case": [1, 1, 0]})
    with pytest.raises(ValueError, match="two cases with and two without"):
        area_under_curve(np.ones((3, 3)), [1, 0, 0])
