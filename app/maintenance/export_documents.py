"""Documents by which other tools read an export: tasks of Label Studio, metadata of Croissant."""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import pyarrow as pa

from app.metrics.service import LabelColumns
from ml.tables.reading import read_table
from ml.util.files import file_sha256

#: Tables that Croissant describes; the audit log is no data.
_TABLES = ("labels", "predictions", "specimens", "classes")
_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
#: Context of Croissant 1.0, which its validator compares.
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS},
}


def write_label_studio(
    out: Path, classes: Sequence[str], files: Sequence[str], case_ids: Sequence[str], labels: LabelColumns
) -> None:
    """Write ``label-studio.json``, a task per case with its labels, and the labelling interface."""
    tasks: list[dict[str, Any]] = []
    for number, (file, case_id) in enumerate(zip(files, case_ids, strict=True), 1):
        data = {"image": f"/data/local-files/?d={file}", "external_id": case_id}
        tasks.append({"id": number, "data": data, "annotations": [], "predictions": []})
    given = zip(labels.row, labels.annotator, labels.label, strict=True)
    for number, (row, annotator, label) in enumerate(given, 1):
        names = {"id": f"label-{number}", "from_name": "cell", "to_name": "image", "type": "choices"}
        result = [names | {"value": {"choices": [label]}}]
        # a number would be that of a user there
        annotation = {"id": number, "completed_by": {"email": annotator}, "result": result, "was_cancelled": False}
        tasks[row]["annotations"].append(annotation)
    _write(out / "label-studio.json", tasks)
    choices = "".join(f"<Choice value={quoteattr(code)}/>" for code in classes)
    choices = f'<Choices name="cell" toName="image" choice="single">{choices}</Choices>'
    (out / "label-studio.xml").write_text(f'<View><Image name="image" value="$image"/>{choices}</View>\n')


def write_croissant(out: Path, at: datetime) -> None:
    """Write ``croissant.json``: files, their digests, and the columns of the tables with their types."""
    distribution, records = list[dict[str, Any]](), list[dict[str, Any]]()
    if any((out / "images").iterdir()):
        images = {"@type": "cr:FileSet", "@id": "images", "name": "images", "encodingFormat": "image/png"}
        distribution.append(images | {"includes": "images/*.png"})
        source = {"fileSet": {"@id": "images"}, "extract": {"fileProperty": "content"}}
        field = {"@type": "cr:Field", "@id": "images/content", "dataType": "sc:ImageObject", "source": source}
        records.append({"@type": "cr:RecordSet", "@id": "image-files", "field": [field]})
    for name in _TABLES:
        path = out / f"{name}.csv"
        if path.is_file():
            about = {"@type": "cr:FileObject", "@id": path.name, "name": path.name, "contentUrl": path.name}
            distribution.append(about | {"encodingFormat": "text/csv", "sha256": file_sha256(path)})
            schema = read_table(path).schema
            fields = [_describe_column(path.name, number, column) for number, column in enumerate(schema)]
            records.append({"@type": "cr:RecordSet", "@id": name, "name": name, "field": fields})
    document = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "secondread-export",
        "description": "Images of cells, labels by annotators and predictions, exported from secondread.",
        "datePublished": at.date().isoformat(),
        "distribution": distribution,
        "recordSet": records,
    }
    _write(out / "croissant.json", document)


def _describe_column(file: str, number: int, column: pa.Field) -> dict[str, Any]:
    kinds = (
        (pa.types.is_boolean, "sc:Boolean"),
        (pa.types.is_integer, "sc:Integer"),
        (pa.types.is_floating, "sc:Float"),
    )
    kind = next((name for fits, name in kinds if fits(column.type)), "sc:Text")
    # a colon would make it an address
    name = f"{Path(file).stem}/{number}-{re.sub('[^a-zA-Z0-9_]', '-', column.name)}"
    source = {"fileObject": {"@id": file}, "extract": {"column": column.name}}
    return {"@type": "cr:Field", "@id": name, "name": column.name, "dataType": kind, "source": source}


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
