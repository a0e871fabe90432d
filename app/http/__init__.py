"""Ground floor of the service: database, errors, logs, requests, images on disk. Knows no domain."""
