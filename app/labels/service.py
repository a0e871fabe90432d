"""Face of the labels: leases, submission, corrections and the posterior."""

from app.labels.annotator_day import LISTED, DayProgress, count_labelled_cases, get_day_progress, labelled_cases
from app.labels.batch import LabelReview, store_labels
from app.labels.corrections import correct_answer_once, list_correctable_answers
from app.labels.gallery import label_in_gallery, undo_in_gallery
from app.labels.leases import (
    MAX_LEASES,
    AlreadyLabelled,
    expire_overdue_leases,
    lease_next_read,
    list_leases,
    note_display,
    record_decline,
    release_lease,
    show_own_read,
)
from app.labels.posterior import remarks_on, show_case_posterior
from app.labels.queries import has_answered_late
from app.labels.queue import peek_next_case
from app.labels.schemas import (
    DeclineIn,
    LabelIn,
    LabelOut,
    LabelResultOut,
    OutsideLabelIn,
    OwnLabelIn,
    ReadOut,
    RetractionIn,
    RevisionIn,
)
from app.labels.submission import answer_read, label_out, retract_case_label, revise_case_label, submit_label
