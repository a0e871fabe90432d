"""Controls of the service, each undone by a patch, and the test that must turn red."""
