"""Other servers that do what ``POST /v1/predictions`` does, in an environment of their own that the benchmark makes.

Each is an afternoon's work with that library: read the bytes of a JPEG, decode and resize with
Pillow, normalise, run the same ``network.onnx`` with as many threads, answer class probabilities as JSON. None stores
anything, asks who is calling, or says how sure to be.
"""
