"""Which demo a HOME has, and filling it: real cells, or simulated ones whose release is trained here."""

from app.context import Context
from app.demo.notice import write_notice
from app.demo.people import Say, ensure_accounts
from app.demo.real_cells import ensure_real_cases, ensure_shipped_release, serves_real_cells
from app.releases.queries import champion


def fill_demo(context: Context, say: Say, *, train: bool = False) -> None:
    """Add what the demo lacks; a HOME that serves a release already keeps it.

    Args:
        context: parts of the service.
        say: where to report what is being done.
        train: the simulated demo, for a HOME without a release.

    Raises:
        ValueError: the HOME has real cells, and simulated ones are asked for.
    """
    with context.database.read() as session:
        is_new = champion(session) is None
    real = not train if is_new else serves_real_cells(context)
    if real and train:
        raise ValueError(
            "this HOME has the demo on real cells; the simulated one needs a HOME of its own, for example "
            "`SECONDREAD_HOME=.simulated secondread demo --train`"
        )
    if real:
        ensure_shipped_release(context, say)
    else:
        from app.demo.training import ensure_trained_release  # loads torch

        ensure_trained_release(context, say)
    with context.database.write() as session:
        ensure_accounts(session, context)
    if real:
        ensure_real_cases(context, say)
    else:
        from app.demo.simulated import ensure_cases

        ensure_cases(context, say)
    write_notice(context.settings.home, real=real)
