"""Labels in files of other tools, row by row.

Imports neither pyarrow nor numpy, so that the service can read such files too.
"""

from ml.label_files.formats import detect_format, read_class_folders, read_label_file
from ml.label_files.label_table import LabelTable, match_images, to_label_table
from ml.label_files.rows import UNNAMED, BadRow, Format, LabelFileError, LabelRow

__all__ = [
    "UNNAMED",
    "BadRow",
    "Format",
    "LabelFileError",
    "LabelRow",
    "LabelTable",
    "detect_format",
    "match_images",
    "read_class_folders",
    "read_label_file",
    "to_label_table",
]
