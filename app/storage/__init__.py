"""Storage: blobs, buckets and bundles."""
