"""What keeps the service safe: backup, restore, erasure, export, verification, health, the demo."""
