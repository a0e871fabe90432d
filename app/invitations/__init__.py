"""Invitations: a link that signs an annotator in once, for named cells."""
