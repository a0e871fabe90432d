"""Training configs that end in seconds."""

from typing import Any

from ml.training.run_folder import TrainConfig


def quick_config(**changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "data": "cells",
        "data_options": {"count": 300, "seed": 0},
        "network": "compact",
        "epochs": 2,
        "batch_size": 32,
        "learning_rate": 2e-3,
        "warmup_epochs": 1,
        "decay_epochs": (),
        "patience": 10,
        "seed": 0,
        "precision": "float32",
        "compiled": False,
        "backbone_weights": None,
    }
    return TrainConfig(**values | changes)
