"""The paper's numbers, to print next to ours (AISTATS 2021, Tables 1 and 2 and the CPE tables of its supplement)."""

#: Table 1, (L_φ, CE_φ): data set → labels per validation image → method.
TABLE_1: dict[str, dict[int, dict[str, tuple[float, float]]]] = {
    "mix-mnist": {
        2: {
            "Raw": (0.0755, 0.0782),
            "Raw+α": (0.0724, 0.0524),
            "Raw+ts": (0.0775, 0.0933),
            "Raw+ts+α": (0.0699, 0.0344),
            "MCDO": (0.0749, 0.0728),
            "MCDO+α": (0.0700, 0.0277),
            "MCDO+ts": (0.0805, 0.1062),
            "MCDO+ts+α": (0.0690, 0.0155),
        },
        5: {
            "Raw": (0.0755, 0.0782),
            "Raw+α": (0.0724, 0.0531),
            "Raw+ts": (0.0773, 0.0923),
            "Raw+ts+α": (0.0702, 0.0379),
            "MCDO": (0.0749, 0.0728),
            "MCDO+α": (0.0700, 0.0285),
            "MCDO+ts": (0.0802, 0.1049),
            "MCDO+ts+α": (0.0691, 0.0188),
        },
    },
    "mix-cifar10": {
        2: {
            "Raw": (0.1521, 0.2541),
            "Raw+α": (0.0880, 0.0357),
            "Raw+ts": (0.1968, 0.3310),
            "Raw+ts+α": (0.0863, 0.0208),
            "MCDO": (0.1518, 0.2539),
            "MCDO+α": (0.0873, 0.0275),
            "MCDO+ts": (0.1996, 0.3353),
            "MCDO+ts+α": (0.0863, 0.0196),
            "TTA": (0.1677, 0.2856),
            "TTA+α": (0.0860, 0.0245),
            "TTA+ts": (0.2421, 0.3957),
            "TTA+ts+α": (0.0872, 0.0467),
        },
        5: {
            "Raw": (0.1521, 0.2541),
            "Raw+α": (0.0877, 0.0322),
            "Raw+ts": (0.1978, 0.3324),
            "Raw+ts+α": (0.0861, 0.0164),
            "MCDO": (0.1518, 0.2539),
            "MCDO+α": (0.0870, 0.0241),
            "MCDO+ts": (0.2002, 0.3362),
            "MCDO+ts+α": (0.0861, 0.0167),
            "TTA": (0.1677, 0.2856),
            "TTA+α": (0.0857, 0.0231),
            "TTA+ts": (0.2430, 0.3968),
            "TTA+ts+α": (0.0870, 0.0398),
        },
    },
}

#: Table 2, EL of the prior and of the posterior after one expert label.
TABLE_2: dict[str, dict[int, dict[str, tuple[float, float]]]] = {
    "mix-mnist": {
        2: {
            "Raw+α": (0.0388, 0.0292),
            "Raw+ts+α": (0.0379, 0.0293),
            "MCDO": (0.0395, 0.0391),
            "MCDO+ts": (0.0410, 0.0406),
        },
        5: {
            "Raw+α": (0.0388, 0.0292),
            "Raw+ts+α": (0.0379, 0.0298),
            "MCDO": (0.0395, 0.0391),
            "MCDO+ts": (0.0404, 0.0400),
        },
    },
    "mix-cifar10": {
        2: {
            "Raw+α": (0.2504, 0.0709),
            "Raw+ts+α": (0.2423, 0.0682),
            "MCDO": (0.2473, 0.2471),
            "MCDO+ts": (0.2428, 0.2425),
            "TTA": (0.2216, 0.2184),
            "TTA+ts": (0.2452, 0.2428),
        },
        5: {
            "Raw+α": (0.2504, 0.0693),
            "Raw+ts+α": (0.2423, 0.0676),
            "MCDO": (0.2473, 0.2471),
            "MCDO+ts": (0.2431, 0.2428),
            "TTA": (0.2216, 0.2184),
            "TTA+ts": (0.2451, 0.2427),
        },
    },
}

#: CPE table for two labels per validation image: accuracy, L, EL, CE.
CPE_TABLE: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "mix-mnist": {
        "Raw": (0.9629, 0.1386, 0.0388, 0.0518),
        "Raw+ts": (0.9629, 0.1376, 0.0379, 0.0473),
        "MCDO": (0.9635, 0.1392, 0.0395, 0.0425),
    },
    "mix-cifar10": {
        "Raw": (0.7965, 0.3518, 0.2504, 0.1093),
        "Raw+ts": (0.7965, 0.3437, 0.2423, 0.0687),
        "MCDO": (0.7983, 0.3488, 0.2474, 0.0955),
        "TTA": (0.8221, 0.3230, 0.2216, 0.0877),
        "TTA+ts": (0.8257, 0.3467, 0.2452, 0.1688),
    },
}


def paper_numbers(name: str) -> list[tuple[str, int, str, float]]:
    """Every number of the paper's that ours are compared with: method, labels, metric, value."""
    numbers = []
    for labels, methods in TABLE_1[name].items():
        for method, (loss, error) in methods.items():
            numbers += [(method, labels, "L_D", loss), (method, labels, "CE_D", error)]
    for labels, posteriors in TABLE_2[name].items():
        for method, (prior, posterior) in posteriors.items():
            numbers += [(method, labels, "EL", prior), (method, labels, "EL_posterior", posterior)]
    for method, values in CPE_TABLE[name].items():
        numbers += [(method, 2, metric, v) for metric, v in zip(("accuracy", "L", "EL", "CE"), values, strict=True)]
    return list(dict.fromkeys(numbers))
