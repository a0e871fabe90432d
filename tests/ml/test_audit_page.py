"""The page that an auditor files: whole, self-contained, true, and readable by day, by night and on paper."""

import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.audit.evaluate_findings import EDGES, audit_findings, compute_tail_bins
from ml.audit.page import section_of
from ml.audit.sentences import MEANING
from ml.metrics.definitions import without_long_names
from ml.tables.evaluate import EvaluationOptions
from ml.tables.reading import write_table
from ml.util.number_format import interval, probability
from tests.support.command import run_here
from tests.support.tables import matrix_table, wide_table

HOSTILE = "<script>document.title='owned'</script>"


def make_tables(folder: Path, *, findings: bool = True, hostile: str = "blast") -> dict[str, Path]:
    """Labels of 240 cases by five annotators and two predictions, of two findings where wanted."""
    rng = np.random.default_rng(2)
    classes = [hostile, "lymphocyte", "monocyte"]
    labels: dict[str, list[Any]] = {name: [] for name in ("case_id", "annotator", "label", "patient", "finding")}
    ids, names, probs, others = [], [], [], []
    for finding in ("bone marrow", "blood") if findings else ("blood",):
        q = rng.dirichlet([1.2, 0.5, 0.3], 240)
        for case, shares in enumerate(q):
            for reader in rng.choice(5, 1 + case % 3, replace=False):
                row = (f"c{case}", f"reader {reader}", classes[rng.choice(3, p=shares)], f"p{case // 4}", finding)
                for column, value in zip(labels.values(), row, strict=True):
                    column.append(value)
        ids += [f"c{case}" for case in range(240)]
        names += [finding] * 240
        probs.append(0.97 * q + 0.01)
        others.append(0.5 * q + 0.5 * q.mean(axis=0))
    if not findings:
        del labels["finding"]
    write_table(labels, folder / "labels.csv")
    for name, table in (("first", np.concatenate(probs)), ("second", np.concatenate(others))):
        columns: dict[str, Any] = {"case_id": ids} | ({"finding": names} if findings else {})
        table = table / table.sum(axis=1, keepdims=True)
        write_table(columns | {f"prob:{c}": table[:, k] for k, c in enumerate(classes)}, folder / f"{name}.csv")
    return {name: folder / f"{name}.csv" for name in ("labels", "first", "second")}


class Reader(HTMLParser):
    """What a page has: elements by name, addresses that it names, text, and whether every element is closed."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.addresses: list[str] = []
        self.inline: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "action", "data", "poster"}:
                self.addresses.append(value or "")
            if name == "style" or name.startswith("on"):
                self.inline.append(name)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The page of two findings and two predictions, as the command makes it."""
    folder = tmp_path_factory.mktemp("audit")
    tables = make_tables(folder, hostile=HOSTILE)
    out = folder / "pages" / "report.html"
    command = ["audit", "--labels", tables["labels"], "--predictions", tables["first"], "-o", out]
    command += ["--cluster", "patient", "--against", tables["second"], "--json"]
    done = run_here(*command)
    assert done.returncode == 0, done.stderr
    return {"tables": tables, "out": out, "html": out.read_text(), "document": json.loads(done.stdout)}


@pytest.mark.slow
def test_the_page_needs_nothing_from_outside_and_runs_nothing(audited: dict[str, Any]) -> None:
    page = Reader(audited["html"])
    assert page.open == []
    assert set(page.elements) & {"script", "link", "img", "iframe", "object", "form"} == set()
    assert [address for address in page.addresses if not address.startswith("#")] == []
    assert page.inline == []
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', audited["html"])
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]


def test_the_page_says_what_it_rests_on(audited: dict[str, Any]) -> None:
    text = " ".join(Reader(audited["html"]).text)
    for path in audited["tables"].values():
        assert hashlib.sha256(path.read_bytes()).hexdigest() in text
    assert re.search(rf"secondread audit --labels \S+labels\.csv .*-o {re.escape(str(audited['out']))}", text)
    assert f"numpy {np.__version__}" in text
    assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)
    assert audited["document"] == {
        "report": str(audited["out"]),
        "sha256": hashlib.sha256(audited["out"].read_bytes()).hexdigest(),
        "findings": ["bone marrow", "blood"],
    }


def test_every_metric_is_there_as_evaluate_says_it_with_its_interval(audited: dict[str, Any]) -> None:
    tables = audited["tables"]
    command = ["evaluate", "--labels", tables["labels"], "--predictions", tables["first"], "--cluster", "patient"]
    documents = json.loads(run_here(*command, "--against", tables["second"], "--json").stdout)["findings"]
    sections = audited["html"].split("<section ")[1:]
    assert len(sections) == len(documents)
    for section, (finding, document) in zip(sections, documents.items(), strict=True):
        assert f"Finding: {finding}" in section
        cells = re.findall(r'<td class="number">([^<]*)</td>', section)
        for name, row in without_long_names(document["metrics"]).items():
            assert name in MEANING, f"{name} has no words"
            assert probability(row["value"], 4) in cells
            if row["low"] is not None:
                assert f"{probability(row['low'], 4)} to {probability(row['high'], 4)}" in cells
        for row in document["against"]["changes"].values():
            assert probability(abs(row["value"]), 4) in " ".join(cells).replace("−", "+").replace("+", "")
        assert "The second is worse in L" in section


def test_every_chart_has_its_table(audited: dict[str, Any]) -> None:
    for section in audited["html"].split("<section ")[1:]:
        figures = section.count("<figure")
        assert figures == section.count("<svg") == 5
        tables = re.findall(r'aria-label="([^"]*by predicted[^"]*)"', section)
        # all classes and both ends, each class, disagreement and both ends
        assert len(tables) == 2 + 3 + 2


def test_the_ends_are_the_cases_there_counted_one_by_one(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, findings=False)
    (found,) = audit_findings(tables["labels"], tables["first"], EvaluationOptions())
    counts, probs = found.cases.counts, found.cases.predictions.class_probs
    labelled = counts.sum(axis=1) > 0
    freqs = counts[labelled] / counts[labelled].sum(axis=1, keepdims=True)
    bins = compute_tail_bins(found.cases).classes
    assert all(row.high <= 0.1 or row.low >= 0.9 for row in bins)
    assert {row.low for row in bins} <= set(EDGES.tolist())
    for row in bins:
        inside = (probs[labelled] >= row.low) & (probs[labelled] < row.high)
        assert row.n == inside.sum()
        assert row.mean_freq == pytest.approx(freqs[inside].mean(), abs=1e-12)
        assert row.mean_prob == pytest.approx(probs[labelled][inside].mean(), abs=1e-12)


def test_names_are_no_markup(audited: dict[str, Any]) -> None:
    assert "<script" not in audited["html"]
    assert "&lt;script&gt;" in audited["html"]


@pytest.mark.slow
def test_evaluate_writes_the_same_page(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, findings=False)
    out = tmp_path / "report.html"
    command = ["--labels", tables["labels"], "--predictions", tables["first"]]
    done = run_here("evaluate", *command, "--report", out)
    assert done.returncode == 0, done.stderr
    assert "L " in done.stdout
    html = out.read_text()
    assert run_here("audit", *command).returncode == 2
    again = tmp_path / "again.html"
    assert run_here("audit", *command, "--out", again).returncode == 0
    differing = [(a, b) for a, b in zip(html.splitlines(), again.read_text().splitlines(), strict=True) if a != b]
    assert all("UTC" in a or ">Command<" in a for a, _ in differing)


@pytest.mark.slow
def test_other_questions_have_a_page_too(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, findings=False)
    section = section_of(audit_findings(tables["labels"], tables["first"], EvaluationOptions(level="ordinal"))[0], 1)
    assert section.agreement.level == "ordinal"
    assert len(section.charts) == 5
    alpha = section.agreement.krippendorff_alpha
    assert any(probability(alpha.value) in text and interval(alpha, 3) in text for text in section.sentences)


def test_a_page_without_labels_and_one_with_many_classes(tmp_path: Path) -> None:
    classes = [f"class {k}" for k in range(40)]
    probs = np.random.default_rng(0).dirichlet(np.ones(40), 80)
    write_table(wide_table(probs, classes), tmp_path / "many.csv")
    write_table(wide_table(np.zeros((1, 40), dtype=int), classes, "count:"), tmp_path / "none.csv")
    given = (np.arange(80)[:, None] + [0, 1]) % 40
    write_table(matrix_table(given, classes), tmp_path / "labels.csv")
    for labels, words in (("none.csv", "No cases with the labels"), ("labels.csv", "Of 40 classes the 12")):
        out = tmp_path / f"{labels}.html"
        done = run_here("audit", "--labels", tmp_path / labels, "--predictions", tmp_path / "many.csv", "-o", out)
        assert done.returncode == 0, done.stderr
        assert words in out.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page_without_an_error_and_asks_nobody(
    audited: dict[str, Any], browser: Any, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # the page's own policy would stop what the test injects to look at it
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1100, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(audited["out"].as_uri())
    assert (said, asked) == ([], [audited["out"].as_uri()])
    for width in (1100, 390):
        page.set_viewport_size({"width": width, "height": 900})
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"at {width} px the page is wider than the window"
    page.emulate_media(media="print")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)", "paper is white, whatever the screen was"
    page.set_viewport_size({"width": 700, "height": 900})
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0, "a page of A4 cuts nothing off"
    page.close()
    free = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
    free.goto(audited["out"].as_uri())
    found = Axe().run(free)
    free.context.close()
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.slow
def test_a_weighted_page_has_the_other_estimates_beside(tmp_path: Path) -> None:
    tables = make_tables(tmp_path, findings=False)
    lines = tables["labels"].read_text().splitlines()
    weighed = [f"{lines[0]},w"] + [f"{line},{1 + int(line.split(',')[0].strip(chr(34))[1:]) % 3}" for line in lines[1:]]
    tables["labels"].write_text("\n".join(weighed) + "\n")
    command = ["--labels", tables["labels"], "--predictions", tables["first"], "--weights", "w"]
    done = run_here("audit", *command, "-o", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    metrics = json.loads(run_here("evaluate", *command, "--json").stdout)["metrics"]
    html = (tmp_path / "report.html").read_text()
    assert f"Horvitz–Thompson form {probability(metrics['L']['horvitz_thompson'], 4)}" in html
    helped = [row["model_assisted"] for row in metrics.values() if row["model_assisted"] is not None]
    assert helped
    for row in helped:
        between = f"{probability(row['low'], 4)} to {probability(row['high'], 4)}"
        assert f"model-assisted {probability(row['value'], 4)} ({between})" in html
    assert "w (one label), w (two labels)" in html
