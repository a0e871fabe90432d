"""A release folder: reading it, verifying it, predicting with it. Free of torch."""
