"""Two checklists of what the report of a study on a diagnostic network says, in their order, in our own words.

``STARD_AI``: the items of STARD 2015 with their numbers, and what STARD-AI (2025) adds, marked «AI». ``CLAIM``: the
Checklist for Artificial Intelligence in Medical Imaging with the numbers of its first edition (2020). An item names the
topics from which it is filled (``app.evaluations.study_text``), and what a person has to write. Whoever submits
compares with the published checklist.
"""

from typing import Literal, NamedTuple

Standard = Literal["stard-ai", "claim"]


class Item(NamedTuple):
    """An item of a checklist.

    Attributes:
        number: as the standard numbers it.
        section: heading under which it stands.
        asks: what it asks for.
        topics: names of what fills it.
        open: what a person has to write; empty where nothing is left.
    """

    number: str
    section: str
    asks: str
    topics: tuple[str, ...] = ()
    open: str = ""


_TITLE, _INTRODUCTION, _METHODS, _RESULTS = "Title and abstract", "Introduction", "Methods", "Results"
_DISCUSSION, _OTHER = "Discussion", "Other information"

STARD_AI = (
    Item("1", _TITLE, "Title: a study of diagnostic accuracy that names a measure and the network", (), "the title"),
    Item("2", _TITLE, "Structured abstract", (), "the abstract"),
    Item("3", _INTRODUCTION, "Background, intended use and role of the network", ("use",), "the clinical background"),
    Item("4", _INTRODUCTION, "Objectives and hypotheses", (), "objectives and hypotheses"),
    Item("AI", _METHODS, "Ethics approval", (), "approval and consent, with their numbers"),
    Item("5", _METHODS, "Planned before or after the data were collected", ("design",), "prospective or retrospective"),
    Item("6", _METHODS, "Eligibility, of patients and of images", (), "who and what was eligible"),
    Item("7", _METHODS, "How eligible patients were found", (), "on what grounds they were found"),
    Item("8", _METHODS, "Where and when", ("where",), "the setting"),
    Item("9", _METHODS, "Consecutive, random or convenience series", ("selection",), "which of the three they are"),
    Item("AI", _METHODS, "Where the data come from, devices, preprocessing", ("data", "input"), "devices and staining"),
    Item("AI", _METHODS, "Partitions, and what keeps them apart", ("partitions",)),
    Item("10a", _METHODS, "The index test: the network, its version and its training", ("release", "input")),
    Item("10b", _METHODS, "The reference standard: who labels, and how", ("reference", "readers"), "qualifications"),
    Item("11", _METHODS, "Why this reference standard", (), "the reason"),
    Item("12a", _METHODS, "Cut-offs of the index test", ("threshold",)),
    Item("12b", _METHODS, "Cut-offs of the reference standard", ("reference",)),
    Item("13a", _METHODS, "Was the reference known when the network predicted", ("network-blind",)),
    Item("13b", _METHODS, "Was the prediction known to those who labelled", ("blinding",)),
    Item("14", _METHODS, "Measures of accuracy, and how they are estimated", ("measures",)),
    Item("15", _METHODS, "Indeterminate results", ("undecided",)),
    Item("16", _METHODS, "Missing data", ("missing",)),
    Item(
        "17",
        _METHODS,
        "Variability, and analyses planned before or after",
        ("agreement", "several-readers"),
        "which were planned",
    ),
    Item("18", _METHODS, "Sample size, and how it was chosen", ("size",), "how it was chosen"),
    Item("AI", _METHODS, "Errors and bias: how they are looked for", ("subgroups",)),
    Item("19", _RESULTS, "Flow of cases", ("flow",)),
    Item("20", _RESULTS, "Characteristics of patients", ("partitions",), "age, sex and other characteristics"),
    Item("21a", _RESULTS, "Classes and severity among those with the condition", ("classes",), "severity"),
    Item("21b", _RESULTS, "Other diagnoses among those without it", ("classes",), "if there are any"),
    Item("22", _RESULTS, "Time and treatment between index test and reference", ("turnaround",)),
    Item("23", _RESULTS, "Predictions against the reference", ("confusions",)),
    Item("24", _RESULTS, "Estimates and their precision", ("estimates", "several-readers")),
    Item("25", _RESULTS, "Adverse events", (), "any, or that there were none"),
    Item("AI", _RESULTS, "Results by site and other groups; what goes wrong", ("by-site", "confusions", "unlike")),
    Item("26", _DISCUSSION, "Limitations: bias, uncertainty, generalisability", ("warnings",), "your own words"),
    Item("27", _DISCUSSION, "Implications, intended use and role", ("use",), "implications for practice"),
    Item("28", _OTHER, "Registration", (), "number and name of the registry"),
    Item("29", _OTHER, "Where the protocol is", ("protocol",), "where the protocol can be read"),
    Item("30", _OTHER, "Funding and other support, commercial interests", (), "funding and interests"),
    Item("AI", _OTHER, "Access to data, code and network", ("access",), "where others get them"),
)

CLAIM = (
    Item("1", _TITLE, "Title or abstract names the technique", (), "the title"),
    Item("2", _TITLE, "Structured summary", (), "the abstract"),
    Item("3", _INTRODUCTION, "Background, intended use and clinical role", ("use",), "the clinical background"),
    Item("4", _INTRODUCTION, "Aims and hypotheses", (), "aims and hypotheses"),
    Item("5", _METHODS, "Prospective or retrospective", ("design",), "which of the two"),
    Item("6", _METHODS, "Goal of the study", (), "the goal"),
    Item("7", _METHODS, "Sources of the data", ("where", "data")),
    Item("8", _METHODS, "Eligibility", (), "who and what was eligible"),
    Item("9", _METHODS, "Preprocessing", ("input",)),
    Item("10", _METHODS, "Selection of parts of the data", ("selection",)),
    Item("11", _METHODS, "Definitions of the data elements", ("class-list",), "the guidelines that define the classes"),
    Item("12", _METHODS, "De-identification", ("identity",)),
    Item("13", _METHODS, "How missing data were handled", ("missing",)),
    Item("14", _METHODS, "Definition of the reference standard", ("reference",)),
    Item("15", _METHODS, "Why this reference standard", (), "the reason"),
    Item("16", _METHODS, "Who annotated, and how they were prepared", ("readers",), "their qualifications"),
    Item("17", _METHODS, "Annotation tools", ("tools",)),
    Item("18", _METHODS, "Variability within and between annotators", ("agreement", "several-readers")),
    Item("19", _METHODS, "Intended sample size", ("size",), "how it was chosen"),
    Item("20", _METHODS, "How data were assigned to partitions", ("partitions",)),
    Item("21", _METHODS, "Level at which partitions are disjoint", ("disjoint",)),
    Item("22", _METHODS, "The network: inputs, outputs, layers", ("release", "input")),
    Item("23", _METHODS, "Software", ("software",)),
    Item("24", _METHODS, "Initialisation of the parameters", (), "pretrained on what, or at random"),
    Item("25", _METHODS, "Training", ("release",), "augmentation and hyperparameters, from the training's own report"),
    Item("26", _METHODS, "How the final network was chosen", ("chosen",)),
    Item("27", _METHODS, "Ensembles", ("ensemble",)),
    Item("28", _METHODS, "Metrics", ("measures",)),
    Item("29", _METHODS, "Significance and uncertainty", ("uncertainty", "several-readers")),
    Item("30", _METHODS, "Robustness", ("unlike", "subgroups")),
    Item("31", _METHODS, "Explainability", (), "methods, or that none was used"),
    Item("32", _METHODS, "Testing on other data", ("where",), "whether these data are external to the training"),
    Item("33", _RESULTS, "Flow of cases", ("flow",)),
    Item("34", _RESULTS, "Characteristics in each partition", ("partitions", "classes"), "demographic characteristics"),
    Item(
        "35",
        _RESULTS,
        "Performance on every partition and against experts",
        ("estimates", "agreement", "several-readers"),
    ),
    Item("36", _RESULTS, "Accuracy with its precision", ("estimates",)),
    Item("37", _RESULTS, "What goes wrong", ("confusions", "unlike"), "examples, looked at by an expert"),
    Item("38", _DISCUSSION, "Limitations", ("warnings",), "your own words on them"),
    Item("39", _DISCUSSION, "Implications, intended use and role", ("use",), "implications for practice"),
    Item("40", _OTHER, "Registration", (), "number and name of the registry"),
    Item("41", _OTHER, "Access to protocol, data and code", ("protocol", "access"), "where others get them"),
    Item("42", _OTHER, "Funding", (), "funding and the role of who funded"),
)

#: Checklists by the name that a command takes, with what they are called.
STANDARDS: dict[Standard, tuple[str, tuple[Item, ...]]] = {
    "stard-ai": ("STARD-AI", STARD_AI),
    "claim": ("CLAIM", CLAIM),
}
