"""Many cases at once: a zip of images with a manifest, row by row, resumable."""
