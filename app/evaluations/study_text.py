"""What is stored of a study, in sentences by topic."""

from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.metadata import version

from app.evaluations.readers_annex import annex_of
from app.evaluations.report_schemas import ReportBody
from app.evaluations.study_facts import StudyFacts
from app.platform.values import MetricOut
from ml.shown_numbers import count, interval, probability, share

_Text = Callable[[StudyFacts, ReportBody], Iterator[str]]


def texts_of(facts: StudyFacts, body: ReportBody) -> dict[str, list[str]]:
    """Sentences of every topic, by its name; no sentence where nothing is stored."""
    return {name: list(text(facts, body)) for name, text in TOPICS.items()}


def _day(moment: datetime | None) -> str:
    return "–" if moment is None else f"{moment:%Y-%m-%d}"


def _some(number: int, one: str, many: str = "") -> str:
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def _with_interval(found: MetricOut | None, shown: Callable[[float | None], str] = share) -> str:
    if found is None or found.value is None:
        return "not measurable yet"
    ends = "" if found.low is None else f" (95 % interval {shown(found.low)} to {shown(found.high)})"
    return f"{shown(found.value)}{ends}, n = {count(found.n)}"


def _use(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    yield "The network says how likely each class is, and how likely two annotators are to differ."
    yield from (f"Limit of use: {limit}" for limit in facts.release.card.get("limits_of_use", ()))


def _design(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    yield (
        f"Cases were stored from {_day(facts.first_case)} to {_day(facts.last_case)}; the release is champion since "
        f"{_day(facts.since)}. Predictions are never changed; labelled before this release predicted: "
        f"{_some(facts.missing.n_predicted_late, 'case')}."
    )


def _where(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    if facts.sites:
        yield f"Images came from {_some(len(facts.sites), 'site')}: {', '.join(facts.sites)}."
    yield f"Dates: {_day(facts.first_case)} to {_day(facts.last_case)}."


def _selection(facts: StudyFacts, body: ReportBody) -> Iterator[str]:
    policy = facts.policies[-1]
    yield "Every case that was stored is offered for a first read; none is chosen by its prediction."
    yield (
        f"Second reads: rule {policy.rule.replace('_', ' ')}, and of all other cases {share(policy.audit_rate)} by a "
        f"coin that was tossed before anybody labelled ({_some(len(facts.policies), 'version')} of the policy)."
    )
    weighted = "weighted by the inverse of these probabilities" if body.document.selection.orders else "not weighted"
    yield f"Estimates are {weighted}; partition: {body.document.partition}."


def _data(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    data = facts.release.card["data"]
    cells = ", ".join(f"{count(n)} {name}" for name, n in data["partitions"].items())
    yield f"The release was made from {data['name']} ({data['source']}): {cells}; split by {data['split_by']}."


def _input(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    preprocessing = facts.release.card["preprocessing"]
    shown = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in preprocessing.items() if value)
    yield f"Preprocessing: {shown}."


def _partitions(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    yield "A keyed hash, fixed at set-up, assigned patients to partitions; all cases of a patient go together."
    for part in facts.parts:
        without = f", and {_some(part.n_without_patient, 'case')} without a patient" if part.n_without_patient else ""
        yield (
            f"{part.name.capitalize()}: {_some(part.n_cases, 'case')} of {_some(part.n_patients, 'patient')}{without}."
        )
    yield from _disjoint(facts, _)


def _disjoint(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    yield f"Partitions are disjoint by patient: {_some(facts.n_patients_in_both, 'patient')} in both."


def _release(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    card = facts.release.card
    yield f"Release {card['name']} ({facts.release.id}), network {card['network']}, seed {card['seed']}."
    yield f"SHA-256 of its card, which has the digests of all its files: {facts.release.card_sha256}."
    yield f"Calibration: {card['calibration'].get('method', 'none')}; licence {card['licence']}."
    yield f"It was judged on {_some(card['n_held_out'], 'held-out cell')} before it was served."


def _reference(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    yield (
        "The reference is the distribution of annotators' labels, not one truth: a case's blind labels, each by "
        f"another annotator, at most {facts.policies[-1].max_labels}. No consensus is made from them."
    )


def _readers(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    found = facts.readers
    total = found.n_people + found.n_outside
    outside = f", {count(found.n_outside)} of them known to an outside system only" if found.n_outside else ""
    yield f"{_some(total, 'annotator')}{outside} gave {_some(found.n_labels, 'blind label')}."
    if total:
        yield f"Between {count(found.fewest)} and {_some(found.most, 'label')} each."
    yield f"Qualified before reading, by a test or by an admin: {_some(found.n_qualified, 'annotator')}."


def _threshold(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    yield "No cut-off turns a probability into a class here."
    for policy in facts.policies:
        limit = policy.threshold if policy.threshold is not None else policy.capacity_per_day
        of = "above" if policy.threshold is not None else "reads a day:"
        since, rule = _day(policy.created_at), policy.rule.replace("_", " ")
        yield f"Second reads, version {policy.version} of the policy, from {since}: {rule}, {of} {limit:g}."


def _network_blind(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    yield "The network predicts from the pixels alone: no label of a case enters its prediction."
    known = _some(facts.missing.n_trained_on, "case")
    yield f"Left out: {known} on which it was trained, or on others of their patient."


def _blinding(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    found = facts.blinding
    yield (
        "Whoever reads here sees the image alone: no prediction, no label of others, no reason for asking. "
        "The server records what was shown to whom, and when first."
    )
    if facts.readers.n_outside:
        yield "Whether labels of an outside system were blind is what that system says."
    yield (
        f"Of {_some(found.n_blind, 'blind label')}, {count(found.n_blind_after_exposure)} came after something of the "
        f"case had been shown to its annotator; {_some(found.n_exposures, 'exposure')} recorded."
    )
    yield (
        f"{_some(found.n_not_blind, 'label')} not blind and {_some(found.n_changed_after, 'change')} after a reveal "
        f"are in no estimate. Predictions are shown {facts.policies[-1].reveal.replace('_', ' ')}."
    )


def _measures(_: StudyFacts, body: ReportBody) -> Iterator[str]:
    yield (
        "L, the expected squared loss of the class probabilities, with its parts EL = CL + DL; L_φ, the same of the "
        "disagreement probability; agreement with the most probable class. All are unbiased for what endless "
        "annotators would say (Mimori et al., AISTATS 2021)."
    )
    yield from _uncertainty(_, body)


def _uncertainty(_: StudyFacts, __: ReportBody) -> Iterator[str]:
    yield "95 % intervals leave out one patient at a time; for new annotators there are wider ones."
    yield "Reads are weighted by the inverse of their probability, adjusted for those that were not given."


def _undecided(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    found = facts.missing
    yield (
        f"{_some(found.undecided, 'planned read')} of {count(found.planned)} ended because the image does not allow a "
        "diagnosis. They enter no count, and are reported by arm and disagreement probability."
    )


def _missing(facts: StudyFacts, body: ReportBody) -> Iterator[str]:
    found = facts.missing
    yield (
        f"Planned reads: {count(found.planned)}, answered {count(found.answered)}, waiting {count(found.waiting)}, "
        f"declined as not classifiable {count(found.undecided)}."
    )
    for order in body.document.selection.orders:
        yield f"Not answered, of reads of order {order.order}: {share(order.non_response)}, adjusted for in cells."
    yield f"{_some(found.without_patient, 'case')} without a patient, {count(found.without_site)} without a site."
    yield f"{_some(found.n_twins, 'case')} with the same image as an earlier case."


def _agreement(facts: StudyFacts, body: ReportBody) -> Iterator[str]:
    yield f"Krippendorff's α between annotators: {_with_interval(body.agreement.krippendorff_alpha, probability)}."
    yield f"Pairs of annotators that agree about a case: {_with_interval(body.findings.agreement)}."
    yield f"{_some(facts.readers.n_repeats, 'hidden repeat')} tell how annotators agree with themselves."


def _several_readers(_: StudyFacts, body: ReportBody) -> Iterator[str]:
    yield from annex_of(body.document, body.agreement).sentences


def _size(_: StudyFacts, body: ReportBody) -> Iterator[str]:
    document = body.document
    yield f"{_some(document.n_cases, 'case')} with {_some(document.n_labels, 'label')} are evaluated."


def _subgroups(_: StudyFacts, body: ReportBody) -> Iterator[str]:
    groups = len(body.by_site), len(body.by_month)
    yield f"Every metric is computed by site and by month too: {_some(groups[0], 'site')}, {_some(groups[1], 'month')}."
    yield "Drift of stain and features is measured; an alarm on the log score may be looked at every day."


def _flow(facts: StudyFacts, body: ReportBody) -> Iterator[str]:
    found, declined = facts.flow, facts.flow.declined
    yield f"Received: {count(found.received)}; of patients who were erased since: {count(found.erased)}."
    yield f"Predicted by this release: {count(found.predicted)}."
    yield f"Read at least once: {count(found.read)}."
    yield f"Closed, no read wanted any more: {count(found.closed)}."
    yield (
        f"Evaluated ({body.document.partition}): {count(body.document.n_cases)}, of which "
        f"{count(_n(body, 'EL'))} with two labels. Left out since the release knows them: "
        f"{count(facts.missing.n_trained_on)}."
    )
    told = ", ".join(f"{reason.replace('_', ' ')} {count(n)}" for reason, n in declined.items())
    yield f"Cases declined by an annotator: {told or 'none'}."


def _n(body: ReportBody, name: str) -> int:
    found = body.document.metrics.get(name)
    return 0 if found is None else found.n


def _classes(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    names = ", ".join(one["name"] for one in facts.release.card["classes"])
    yield f"Classes: {names}."


def _turnaround(_: StudyFacts, body: ReportBody) -> Iterator[str]:
    found = body.workload.answering
    if found.median is not None:
        yield f"Half of the planned reads of the last 13 weeks were answered within {found.median:.1f} hours."
    yield "Prediction and labels are of the same image: no treatment lies between them."


def _confusions(_: StudyFacts, body: ReportBody) -> Iterator[str]:
    for row in body.pairs:
        pair = f"{row.first.replace('_', ' ')} and {row.second.replace('_', ' ')}"
        yield f"Annotators differ between {pair}: {_with_interval(row.share)} of all disagreements."


def _estimates(_: StudyFacts, body: ReportBody) -> Iterator[str]:
    names = {"CL_paired": "CL"}
    for name in ("agreement", "accuracy", "L", "skill", "EL", "CL_paired", "DL", "L_D", "skill_D", "CE_D"):
        found = body.document.metrics.get(name)
        if found is not None and found.value is not None:
            shown = names.get(name, name.replace("_D", "_φ"))
            yield f"{shown} = {probability(found.value, 4)} ({interval(found)}), n = {count(found.n)}."


def _by_site(_: StudyFacts, body: ReportBody) -> Iterator[str]:
    for row in body.by_site:
        if row.agreement is not None:
            name = row.group or "not recorded"
            yield f"Site {name}: labels that name the most probable class {_with_interval(row.agreement)}."


def _unlike(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    yield (
        f"{_some(facts.missing.n_unlike, 'image')} unlike those that the release was made from; they are read twice, "
        "and what was predicted of them is evaluated with all others."
    )


def _warnings(_: StudyFacts, body: ReportBody) -> Iterator[str]:
    yield from (f"{text[0].upper()}{text[1:]}." for text in body.document.warnings)


def _identity(_: StudyFacts, __: ReportBody) -> Iterator[str]:
    yield "Stored images carry no metadata: pixels alone, as a PNG of their own."
    yield "Annotators see neither external ids nor patients; a patient can be erased with images and identifiers."


def _tools(_: StudyFacts, __: ReportBody) -> Iterator[str]:
    yield f"The reading page of secondread {version('secondread')}, or an outside system by the API."


def _software(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    yield f"secondread {version('secondread')}, ONNX Runtime {version('onnxruntime')}, NumPy {version('numpy')}."
    made = ", ".join(f"{name} {number}" for name, number in facts.release.card["versions"].items())
    yield f"The release was made with {made}."


def _chosen(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    words = {"passed": "passed the gate", "refused": "was promoted although the gate refused it"}
    yield f"The release {words.get(facts.release.gate, 'was not judged by the gate')}; a person chose it."


def _ensemble(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    dropout = facts.release.card.get("mc_dropout")
    yield "One network." if dropout is None else f"{dropout['samples']} samples of dropout, seed {dropout['seed']}."


def _protocol(_: StudyFacts, __: ReportBody) -> Iterator[str]:
    yield "Policies and promotions are in the audit chain with their reasons, and change plans by their digests."


def _access(facts: StudyFacts, _: ReportBody) -> Iterator[str]:
    yield "A frozen evaluation has the tables from which anybody computes its numbers again."
    yield f"Licence of the release: {facts.release.card['licence']}."


TOPICS: dict[str, _Text] = {
    "use": _use,
    "design": _design,
    "where": _where,
    "selection": _selection,
    "data": _data,
    "input": _input,
    "partitions": _partitions,
    "disjoint": _disjoint,
    "release": _release,
    "reference": _reference,
    "readers": _readers,
    "threshold": _threshold,
    "network-blind": _network_blind,
    "blinding": _blinding,
    "measures": _measures,
    "uncertainty": _uncertainty,
    "undecided": _undecided,
    "missing": _missing,
    "agreement": _agreement,
    "several-readers": _several_readers,
    "size": _size,
    "subgroups": _subgroups,
    "flow": _flow,
    "classes": _classes,
    "class-list": _classes,
    "turnaround": _turnaround,
    "confusions": _confusions,
    "estimates": _estimates,
    "by-site": _by_site,
    "unlike": _unlike,
    "warnings": _warnings,
    "identity": _identity,
    "tools": _tools,
    "software": _software,
    "chosen": _chosen,
    "ensemble": _ensemble,
    "protocol": _protocol,
    "access": _access,
}
