"""Errors of the labels."""

from app.http.errors import Conflict


class AlreadyLabelled(Conflict):
    """An annotator labels a case twice."""

    code, title = "already-labelled", "Already labelled"


class LabelSuperseded(Conflict):
    """The label is no longer the last of its chain."""

    code, title = "superseded", "Label superseded"


class LeaseLost(Conflict):
    """The lease ended, and somebody else has the read or it is closed."""

    code, title = "lease-lost", "Lease lost"


class LabelFinal(Conflict):
    """The time for blind corrections of an answer is over, or there is no answer."""

    code, title = "label-final", "Label final"


class TooManyLeases(Conflict):
    """An annotator leases more cases than they read just now and next."""

    code, title = "too-many-leases", "Too many leases"
