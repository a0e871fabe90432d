"""Days as people have them: from midnight to midnight of a time zone, 23 or 25 hours long when clocks change."""

from datetime import UTC, datetime, time, tzinfo
from zoneinfo import ZoneInfo


def load_time_zone(name: str) -> ZoneInfo:
    """A time zone by its name in the IANA database."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise ValueError(
            f"there is no time zone {name!r}: take a name of the IANA database, such as Europe/Berlin or UTC"
        ) from exc


def start_of_day(at: datetime, zone: tzinfo) -> datetime:
    """Start of a moment's day in a time zone, as UTC.

    >>> start_of_day(datetime(2026, 3, 29, 12, tzinfo=UTC), ZoneInfo("Europe/Berlin")).isoformat()
    '2026-03-28T23:00:00+00:00'
    """
    # Where clocks skip midnight, a day begins with its first minute; where midnight comes twice, with the first.
    day = at.astimezone(zone).date()
    return datetime.combine(day, time(), zone).astimezone(UTC)
