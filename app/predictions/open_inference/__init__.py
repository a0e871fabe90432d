"""The Open Inference Protocol v2: how programs written for Triton or KServe ask a release."""
