"""Predictions: inference, stored outputs, prediction sets."""
