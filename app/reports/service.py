"""Face of the reports: the published report and frozen evaluations."""

from app.reports.charts import (
    AxisTick,
    DrawnReport,
    PlotMark,
    ReportPlot,
    connect_neighbours,
    draw_operating_curve,
    draw_report,
    format_day,
)
from app.reports.frozen_evaluations import (
    EVALUATIONS,
    evaluation_folder,
    list_evaluations,
    read_evaluation,
    read_report_file,
    request_evaluation,
    shared_folder_name,
    snapshot_sha256,
)
from app.reports.publishing import read_published_report, request_report
from app.reports.report import FILTERS, METRIC_MEANINGS, STYLE, TEMPLATES, chart_csv
from app.reports.schemas import PublishedReport, ReportBody, SecondReadsOut, TrendOut, WhatIfOut
from app.reports.sentences import doubt_triage
from app.reports.targets import TargetsIn, TargetsOut, current_targets, set_targets
