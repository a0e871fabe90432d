"""What the API says about itself: its OpenAPI document, examples of real requests, and the view that pages draw."""
