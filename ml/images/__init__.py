"""Images: decoding, preprocessing, augmented views, statistics of stain and focus."""
