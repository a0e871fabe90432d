"""The options of the commands about LABELS and PREDICTIONS, and what their help says of the tables."""

from pathlib import Path
from typing import Annotated, Literal

import typer

TABLES_HELP = """
Tables are CSV (UTF-8, commas) or Parquet, by extension; cases are matched by case_id.

LABELS, one row per label, or where annotators are unknown one per case:

  case_id,annotator,label,patient        case_id,count:blast,count:monocyte
  cell-1,anna,monocyte,P1                cell-1,0,2
  cell-1,ben,blast,P1                    cell-2,1,1

PREDICTIONS, one row per case; disagreement_prob (or log_concentration) if
there is one:

  case_id,prob:blast,prob:monocyte,disagreement_prob
  cell-1,0.2,0.8,0.3

A column finding in both tables evaluates each finding on its own.
With --binary one column such as prob:present is enough.
More examples, ties and fractional counts: docs/reference/tables.md.
"""

LabelsFile = Annotated[Path, typer.Option(help="LABELS table, .csv or .parquet.")]
PredictionsFile = Annotated[Path, typer.Option(help="PREDICTIONS table, .csv or .parquet.")]
Bins = Annotated[int, typer.Option(min=1, help="Equal-width bins.")]
Form = Annotated[Literal["pair", "paper", "none"], typer.Option(help="How CL is corrected: pair, paper or none.")]
Weights = Annotated[str | None, typer.Option(help="Column of LABELS: weights of order 1.")]
Weights2 = Annotated[str | None, typer.Option(help="Column of LABELS: weights of order 2.")]
Cluster = Annotated[str | None, typer.Option(help="Column of LABELS that names the patient.")]
MissingChoice = Annotated[
    Literal["error", "drop"],
    typer.Option(help="A label without a prediction: refuse the tables, or leave it out and name it."),
]
Binary = Annotated[bool, typer.Option("--binary", help="One column prob:<class>; the other class is its complement.")]
LevelChoice = Annotated[
    Literal["nominal", "ordinal"],
    typer.Option(help="ordinal: classes are grades in the order of the columns; adds RPS, weighted kappa, alpha."),
]
Against = Annotated[
    Path | None, typer.Option(help="Other PREDICTIONS of the same cases: paired changes with intervals.")
]
