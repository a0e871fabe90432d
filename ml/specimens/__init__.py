"""Shares of classes in a specimen, and the reads that would settle them.

A release is calibrated for the class mix of its training laboratory; every specimen has its own. ``cells`` holds
what is known of a specimen, ``own_mix`` draws its mix together with the kind of each cell, ``shares`` turns the draws
into shares with intervals and decisions, ``reads`` values further reads, and ``laboratory`` learns from specimens
of which every cell was read.
"""
