"""Infrastructure of HTTP: errors, logs, limits, languages and models. Knows no domain."""
