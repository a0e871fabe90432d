"""Days as people have them: from midnight to midnight of a time zone, 23 or 25 hours long when clocks change."""

from datetime import UTC, datetime, time, tzinfo
from zoneinfo import ZoneInfo


def zone_named(name: str) -> ZoneInfo:
    """A time zone by its name in the IANA database.

    Raises:
        ValueError: there is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise ValueError(
            f"there is no time zone {name!r}: take a name of the IANA database, such as Europe/Berlin or UTC"
        ) from exc


def day_began(at: datetime, zone: tzinfo) -> datetime:
    """When the day of a moment began in a zone, as UTC.

    Where clocks skip midnight, a day begins with its first minute; where midnight comes twice, with the first.

    >>> day_began(datetime(2026, 3, 29, 12, tzinfo=UTC), ZoneInfo("Europe/Berlin")).isoformat()
    '2026-03-28T23:00:00+00:00'
    """
    day = at.astimezone(zone).date()
    return datetime.combine(day, time(), zone).astimezone(UTC)
