"""Cases: upload, image, stored predictions."""
