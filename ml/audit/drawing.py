"""Charts as SVG inside of a page: in its colours by day and by night, and without a style of their own."""

import json
import re
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from altair.typing import ChartType

#: What has the colour of the text, whichever that is.
_INK = {"labelColor": "currentColor", "titleColor": "currentColor"}
_CONFIG = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "title": {"color": "currentColor"},
    "axis": _INK | {"gridColor": "currentColor", "gridOpacity": 0.15, "domainColor": "currentColor"},
    "header": _INK,
    "legend": _INK,
}


def svg_of(chart: "ChartType", name: str) -> Markup:
    """Draw a chart.

    Args:
        chart: of ``ml.charts``.
        name: distinguishes its parts from those of other charts on the page.
    """
    import vl_convert

    specification = chart.to_dict()
    specification["config"] = _CONFIG
    drawn = str(vl_convert.vegalite_to_svg(json.dumps(specification)))
    # parts that others refer to have the same names in every chart
    drawn = re.sub(r'\bid="', f'id="{name}-', drawn)
    drawn = re.sub(r"url\(#", f"url(#{name}-", drawn)
    # the page's policy allows no style but its own; vega escapes class names
    return Markup(re.sub(r' style="[^"]*"', "", drawn))  # noqa: S704
