"""The service: cases, blind reads, posteriors, releases and honest metrics over HTTP and in the browser."""
