"""Check of specimens from the command line, and its text."""

from collections.abc import Iterator, Sequence

from app.context import ServiceContext
from app.demo.people import progress_bar
from app.specimens.learning import GroupCheck, check_specimens
from ml.specimens.laboratory import FEWEST_SPECIMENS


def check_local(context: ServiceContext, *, shown: bool) -> list[GroupCheck]:
    """Check the specimens of a home, with a bar where people look on."""
    with context.database.read() as session:
        if not shown:
            return check_specimens(session)
        with progress_bar("measuring completely read specimens", None) as bar:
            return check_specimens(session, bar.update)


def describe_checks(checks: Sequence[GroupCheck]) -> Iterator[str]:
    """Lines for people."""
    n = max((check.n_specimens for check in checks), default=0)
    yield f"{n:,} completely read specimens of patients that the release was not trained on"
    if n < FEWEST_SPECIMENS:
        yield (
            f"fewer than {FEWEST_SPECIMENS}: answers assume that the cells of a specimen are independent; "
            f"read every cell of {FEWEST_SPECIMENS - n} more specimens"
        )
    for check in checks if n else ():
        counted = f"{check.n_covered:,} of {check.n_specimens:,} ({check.n_covered / check.n_specimens:.0%})"
        yield f"{check.group}: the 95% interval of the slide contains the share by all labels in {counted}"
        for band in check.by_share:
            if band.n_specimens:
                yield f"  share {band.low:.0%} to {band.high:.0%}: {band.n_covered:,} of {band.n_specimens:,}"
        if check.n_specimens >= FEWEST_SPECIMENS:
            of_patients = f"cells of a patient share a shift of {check.shift:.2f} on the log-odds"
            yield f"  overdispersion {check.overdispersion:.2f}; {of_patients}"
