"""Navigation: six items for leads, three for annotators; an item with several pages shows them as tabs."""

from dataclasses import dataclass

from app.http.languages import gettext, gettext_noop
from app.http.principal import Principal


@dataclass(frozen=True)
class NavPage:
    """A page of an item."""

    path: str
    name: str
    current: bool


@dataclass(frozen=True)
class NavItem:
    """An item of the navigation with those of its pages that the caller may open."""

    name: str
    pages: list[NavPage]
    current: bool

    @property
    def path(self) -> str:
        """Address of the first page."""
        return self.pages[0].path


_ = gettext_noop
_LEAD = {
    _("Today"): (
        ("/today", _("Today"), "cases:read"),
        ("/worklist", _("Worklist"), "cases:read"),
        ("/flagged", _("Flagged cells"), "manage"),
    ),
    _("Cells"): (
        ("/cells", _("All cells"), "cases:read"),
        ("/specimens", _("Specimens"), "cases:read"),
        ("/imports", _("Import"), "cases:write"),
    ),
    _("Quality"): (
        ("/report", _("Report"), "metrics:read"),
        ("/report/specimens", _("Specimens"), "metrics:read"),
        ("/report/appendix", _("Statistician's appendix"), "metrics:read"),
    ),
    _("Models"): (
        ("/releases", _("Model releases"), "metrics:read"),
        ("/jobs", _("Jobs"), "metrics:read"),
        ("/readers", _("Annotator model"), "manage"),
    ),
    _("Team"): (("/people", _("People"), "manage"), ("/practice", _("Training"), "manage")),
    _("Settings"): (
        ("/policy", _("Policy"), "metrics:read"),
        ("/classes", _("Classes"), "manage"),
        ("/references", _("Reference cells"), "manage"),
        ("/audit", _("Audit log"), "manage"),
    ),
}
_ANNOTATOR = {
    _("Read"): (("/worklist", _("To read"), "reads:own"),),
    _("My work"): (
        ("/settled", _("Completed cells"), "reads:own"),
        ("/me", _("My statistics"), "reads:own"),
        ("/practice", _("Training"), "reads:own"),
    ),
    _("Atlas"): (("/references", _("Reference cells"), "reads:own"),),
}


#: Two pages of one report.
_REPORT = {"/report", "/report/appendix"}


def navigation_for(principal: Principal, path: str, query: str = "") -> list[NavItem]:
    """Items that a caller may open; the one of the present page is current, and its filters stay within the report."""
    start = path if path in {*_REPORT, "/report/specimens"} else "/" + path.split("/")[1]
    if start == "/cases":
        start = "/worklist" if principal.blind else "/cells"
    items = []
    for name, listed in (_ANNOTATOR if principal.blind else _LEAD).items():
        pages = [
            NavPage(f"{to}?{query}" if query and {to, start} == _REPORT else to, gettext(called), to == start)
            for to, called, scope in listed
            if scope in principal.scopes
        ]
        if pages:
            items.append(NavItem(gettext(name), pages, any(page.current for page in pages)))
    return items
