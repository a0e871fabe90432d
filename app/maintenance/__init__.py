"""Maintenance: backup, erasure, export, sweep, health."""
