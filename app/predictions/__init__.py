"""Predictions: the predictor port, and predictions as they are stored."""
