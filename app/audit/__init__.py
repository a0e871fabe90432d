"""Tamper evidence: verification, anchors, keys' rotation, proofs and the sentences of the log."""
