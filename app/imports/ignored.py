"""Files of an archive that become no case, and why: an import says what it leaves out."""

from pathlib import PurePosixPath

#: By the ends of their names: what is decoded here.
IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
_OF_SYSTEMS = {".ds_store", "thumbs.db", "desktop.ini"}
_LABELS = {"labels.csv", "label.csv", "annotations.csv"}


def is_image(name: str) -> bool:
    """Whether a file is an image by its name, and none of an operating system's own."""
    path = PurePosixPath(name)
    return path.suffix.lower() in IMAGES and not _of_system(path)


def _of_system(path: PurePosixPath) -> bool:
    return "__MACOSX" in path.parts or path.name.startswith("._") or path.name.lower() in _OF_SYSTEMS


def why_ignored(name: str, *, manifest: bool) -> str:
    """Why a file becomes no case.

    Args:
        name: in the archive.
        manifest: whether the archive has a manifest, which then says what is imported.
    """
    path = PurePosixPath(name)
    kind = path.suffix.lower()
    if _of_system(path):
        return "written by an operating system for itself"
    if path.name.lower() in _LABELS:
        return "labels are not imported with images: send them with POST /v1/cases/{id}/labels"
    if kind in {".dcm", ".dicom"}:
        return "DICOM is not read here: export PNG, JPEG or TIFF"
    if kind in IMAGES:
        return "no row of manifest.csv names it" if manifest else "a hidden file"
    return f"not an image by its name: images end in {', '.join(IMAGES)}"
