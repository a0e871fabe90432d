"""Calibration of diagnostic uncertainty, from images and label histograms to a release.

Glossary
    CPE             class probability estimates ``f``, one row per case, rows sum to one
    DPE             disagreement probability estimate ``φ``: P(two annotators give different labels)
    label counts    histogram ``y``: how many of a case's ``n`` annotators gave each class
    concentration   ``α0`` of the predictive distribution Dir(α0 f) over the unknown true CPE ``q``;
                    stored and computed with as ``a = log α0``
    L, EL, CL, DL   expected squared, epistemic, calibration and dispersion loss; EL = CL + DL
    release         what is served: network + calibration + card in one verified folder

Axis letters
    ``N`` cases, ``K`` classes, ``D`` features, ``S`` ensemble members, ``C, H, W`` image channels,
    height, width.

The mathematics follows Mimori, Sasada, Matsui and Sato, "Diagnostic Uncertainty Calibration: Towards
Reliable Machine Predictions in Medical Domain", AISTATS 2021, called *the paper* in the docstrings.
This module imports nothing, so that importing one part of the package never loads another.
"""
