"""Operations of the API. Made from the OpenAPI document 64aeef463f49d94f.

``python -m tools.openapi_files`` makes it again; nobody edits it.
"""

# ruff: noqa

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Literal
from urllib.parse import quote

from secondread.client import models
from secondread.client._core import Id, Model, Request, new_key, texts


class Operations:
    """A method for each operation; how requests are sent is said elsewhere."""

    def _model(self, model: type[Model], request: Request) -> Model:
        raise NotImplementedError

    def _model_or_none(self, model: type[Model], request: Request) -> Model | None:
        raise NotImplementedError

    def _bytes(self, request: Request) -> bytes:
        raise NotImplementedError

    def predict(self, image: bytes) -> models.PredictionOut:
        """Predict an image without storing it: multipart field `image`, or the raw body; nothing of it is kept."""
        request = Request("POST", "/v1/predictions", files={"image": image})
        return self._model(models.PredictionOut, request)

    def add_case(
        self,
        image: bytes,
        *,
        field: bytes | None = None,
        external_id: str,
        patient: str | None = None,
        site: str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> models.CaseOut:
        """Store an image as a case, with its prediction; `field` is the wider field around the cell, for people alone."""
        request = Request(
            "POST",
            "/v1/cases",
            files={"image": image, "field": field},
            data={"external_id": external_id, "patient": patient, "site": site, "metadata": texts(metadata)},
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.CaseOut, request)

    def list_cases(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        external_id: str | None = None,
        patient: str | None = None,
        site: str | None = None,
        partition: Literal["evaluation", "calibration"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> models.CasesOut:
        """A page of cases, newest first."""
        request = Request(
            "GET",
            "/v1/cases",
            query={
                "cursor": cursor,
                "limit": limit,
                "external_id": external_id,
                "patient": patient,
                "site": site,
                "partition": partition,
                "since": None if since is None else since.isoformat(),
                "until": None if until is None else until.isoformat(),
            },
        )
        return self._model(models.CasesOut, request)

    def iter_cases(
        self,
        *,
        limit: int | None = None,
        external_id: str | None = None,
        patient: str | None = None,
        site: str | None = None,
        partition: Literal["evaluation", "calibration"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[models.CaseOut]:
        """The same, entry after entry through all pages."""
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            page = self.list_cases(
                limit=limit,
                external_id=external_id,
                patient=patient,
                site=site,
                partition=partition,
                since=since,
                until=until,
                cursor=cursor,
            )
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = page.next_cursor

    def list_worklist(self, *, cursor: str | None = None, limit: int | None = None) -> models.WorklistOut:
        """Cases of which another read is wanted, those in most need first, with the reason."""
        request = Request("GET", "/v1/worklist", query={"cursor": cursor, "limit": limit})
        return self._model(models.WorklistOut, request)

    def iter_worklist(self, *, limit: int | None = None) -> Iterator[models.WorkOut]:
        """The same, entry after entry through all pages."""
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            page = self.list_worklist(limit=limit, cursor=cursor)
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = page.next_cursor

    def get_case(self, case_id: Id) -> models.CaseOut:
        """A case with its prediction; annotators see it after committing their own label."""
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}")
        return self._model(models.CaseOut, request)

    def list_predictions(self, case_id: Id) -> models.PredictionsOut:
        """Every prediction of a case, newest first; each keeps the release that made it."""
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}/predictions")
        return self._model(models.PredictionsOut, request)

    def get_image(self, case_id: Id) -> bytes:
        """The stored pixels as PNG, without metadata."""
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}/image")
        return self._bytes(request)

    def get_field(self, case_id: Id) -> bytes:
        """The wider field around the cell as PNG without metadata, if there is one."""
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}/field")
        return self._bytes(request)

    def lease_read(self, *, idempotency_key: str | None = None) -> models.ReadOut | None:
        """Lease the next cell for the caller, by due date, then shuffled; at most three at a time."""
        request = Request("POST", "/v1/reads", headers={"Idempotency-Key": idempotency_key or new_key()})
        return self._model_or_none(models.ReadOut, request)

    def list_reads(self) -> models.ReadsOut:
        """The caller's leases, oldest first."""
        request = Request("GET", "/v1/reads")
        return self._model(models.ReadsOut, request)

    def get_read(self, read_id: Id) -> models.ReadOut:
        """One of the caller's own reads."""
        request = Request("GET", f"/v1/reads/{quote(str(read_id), safe='')}")
        return self._model(models.ReadOut, request)

    def extend_read(self, read_id: Id) -> models.ReadOut:
        """Extend a lease, up to six times its length in all."""
        request = Request("PATCH", f"/v1/reads/{quote(str(read_id), safe='')}")
        return self._model(models.ReadOut, request)

    def release_read(self, read_id: Id) -> None:
        """Give a lease back; the case may come again."""
        request = Request("DELETE", f"/v1/reads/{quote(str(read_id), safe='')}")
        self._bytes(request)

    def decline_read(
        self, read_id: Id, body: models.DeclineIn, *, idempotency_key: str | None = None
    ) -> models.ReadOut:
        """Decline a read, with a reason; `cannot_tell` closes it for everybody."""
        request = Request(
            "POST",
            f"/v1/reads/{quote(str(read_id), safe='')}/decline",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.ReadOut, request)

    def commit_read(
        self, read_id: Id, body: models.OwnLabelIn, *, idempotency_key: str | None = None
    ) -> models.SubmittedOut:
        """End a read by a label; the answer reveals the posterior where the policy allows."""
        request = Request(
            "POST",
            f"/v1/reads/{quote(str(read_id), safe='')}/labels",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.SubmittedOut, request)

    def correct_read(
        self, read_id: Id, body: models.OwnLabelIn, *, idempotency_key: str | None = None
    ) -> models.SubmittedOut:
        """Correct a slip, still blind: until the case was shown, ten cases later, a sign-out or 15 minutes."""
        request = Request(
            "POST",
            f"/v1/reads/{quote(str(read_id), safe='')}/correction",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.SubmittedOut, request)

    def submit_label(
        self, case_id: Id, body: models.LabelIn, *, idempotency_key: str | None = None
    ) -> models.SubmittedOut:
        """Store a label of an outside annotator system; people with accounts answer reads that they hold."""
        request = Request(
            "POST",
            f"/v1/cases/{quote(str(case_id), safe='')}/labels",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.SubmittedOut, request)

    def list_labels(self, case_id: Id, *, history: bool | None = None) -> models.LabelsOut:
        """Active labels of a case; annotators see them after committing their own."""
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}/labels", query={"history": history})
        return self._model(models.LabelsOut, request)

    def revise_label(
        self, label_id: Id, body: models.RevisionIn, *, idempotency_key: str | None = None
    ) -> models.SubmittedOut:
        """Correct one's own label, or label again after a retraction; every row stays."""
        request = Request(
            "POST",
            f"/v1/labels/{quote(str(label_id), safe='')}/revisions",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.SubmittedOut, request)

    def retract_label(
        self, label_id: Id, body: models.RetractionIn, *, idempotency_key: str | None = None
    ) -> models.SubmittedOut:
        """Take one's own label back; both rows stay."""
        request = Request(
            "POST",
            f"/v1/labels/{quote(str(label_id), safe='')}/retraction",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.SubmittedOut, request)

    def get_posterior(
        self, case_id: Id, *, exclude_annotator: str | None = None, annotators: Literal["named", "alike"] | None = None
    ) -> models.PosteriorOut:
        """Posterior from the stored prior and all active blind labels."""
        request = Request(
            "GET",
            f"/v1/cases/{quote(str(case_id), safe='')}/posterior",
            query={"exclude_annotator": exclude_annotator, "annotators": annotators},
        )
        return self._model(models.PosteriorOut, request)

    def list_annotators(self) -> models.AnnotatorsOut:
        """Annotators with accounts, by name."""
        request = Request("GET", "/v1/annotators")
        return self._model(models.AnnotatorsOut, request)

    def get_annotator(self, name: str) -> models.OwnReadingOut:
        """How an annotator reads: `me`, and for admins any name; as of the last Monday, in steps of ten cases."""
        request = Request("GET", f"/v1/annotators/{quote(str(name), safe='')}")
        return self._model(models.OwnReadingOut, request)

    def get_practice(self) -> models.OwnPracticeOut:
        """Qualification of the caller, available sets, and runs."""
        request = Request("GET", "/v1/practice")
        return self._model(models.OwnPracticeOut, request)

    def begin_practice_run(self, body: models.RunIn, *, idempotency_key: str | None = None) -> models.RunOut:
        """Begin or continue a run of a set; the caller never reads its cells later."""
        request = Request(
            "POST", "/v1/practice/runs", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return self._model(models.RunOut, request)

    def get_practice_run(self, run_id: Id) -> models.RunOut:
        """One of the caller's own runs; a qualification has its result at the end."""
        request = Request("GET", f"/v1/practice/runs/{quote(str(run_id), safe='')}")
        return self._model(models.RunOut, request)

    def get_practice_item(self, item_id: Id) -> models.PracticeItemOut:
        """The next cell of a run; in training also an answered cell with the answers of others."""
        request = Request("GET", f"/v1/practice/items/{quote(str(item_id), safe='')}")
        return self._model(models.PracticeItemOut, request)

    def get_practice_image(self, item_id: Id) -> bytes:
        """The pixels of a cell that the caller may look at, as PNG."""
        request = Request("GET", f"/v1/practice/items/{quote(str(item_id), safe='')}/image")
        return self._bytes(request)

    def answer_practice_item(
        self, item_id: Id, body: models.PracticeAnswerIn, *, idempotency_key: str | None = None
    ) -> models.AnsweredOut:
        """Answer the next cell of a run; training returns the answers of others, a qualification nothing until its end."""
        request = Request(
            "POST",
            f"/v1/practice/items/{quote(str(item_id), safe='')}/answer",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.AnsweredOut, request)

    def list_practice_sets(self) -> models.PracticeSetsOut:
        """Every set, newest first, with what was chosen and who would pass."""
        request = Request("GET", "/v1/practice/sets")
        return self._model(models.PracticeSetsOut, request)

    def add_practice_set(
        self, body: models.PracticeSetIn, *, idempotency_key: str | None = None
    ) -> models.PracticeSetOut:
        """Choose settled cells for training, or for qualification; never for both."""
        request = Request(
            "POST", "/v1/practice/sets", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return self._model(models.PracticeSetOut, request)

    def retire_practice_set(self, set_id: Id) -> models.PracticeSetOut:
        """Retire a set; repeating it changes nothing."""
        request = Request("POST", f"/v1/practice/sets/{quote(str(set_id), safe='')}/retirement")
        return self._model(models.PracticeSetOut, request)

    def list_qualifications(self) -> models.QualifiedListOut:
        """Qualification of each annotator with an account."""
        request = Request("GET", "/v1/practice/annotators")
        return self._model(models.QualifiedListOut, request)

    def decide_qualification(
        self, name: str, body: models.DecisionIn, *, idempotency_key: str | None = None
    ) -> models.QualifiedOut:
        """Qualify an annotator, withdraw the qualification, or allow further attempts, with a reason."""
        request = Request(
            "POST",
            f"/v1/practice/annotators/{quote(str(name), safe='')}/decisions",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.QualifiedOut, request)

    def list_reader_models(self) -> models.ReaderModelsOut:
        """Every model of the annotators, newest first, and which one weighs labels by who gave them."""
        request = Request("GET", "/v1/reader-models")
        return self._model(models.ReaderModelsOut, request)

    def fit_reader_model(self, body: models.ReaderFitIn, *, idempotency_key: str | None = None) -> models.JobOut:
        """Fit an annotator model on all labels so far, for the champion or a candidate, and test it."""
        request = Request(
            "POST", "/v1/reader-models", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return self._model(models.JobOut, request)

    def get_reader_model_in_use(self) -> models.ReaderModelInUseOut:
        """Which version weighs labels; its ETag is what If-Match needs to move the switch."""
        request = Request("GET", "/v1/reader-models/in-use")
        return self._model(models.ReaderModelInUseOut, request)

    def switch_reader_model(self, body: models.ReaderSwitchIn, *, if_match: int) -> models.ReaderModelInUseOut:
        """Weigh labels by a version from now on, or (`version` null) take annotators as alike again."""
        request = Request("PUT", "/v1/reader-models/in-use", body=body, headers={"If-Match": f'"{if_match}"'})
        return self._model(models.ReaderModelInUseOut, request)

    def get_reader_model(self, version: int) -> models.ReaderModelDetailOut:
        """A model with what it holds of each annotator."""
        request = Request("GET", f"/v1/reader-models/{quote(str(version), safe='')}")
        return self._model(models.ReaderModelDetailOut, request)

    def list_policies(self) -> models.PoliciesOut:
        """Every version of the reading policy, newest first; the first one is in force."""
        request = Request("GET", "/v1/policies")
        return self._model(models.PoliciesOut, request)

    def add_policy(self, body: models.PolicyIn, *, idempotency_key: str | None = None) -> models.PolicyOut:
        """Change the policy by a new version; cases planned before keep their coin."""
        request = Request("POST", "/v1/policies", body=body, headers={"Idempotency-Key": idempotency_key or new_key()})
        return self._model(models.PolicyOut, request)

    def start_import(self, content: bytes, *, idempotency_key: str | None = None) -> models.JobOut:
        """Import a zip of images in a job.  `manifest.csv`, which may be left out, has the columns file, external_id, patient, site, metadata, field."""
        request = Request(
            "POST",
            "/v1/imports",
            content=content,
            kind="application/zip",
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.JobOut, request)

    def get_import(
        self,
        import_id: Id,
        *,
        cursor: int | None = None,
        limit: int | None = None,
        status: Literal["created", "known", "failed", "ignored", "differs"] | None = None,
    ) -> models.ImportOut:
        """An import with a page of its rows."""
        request = Request(
            "GET",
            f"/v1/imports/{quote(str(import_id), safe='')}",
            query={"cursor": cursor, "limit": limit, "status": status},
        )
        return self._model(models.ImportOut, request)

    def iter_import(
        self,
        import_id: Id,
        *,
        limit: int | None = None,
        status: Literal["created", "known", "failed", "ignored", "differs"] | None = None,
    ) -> Iterator[models.ImportRowOut]:
        """The same, entry after entry through all pages."""
        cursor: int | None = None
        seen: set[str] = set()
        while True:
            page = self.get_import(import_id, limit=limit, status=status, cursor=cursor)
            for item in page.rows:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = int(page.next_cursor)

    def get_metrics(
        self,
        *,
        release: Id | None = None,
        group_by: Literal["site", "month"] | None = None,
        partition: Literal["all", "evaluation", "calibration"] | None = None,
        weighting: Literal["ipw", "none"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        site: str | None = None,
    ) -> models.MetricsOut:
        """Metrics recomputed now: prior predictions against blind planned labels, clustered by patient."""
        request = Request(
            "GET",
            "/v1/metrics",
            query={
                "release": None if release is None else str(release),
                "group_by": group_by,
                "partition": partition,
                "weighting": weighting,
                "since": None if since is None else since.isoformat(),
                "until": None if until is None else until.isoformat(),
                "site": site,
            },
        )
        return self._model(models.MetricsOut, request)

    def get_reader_drift(self) -> models.ReadersDriftOut:
        """Annotator drift by week, until last Monday."""
        request = Request("GET", "/v1/reader-drift")
        return self._model(models.ReadersDriftOut, request)

    def get_comparison(
        self,
        release_id: Id,
        *,
        partition: Literal["all", "evaluation", "calibration"] | None = None,
        weighting: Literal["ipw", "none"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        site: str | None = None,
    ) -> models.ComparisonOut:
        """A release compared with the champion on the cases that both predicted, with the interval of each difference."""
        request = Request(
            "GET",
            f"/v1/releases/{quote(str(release_id), safe='')}/comparison",
            query={
                "partition": partition,
                "weighting": weighting,
                "since": None if since is None else since.isoformat(),
                "until": None if until is None else until.isoformat(),
                "site": site,
            },
        )
        return self._model(models.ComparisonOut, request)

    def get_agreement(
        self,
        *,
        group_by: Literal["annotator", "class", "site"] | None = None,
        partition: Literal["all", "evaluation", "calibration"] | None = None,
        weighting: Literal["ipw", "none"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        site: str | None = None,
    ) -> models.AgreementOut:
        """Agreement between annotators over blind planned labels, with intervals and tests of their independence."""
        request = Request(
            "GET",
            "/v1/agreement",
            query={
                "group_by": group_by,
                "partition": partition,
                "weighting": weighting,
                "since": None if since is None else since.isoformat(),
                "until": None if until is None else until.isoformat(),
                "site": site,
            },
        )
        return self._model(models.AgreementOut, request)

    def freeze_evaluation(
        self, body: models.EvaluationIn, *, idempotency_key: str | None = None
    ) -> models.EvaluationOut:
        """Freeze current labels and predictions, and evaluate them in a job."""
        request = Request(
            "POST", "/v1/evaluations", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return self._model(models.EvaluationOut, request)

    def list_evaluations(self) -> models.EvaluationsOut:
        """Frozen evaluations, newest first, without their documents."""
        request = Request("GET", "/v1/evaluations")
        return self._model(models.EvaluationsOut, request)

    def get_evaluation(self, evaluation_id: Id) -> models.EvaluationOut:
        """A frozen evaluation: its state, and once it is done its document, report or table."""
        request = Request("GET", f"/v1/evaluations/{quote(str(evaluation_id), safe='')}")
        return self._model(models.EvaluationOut, request)

    def get_report_targets(self) -> models.TargetsOut:
        """The laboratory's targets for the first sentences of the report."""
        request = Request("GET", "/v1/report-targets")
        return self._model(models.TargetsOut, request)

    def set_report_targets(self, body: models.TargetsIn, *, if_match: int) -> models.TargetsOut:
        """Set the laboratory's own targets, with a reason; earlier versions are kept."""
        request = Request("PUT", "/v1/report-targets", body=body, headers={"If-Match": f'"{if_match}"'})
        return self._model(models.TargetsOut, request)

    def list_releases(self) -> models.ReleasesOut:
        """Every release, newest first."""
        request = Request("GET", "/v1/releases")
        return self._model(models.ReleasesOut, request)

    def get_release(self, release_id: Id) -> models.ReleaseDetailOut:
        """A release with its card."""
        request = Request("GET", f"/v1/releases/{quote(str(release_id), safe='')}")
        return self._model(models.ReleaseDetailOut, request)

    def list_aliases(self) -> models.AliasesOut:
        """Which releases are champion and challenger; the revision is what If-Match wants."""
        request = Request("GET", "/v1/aliases")
        return self._model(models.AliasesOut, request)

    def move_alias(
        self, name: Literal["champion", "challenger"], body: models.AliasIn, *, if_match: int
    ) -> models.AliasOut:
        """Promote a release, or roll back to an earlier one, with a reason."""
        request = Request(
            "PUT", f"/v1/aliases/{quote(str(name), safe='')}", body=body, headers={"If-Match": f'"{if_match}"'}
        )
        return self._model(models.AliasOut, request)

    def judge_release(self, release_id: Id, *, idempotency_key: str | None = None) -> models.JobOut:
        """Run the promotion check on a model release, in a job; one attempt on the champion."""
        request = Request(
            "POST",
            f"/v1/releases/{quote(str(release_id), safe='')}/judgements",
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.JobOut, request)

    def recalibrate(self, body: models.RecalibrationIn, *, idempotency_key: str | None = None) -> models.JobOut:
        """Fit a candidate on the labels collected so far and judge it against the champion, in a job."""
        request = Request(
            "POST", "/v1/recalibrations", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return self._model(models.JobOut, request)

    def list_jobs(self) -> models.JobsOut:
        """The newest 200 jobs."""
        request = Request("GET", "/v1/jobs")
        return self._model(models.JobsOut, request)

    def get_job(self, job_id: Id) -> models.JobOut:
        """A job: state, progress, result."""
        request = Request("GET", f"/v1/jobs/{quote(str(job_id), safe='')}")
        return self._model(models.JobOut, request)

    def cancel_job(self, job_id: Id) -> models.JobOut:
        """Cancel a job; what it has stored so far stays."""
        request = Request("DELETE", f"/v1/jobs/{quote(str(job_id), safe='')}")
        return self._model(models.JobOut, request)

    def retry_job(self, job_id: Id, *, idempotency_key: str | None = None) -> models.JobOut:
        """Queue a failed or cancelled job again; it resumes its work."""
        request = Request(
            "POST",
            f"/v1/jobs/{quote(str(job_id), safe='')}/retry",
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return self._model(models.JobOut, request)

    def list_audit_events(
        self,
        *,
        cursor: int | None = None,
        limit: int | None = None,
        object_id: str | None = None,
        actor: str | None = None,
        action: str | None = None,
    ) -> models.AuditEventsOut:
        """Audit events, newest first."""
        request = Request(
            "GET",
            "/v1/audit-events",
            query={"cursor": cursor, "limit": limit, "object_id": object_id, "actor": actor, "action": action},
        )
        return self._model(models.AuditEventsOut, request)

    def iter_audit_events(
        self,
        *,
        limit: int | None = None,
        object_id: str | None = None,
        actor: str | None = None,
        action: str | None = None,
    ) -> Iterator[models.AuditEventOut]:
        """The same, entry after entry through all pages."""
        cursor: int | None = None
        seen: set[str] = set()
        while True:
            page = self.list_audit_events(limit=limit, object_id=object_id, actor=actor, action=action, cursor=cursor)
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = int(page.next_cursor)

    def healthz(self) -> models.HealthOut:
        """The process answers, however many requests wait for a thread."""
        request = Request("GET", "/healthz")
        return self._model(models.HealthOut, request)

    def readyz(self, *, verbose: str | None = None) -> models.ReadyOut:
        """Database, release and storage can serve."""
        request = Request("GET", "/readyz", query={"verbose": verbose})
        return self._model(models.ReadyOut, request)

    def prometheus(self) -> bytes:
        """Prometheus text: requests, latency, jobs, and the champion's estimates that the worker published last."""
        request = Request("GET", "/metrics")
        return self._bytes(request)
