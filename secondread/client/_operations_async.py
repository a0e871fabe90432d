"""Operations of the API. Made from the OpenAPI document 2ed12392347ba5cb.

``python -m tools.openapi_files`` makes it again; nobody edits it.
"""

# ruff: noqa

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Literal
from urllib.parse import quote

from secondread.client import models
from secondread.client._core import Id, Model, Request, new_key, texts


class AsyncOperations:
    """A method for each operation; how requests are sent is said elsewhere."""

    async def _model(self, model: type[Model], request: Request) -> Model:
        raise NotImplementedError

    async def _model_or_none(self, model: type[Model], request: Request) -> Model | None:
        raise NotImplementedError

    async def _model_or_job(self, model: type[Model], request: Request) -> Model | models.JobOut:
        raise NotImplementedError

    async def _bytes(self, request: Request) -> bytes:
        raise NotImplementedError

    async def predict(self, image: bytes) -> models.PredictionOut:
        """Predict an image. Nothing is stored; send the multipart field `image`, or the file as the body.

        Args:
            image: The cell as PNG, JPEG or TIFF, at most 12 MiB.
        """
        request = Request("POST", "/v1/predictions", files={"image": image})
        return await self._model(models.PredictionOut, request)

    async def add_case(
        self,
        image: bytes,
        *,
        field: bytes | None = None,
        external_id: str,
        patient: str | None = None,
        site: str | None = None,
        specimen: str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> models.CaseOut:
        """Upload a cell. The response has its prediction; the same upload again returns the stored cell.

        Args:
            image: The cell as PNG, JPEG or TIFF; at most 12 MiB with all other fields. Metadata of the file is dropped.
            field: A wider image around the cell, for annotators only. It is shown on request and never used for a prediction.
            external_id: Id of the cell in the laboratory, 1 to 200 characters.
            patient: Code of the patient, 1 to 200 characters. Cells of one patient stay in the same partition.
            site: Name of the site, 1 to 200 characters.
            specimen: Id of the specimen in the laboratory, 1 to 200 characters. Its first cell stores it; other cells need its patient and site, or leave them out.
            metadata: JSON object with at most 20 texts, such as `{'stain': 'Wright'}`.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            "/v1/cases",
            files={"image": image, "field": field},
            data={
                "external_id": external_id,
                "patient": patient,
                "site": site,
                "specimen": specimen,
                "metadata": texts(metadata),
            },
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.CaseOut, request)

    async def list_cases(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        external_id: str | None = None,
        patient: str | None = None,
        site: str | None = None,
        specimen: str | None = None,
        partition: Literal["evaluation", "calibration"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        metadata: str | None = None,
    ) -> models.CasesOut:
        """List cells. Newest first; to follow what changes, poll the changes.

        Args:
            cursor: `next_cursor` of the previous page. Left out: the first page.
            limit: Largest number of entries on the page.
            external_id: Only cells with this id of the laboratory.
            patient: Only cells of this patient, a code of the laboratory.
            site: Only cells of this site.
            specimen: Only cells of the specimen with this id of the laboratory.
            partition: Only cells of this part, split by patient: `calibration` cells fit calibrations, `evaluation` cells measure quality. Left out: both.
            since: Only cells stored at this time or later, ISO 8601 with a time zone.
            until: Only cells stored before this time, ISO 8601 with a time zone.
            metadata: Only cells with all of these metadata: a JSON object of texts, such as `{'stain': 'Wright'}`.
        """
        request = Request(
            "GET",
            "/v1/cases",
            query={
                "cursor": cursor,
                "limit": limit,
                "external_id": external_id,
                "patient": patient,
                "site": site,
                "specimen": specimen,
                "partition": partition,
                "since": None if since is None else since.isoformat(),
                "until": None if until is None else until.isoformat(),
                "metadata": metadata,
            },
        )
        return await self._model(models.CasesOut, request)

    async def iter_cases(
        self,
        *,
        limit: int | None = None,
        external_id: str | None = None,
        patient: str | None = None,
        site: str | None = None,
        specimen: str | None = None,
        partition: Literal["evaluation", "calibration"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        metadata: str | None = None,
    ) -> AsyncIterator[models.CaseOut]:
        """The same, entry after entry through all pages."""
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            page = await self.list_cases(
                limit=limit,
                external_id=external_id,
                patient=patient,
                site=site,
                specimen=specimen,
                partition=partition,
                since=since,
                until=until,
                metadata=metadata,
                cursor=cursor,
            )
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = page.next_cursor

    async def list_worklist(self, *, cursor: str | None = None, limit: int | None = None) -> models.WorklistOut:
        """List cells that need another read. Highest need first, with the reason.

        Args:
            cursor: `next_cursor` of the previous page. Left out: the first page.
            limit: Largest number of entries on the page.
        """
        request = Request("GET", "/v1/worklist", query={"cursor": cursor, "limit": limit})
        return await self._model(models.WorklistOut, request)

    async def iter_worklist(self, *, limit: int | None = None) -> AsyncIterator[models.WorkOut]:
        """The same, entry after entry through all pages."""
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            page = await self.list_worklist(limit=limit, cursor=cursor)
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = page.next_cursor

    async def get_case(self, case_id: Id) -> models.CaseOut:
        """Get a cell and its prediction. Annotators see it once they have labelled it.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
        """
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}")
        return await self._model(models.CaseOut, request)

    async def list_predictions(self, case_id: Id) -> models.PredictionsOut:
        """List the predictions of a cell. Newest first, each with its model release.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
        """
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}/predictions")
        return await self._model(models.PredictionsOut, request)

    async def get_image(self, case_id: Id) -> bytes:
        """Get the image of a cell. PNG without metadata.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
        """
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}/image")
        return await self._bytes(request)

    async def get_field(self, case_id: Id) -> bytes:
        """Get the surroundings of a cell. A wider image as PNG without metadata; 404 without one.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
        """
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}/field")
        return await self._bytes(request)

    async def add_comment(
        self, case_id: Id, body: models.CommentIn, *, idempotency_key: str | None = None
    ) -> models.CommentOut:
        """Submit a comment. Annotators may once the cell is shown to them in full.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/cases/{quote(str(case_id), safe='')}/comments",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.CommentOut, request)

    async def list_comments(self, case_id: Id) -> models.CommentsOut:
        """List the comments on a cell. Oldest first; annotators see them once the cell is shown to them in full.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
        """
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}/comments")
        return await self._model(models.CommentsOut, request)

    async def add_specimen(self, body: models.SpecimenIn, *, idempotency_key: str | None = None) -> models.SpecimenOut:
        """Create a specimen. Send its cells to it; the same specimen again returns the stored one.

        Args:
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request("POST", "/v1/specimens", body=body, headers={"Idempotency-Key": idempotency_key or new_key()})
        return await self._model(models.SpecimenOut, request)

    async def list_specimens(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        state: Literal["open", "decided", "signed"] | None = None,
        patient: str | None = None,
        site: str | None = None,
        after: datetime | None = None,
    ) -> models.SpecimensOut:
        """List specimens. Newest first; `stale` marks shares that are older than a label or a setting.

        Args:
            cursor: `next_cursor` of the previous page. Left out: the first page.
            limit: Largest number of entries on the page.
            state: Only specimens in this state: `open`, `decided` or `signed`.
            patient: Only specimens of this patient, a code of the laboratory.
            site: Only specimens of this site.
            after: Only specimens changed after this time, ISO 8601 with a time zone: stored, or measured again.
        """
        request = Request(
            "GET",
            "/v1/specimens",
            query={
                "cursor": cursor,
                "limit": limit,
                "state": state,
                "patient": patient,
                "site": site,
                "after": None if after is None else after.isoformat(),
            },
        )
        return await self._model(models.SpecimensOut, request)

    async def iter_specimens(
        self,
        *,
        limit: int | None = None,
        state: Literal["open", "decided", "signed"] | None = None,
        patient: str | None = None,
        site: str | None = None,
        after: datetime | None = None,
    ) -> AsyncIterator[models.SpecimenOut]:
        """The same, entry after entry through all pages."""
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            page = await self.list_specimens(
                limit=limit, state=state, patient=patient, site=site, after=after, cursor=cursor
            )
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = page.next_cursor

    async def get_specimen(self, specimen_id: Id) -> models.SpecimenOut:
        """Get a specimen. With the shares of its reporting groups, their intervals and the cells that would settle them.

        Args:
            specimen_id: Id of the specimen, a UUID.
        """
        request = Request("GET", f"/v1/specimens/{quote(str(specimen_id), safe='')}")
        return await self._model(models.SpecimenOut, request)

    async def list_specimen_cells(
        self, specimen_id: Id, *, cursor: str | None = None, limit: int | None = None
    ) -> models.CasesOut:
        """List the cells of a specimen. Newest first.

        Args:
            specimen_id: Id of the specimen, a UUID.
            cursor: `next_cursor` of the previous page. Left out: the first page.
            limit: Largest number of entries on the page.
        """
        request = Request(
            "GET", f"/v1/specimens/{quote(str(specimen_id), safe='')}/cells", query={"cursor": cursor, "limit": limit}
        )
        return await self._model(models.CasesOut, request)

    async def iter_specimen_cells(self, specimen_id: Id, *, limit: int | None = None) -> AsyncIterator[models.CaseOut]:
        """The same, entry after entry through all pages."""
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            page = await self.list_specimen_cells(specimen_id, limit=limit, cursor=cursor)
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = page.next_cursor

    async def add_specimen_cells(
        self, specimen_id: Id, image: Mapping[str, bytes], *, idempotency_key: str | None = None
    ) -> models.SpecimenCellsOut | models.JobOut:
        """Upload cells of a specimen.  Send up to 500 at once, each of at most 1 MiB and 64 MiB in all, as parts `image` or as a zip. The file name, without folder, is the external id of a cell within its specimen; the stored one begins with that of the specimen. Up to 50 cells are stored before the response, which has one result per cell, in the order of the parts or of the names in the zip; more are stored by an import. The same request again with the same key continues where it stopped.

        Args:
            specimen_id: Id of the specimen, a UUID.
            image: At most 500 cells, each as PNG, JPEG or TIFF of at most 1 MiB, with different file names: the external id of a cell within the specimen.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/specimens/{quote(str(specimen_id), safe='')}/cells",
            files={"image": image},
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model_or_job(models.SpecimenCellsOut, request)

    async def sign_specimen(
        self, specimen_id: Id, body: models.SignatureIn, *, idempotency_key: str | None = None
    ) -> models.SignedVersionOut:
        """Sign a specimen. For signed-in admins, by password or a fresh single sign-on; API keys never sign.

        Args:
            specimen_id: Id of the specimen, a UUID.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/specimens/{quote(str(specimen_id), safe='')}/signatures",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.SignedVersionOut, request)

    async def list_signatures(self, specimen_id: Id) -> models.SignaturesOut:
        """List the signatures on a specimen. Newest first, each with what was shown.

        Args:
            specimen_id: Id of the specimen, a UUID.
        """
        request = Request("GET", f"/v1/specimens/{quote(str(specimen_id), safe='')}/signatures")
        return await self._model(models.SignaturesOut, request)

    async def lease_read(self, *, idempotency_key: str | None = None) -> models.ReadOut | None:
        """Lease the next read. By due date, then shuffled; at most three at a time.

        Args:
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request("POST", "/v1/reads", headers={"Idempotency-Key": idempotency_key or new_key()})
        return await self._model_or_none(models.ReadOut, request)

    async def list_reads(self) -> models.ReadsOut:
        """List your leases. Oldest first."""
        request = Request("GET", "/v1/reads")
        return await self._model(models.ReadsOut, request)

    async def get_read(self, read_id: Id) -> models.ReadOut:
        """Get one of your reads. With the classes to choose from.

        Args:
            read_id: Id of the read, a UUID.
        """
        request = Request("GET", f"/v1/reads/{quote(str(read_id), safe='')}")
        return await self._model(models.ReadOut, request)

    async def extend_read(self, read_id: Id) -> models.ReadOut:
        """Extend a lease. Up to six times its length in total.

        Args:
            read_id: Id of the read, a UUID.
        """
        request = Request("PATCH", f"/v1/reads/{quote(str(read_id), safe='')}")
        return await self._model(models.ReadOut, request)

    async def release_read(self, read_id: Id) -> None:
        """Return a read unanswered. It may be offered to you again.

        Args:
            read_id: Id of the read, a UUID.
        """
        request = Request("DELETE", f"/v1/reads/{quote(str(read_id), safe='')}")
        await self._bytes(request)

    async def decline_read(
        self, read_id: Id, body: models.DeclineIn, *, idempotency_key: str | None = None
    ) -> models.ReadOut:
        """Decline a read. With a reason; `cannot_tell` closes it for everyone.

        Args:
            read_id: Id of the read, a UUID.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/reads/{quote(str(read_id), safe='')}/decline",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.ReadOut, request)

    async def commit_read(
        self, read_id: Id, body: models.OwnLabelIn, *, idempotency_key: str | None = None
    ) -> models.SubmittedOut:
        """Answer a read with a label. The response shows the posterior if the policy allows it.

        Args:
            read_id: Id of the read, a UUID.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/reads/{quote(str(read_id), safe='')}/labels",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.SubmittedOut, request)

    async def correct_read(
        self, read_id: Id, body: models.OwnLabelIn, *, idempotency_key: str | None = None
    ) -> models.SubmittedOut:
        """Correct your last answer while blinded. Until you see the cell, answer ten more, sign out or 15 minutes pass.

        Args:
            read_id: Id of the read, a UUID.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/reads/{quote(str(read_id), safe='')}/correction",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.SubmittedOut, request)

    async def submit_label(
        self, case_id: Id, body: models.LabelIn, *, idempotency_key: str | None = None
    ) -> models.SubmittedOut:
        """Submit an outside label. For annotators of another system; people with accounts answer reads instead.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/cases/{quote(str(case_id), safe='')}/labels",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.SubmittedOut, request)

    async def list_labels(self, case_id: Id, *, history: bool | None = None) -> models.LabelsOut:
        """List the labels of a cell. Annotators see them once they have labelled the cell.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
            history: True adds superseded labels and retractions.
        """
        request = Request("GET", f"/v1/cases/{quote(str(case_id), safe='')}/labels", query={"history": history})
        return await self._model(models.LabelsOut, request)

    async def submit_labels(
        self, body: models.LabelBatchIn, *, idempotency_key: str | None = None
    ) -> models.LabelBatchOut:
        """Submit many outside labels. Up to 1,000 by external id, with one result each.  Each label is stored or refused without regard to the others. Labels are stored 100 at a time; after an error send the same request again: it continues where it stopped, and finds the labels before as `known`.

        Args:
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request("POST", "/v1/labels", body=body, headers={"Idempotency-Key": idempotency_key or new_key()})
        return await self._model(models.LabelBatchOut, request)

    async def revise_label(
        self, label_id: Id, body: models.RevisionIn, *, idempotency_key: str | None = None
    ) -> models.SubmittedOut:
        """Revise your label. Also after a retraction; earlier versions are kept.

        Args:
            label_id: Id of the label, a UUID.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/labels/{quote(str(label_id), safe='')}/revisions",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.SubmittedOut, request)

    async def retract_label(
        self, label_id: Id, body: models.RetractionIn, *, idempotency_key: str | None = None
    ) -> models.SubmittedOut:
        """Retract your label. Both rows are kept.

        Args:
            label_id: Id of the label, a UUID.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/labels/{quote(str(label_id), safe='')}/retraction",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.SubmittedOut, request)

    async def get_posterior(
        self, case_id: Id, *, exclude_annotator: str | None = None, annotators: Literal["named", "alike"] | None = None
    ) -> models.PosteriorOut:
        """Get the posterior of a cell. From the first prediction and all active blinded labels.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
            exclude_annotator: Name of an annotator whose labels are left out. Null or left out: all labels count.
            annotators: `named`: labels are weighted by the annotator model in use, if there is one; `alike`: all annotators count the same.
        """
        request = Request(
            "GET",
            f"/v1/cases/{quote(str(case_id), safe='')}/posterior",
            query={"exclude_annotator": exclude_annotator, "annotators": annotators},
        )
        return await self._model(models.PosteriorOut, request)

    async def settle_case(
        self, case_id: Id, body: models.OutcomeIn, *, idempotency_key: str | None = None
    ) -> models.OutcomeOut:
        """Settle a cell. As a class, as split or by rule; its open adjudications are withdrawn.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/cases/{quote(str(case_id), safe='')}/outcome",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.OutcomeOut, request)

    async def reopen_case(self, case_id: Id, *, reason: str | None = None) -> None:
        """Reopen a settled cell. Its outcome stays in the history.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
            reason: Reason for the audit log, 1 to 2,000 characters.
        """
        request = Request("DELETE", f"/v1/cases/{quote(str(case_id), safe='')}/outcome", query={"reason": reason})
        await self._bytes(request)

    async def assign_read(
        self, case_id: Id, body: models.AssignmentIn, *, idempotency_key: str | None = None
    ) -> models.RequestOut:
        """Assign a read. An annotator is asked for the next open read, or an adjudication if none is open.

        Args:
            case_id: Id of the cell, a UUID. Annotators use the id from their own read.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/cases/{quote(str(case_id), safe='')}/assignments",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.RequestOut, request)

    async def list_annotators(self) -> models.AnnotatorsOut:
        """List annotators. Those with accounts, in alphabetical order."""
        request = Request("GET", "/v1/annotators")
        return await self._model(models.AnnotatorsOut, request)

    async def get_annotator(self, name: str) -> models.OwnReadingOut:
        """Get the statistics of an annotator. Until the last Monday, in steps of ten cells.

        Args:
            name: `me` for yourself; admins may give the name of any annotator.
        """
        request = Request("GET", f"/v1/annotators/{quote(str(name), safe='')}")
        return await self._model(models.OwnReadingOut, request)

    async def get_practice(self) -> models.OwnPracticeOut:
        """Get your training. Qualification, available sets, and runs."""
        request = Request("GET", "/v1/practice")
        return await self._model(models.OwnPracticeOut, request)

    async def begin_practice_run(self, body: models.RunIn, *, idempotency_key: str | None = None) -> models.RunOut:
        """Start or resume a training run. You never read its cells later.

        Args:
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST", "/v1/practice/runs", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return await self._model(models.RunOut, request)

    async def get_practice_run(self, run_id: Id) -> models.RunOut:
        """Get one of your runs. A finished qualification has its result.

        Args:
            run_id: Id of the training or qualification run, a UUID.
        """
        request = Request("GET", f"/v1/practice/runs/{quote(str(run_id), safe='')}")
        return await self._model(models.RunOut, request)

    async def get_practice_item(self, item_id: Id) -> models.PracticeItemOut:
        """Get a cell of a run. In training, an answered cell shows the answers of others.

        Args:
            item_id: Id of the cell in a training or qualification run, a UUID.
        """
        request = Request("GET", f"/v1/practice/items/{quote(str(item_id), safe='')}")
        return await self._model(models.PracticeItemOut, request)

    async def get_practice_image(self, item_id: Id) -> bytes:
        """Get a training image. PNG without metadata.

        Args:
            item_id: Id of the cell in a training or qualification run, a UUID.
        """
        request = Request("GET", f"/v1/practice/items/{quote(str(item_id), safe='')}/image")
        return await self._bytes(request)

    async def answer_practice_item(
        self, item_id: Id, body: models.PracticeAnswerIn, *, idempotency_key: str | None = None
    ) -> models.AnsweredOut:
        """Answer a cell of a run. Training returns the answers of others, a qualification its result at the end.

        Args:
            item_id: Id of the cell in a training or qualification run, a UUID.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/practice/items/{quote(str(item_id), safe='')}/answer",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.AnsweredOut, request)

    async def list_practice_sets(self) -> models.PracticeSetsOut:
        """List training and qualification sets. Newest first, with their cells and pass rates."""
        request = Request("GET", "/v1/practice/sets")
        return await self._model(models.PracticeSetsOut, request)

    async def add_practice_set(
        self, body: models.PracticeSetIn, *, idempotency_key: str | None = None
    ) -> models.PracticeSetOut:
        """Create a training or qualification set. From completed cells, each used for one purpose only.

        Args:
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST", "/v1/practice/sets", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return await self._model(models.PracticeSetOut, request)

    async def retire_practice_set(self, set_id: Id) -> models.PracticeSetOut:
        """Retire a set. A repeated request changes nothing.

        Args:
            set_id: Id of the set of cells, a UUID.
        """
        request = Request("POST", f"/v1/practice/sets/{quote(str(set_id), safe='')}/retirement")
        return await self._model(models.PracticeSetOut, request)

    async def list_qualifications(self) -> models.QualifiedListOut:
        """List the qualifications of annotators. Those with accounts, in alphabetical order."""
        request = Request("GET", "/v1/practice/annotators")
        return await self._model(models.QualifiedListOut, request)

    async def decide_qualification(
        self, name: str, body: models.DecisionIn, *, idempotency_key: str | None = None
    ) -> models.QualifiedOut:
        """Decide on a qualification. Qualify an annotator, withdraw it, or allow further attempts, with a reason.

        Args:
            name: Name of the annotator, 1 to 200 characters.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/practice/annotators/{quote(str(name), safe='')}/decisions",
            body=body,
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.QualifiedOut, request)

    async def list_reader_models(self) -> models.ReaderModelsOut:
        """List annotator models. Newest first, with the version that weights labels."""
        request = Request("GET", "/v1/reader-models")
        return await self._model(models.ReaderModelsOut, request)

    async def fit_reader_model(self, body: models.ReaderFitIn, *, idempotency_key: str | None = None) -> models.JobOut:
        """Fit an annotator model. A job fits all labels so far, for the champion or a candidate, and tests the model.

        Args:
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST", "/v1/reader-models", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return await self._model(models.JobOut, request)

    async def get_reader_model_in_use(self) -> models.ReaderModelInUseOut:
        """Get the annotator model in use. Its ETag is the value for `If-Match`."""
        request = Request("GET", "/v1/reader-models/in-use")
        return await self._model(models.ReaderModelInUseOut, request)

    async def switch_reader_model(self, body: models.ReaderSwitchIn, *, if_match: int) -> models.ReaderModelInUseOut:
        """Switch the annotator model. Null weights all annotators equally.

        Args:
            if_match: Revision in quotes, from the ETag of the last read; `'0'` if there is none yet, `*` for any.
        """
        request = Request("PUT", "/v1/reader-models/in-use", body=body, headers={"If-Match": f'"{if_match}"'})
        return await self._model(models.ReaderModelInUseOut, request)

    async def get_reader_model(self, version: int) -> models.ReaderModelDetailOut:
        """Get an annotator model. With the parameters of each annotator.

        Args:
            version: Version of the annotator model, 1 or more.
        """
        request = Request("GET", f"/v1/reader-models/{quote(str(version), safe='')}")
        return await self._model(models.ReaderModelDetailOut, request)

    async def list_policies(self) -> models.PoliciesOut:
        """List reading policies. Newest first; the first one is in force."""
        request = Request("GET", "/v1/policies")
        return await self._model(models.PoliciesOut, request)

    async def add_policy(self, body: models.PolicyIn, *, idempotency_key: str | None = None) -> models.PolicyOut:
        """Change the reading policy. Cells planned earlier keep their random number.

        Args:
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request("POST", "/v1/policies", body=body, headers={"Idempotency-Key": idempotency_key or new_key()})
        return await self._model(models.PolicyOut, request)

    async def invite_annotator(
        self, body: models.InvitationIn, *, idempotency_key: str | None = None
    ) -> models.InvitationOut:
        """Create an invitation. Its link signs an annotator in once, within 72 hours, to read some cells.

        Args:
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST", "/v1/invitations", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return await self._model(models.InvitationOut, request)

    async def start_import(
        self, content: bytes, *, class_folders: bool | None = None, idempotency_key: str | None = None
    ) -> models.JobOut:
        """Import images and labels. As a zip.  A job stores them; an optional `manifest.csv` has the columns file, external_id, patient, site, specimen, metadata, field. Files of labels need the scope `labels:write`, too.

        Args:
            class_folders: True: the name of each image's folder, a class, becomes its label, by one unnamed annotator.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            "/v1/imports",
            content=content,
            kind="application/zip",
            query={"class_folders": class_folders},
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.JobOut, request)

    async def get_import(
        self,
        import_id: Id,
        *,
        cursor: int | None = None,
        limit: int | None = None,
        status: Literal["created", "known", "failed", "ignored", "differs"] | None = None,
    ) -> models.ImportOut:
        """Get an import. With a page of its rows.

        Args:
            import_id: Id of the import, a UUID.
            cursor: `next_cursor` of the previous page. Left out: the first page.
            limit: Largest number of entries on the page.
            status: Only rows with this result: `created`, `known`, `failed`, `ignored`, or `differs` for known cells whose row has another patient, site or metadata.
        """
        request = Request(
            "GET",
            f"/v1/imports/{quote(str(import_id), safe='')}",
            query={"cursor": cursor, "limit": limit, "status": status},
        )
        return await self._model(models.ImportOut, request)

    async def iter_import(
        self,
        import_id: Id,
        *,
        limit: int | None = None,
        status: Literal["created", "known", "failed", "ignored", "differs"] | None = None,
    ) -> AsyncIterator[models.ImportRowOut]:
        """The same, entry after entry through all pages."""
        cursor: int | None = None
        seen: set[str] = set()
        while True:
            page = await self.get_import(import_id, limit=limit, status=status, cursor=cursor)
            for item in page.rows:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = int(page.next_cursor)

    async def get_metrics(
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
        """Compute the metrics. First predictions against planned blinded labels, clustered by patient.

        Args:
            release: Id of the model release, a UUID. Left out: the champion.
            group_by: Adds headline metrics of each group: by `site`, or by `month` of upload.
            partition: Only cells of this part, split by patient: `calibration` cells fit calibrations, `evaluation` cells measure quality, `all` are both.
            weighting: `ipw`: only cells whose planned reads have closed, weighted by the inverse probability of their selection; `none`: all cells count the same, for comparison.
            since: Only cells stored at this time or later, ISO 8601 with a time zone.
            until: Only cells stored before this time, ISO 8601 with a time zone.
            site: Only cells of this site.
        """
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
        return await self._model(models.MetricsOut, request)

    async def get_reader_drift(self) -> models.ReadersDriftOut:
        """Get the drift of annotators. By week, until the last Monday."""
        request = Request("GET", "/v1/reader-drift")
        return await self._model(models.ReadersDriftOut, request)

    async def get_comparison(
        self,
        release_id: Id,
        *,
        partition: Literal["all", "evaluation", "calibration"] | None = None,
        weighting: Literal["ipw", "none"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        site: str | None = None,
    ) -> models.ComparisonOut:
        """Compare a release with the champion. On the cells that both predicted, with an interval of each difference.

        Args:
            release_id: Id of the model release, a UUID.
            partition: Only cells of this part, split by patient: `calibration` cells fit calibrations, `evaluation` cells measure quality, `all` are both.
            weighting: `ipw`: only cells whose planned reads have closed, weighted by the inverse probability of their selection; `none`: all cells count the same, for comparison.
            since: Only cells stored at this time or later, ISO 8601 with a time zone.
            until: Only cells stored before this time, ISO 8601 with a time zone.
            site: Only cells of this site.
        """
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
        return await self._model(models.ComparisonOut, request)

    async def get_agreement(
        self,
        *,
        group_by: Literal["annotator", "class", "site"] | None = None,
        partition: Literal["all", "evaluation", "calibration"] | None = None,
        weighting: Literal["ipw", "none"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        site: str | None = None,
    ) -> models.AgreementOut:
        """Compute inter-rater agreement. Over planned blinded labels, with intervals and tests of independence.

        Args:
            group_by: Return only one grouping: by `annotator`, `class` or `site`. Left out: all three.
            partition: Only cells of this part, split by patient: `calibration` cells fit calibrations, `evaluation` cells measure quality, `all` are both.
            weighting: `ipw`: only cells whose planned reads have closed, weighted by the inverse probability of their selection; `none`: all cells count the same, for comparison.
            since: Only cells stored at this time or later, ISO 8601 with a time zone.
            until: Only cells stored before this time, ISO 8601 with a time zone.
            site: Only cells of this site.
        """
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
        return await self._model(models.AgreementOut, request)

    async def freeze_evaluation(
        self, body: models.EvaluationIn, *, idempotency_key: str | None = None
    ) -> models.EvaluationOut:
        """Freeze an evaluation. A job evaluates a snapshot of current labels and predictions.

        Args:
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST", "/v1/evaluations", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return await self._model(models.EvaluationOut, request)

    async def list_evaluations(self) -> models.EvaluationsOut:
        """List frozen evaluations. Newest first, without their documents."""
        request = Request("GET", "/v1/evaluations")
        return await self._model(models.EvaluationsOut, request)

    async def get_evaluation(self, evaluation_id: Id) -> models.EvaluationOut:
        """Get a frozen evaluation. Its state, and the finished document, report or table, by `Accept`.

        Args:
            evaluation_id: Id of the frozen evaluation, a UUID.
        """
        request = Request("GET", f"/v1/evaluations/{quote(str(evaluation_id), safe='')}")
        return await self._model(models.EvaluationOut, request)

    async def get_report(
        self,
        *,
        partition: Literal["all", "evaluation", "calibration"] | None = None,
        weighting: Literal["ipw", "none"] | None = None,
        site: str | None = None,
    ) -> models.FindingsOut:
        """Get the report's numbers. Those of its sentences, computed now, about the champion.

        Args:
            partition: Only cells of this part, split by patient: `calibration` cells fit calibrations, `evaluation` cells measure quality, `all` are both.
            weighting: `ipw`: only cells whose planned reads have closed, weighted by the inverse probability of their selection; `none`: all cells count the same, for comparison.
            site: Only cells of this site.
        """
        request = Request("GET", "/v1/report", query={"partition": partition, "weighting": weighting, "site": site})
        return await self._model(models.FindingsOut, request)

    async def get_report_targets(self) -> models.TargetsOut:
        """Get the report's targets. The ETag is the value for `If-Match`."""
        request = Request("GET", "/v1/report-targets")
        return await self._model(models.TargetsOut, request)

    async def set_report_targets(self, body: models.TargetsIn, *, if_match: int) -> models.TargetsOut:
        """Set the report's targets. With a reason; earlier versions are kept.

        Args:
            if_match: Revision in quotes, from the ETag of the last read; `'0'` if there is none yet, `*` for any.
        """
        request = Request("PUT", "/v1/report-targets", body=body, headers={"If-Match": f'"{if_match}"'})
        return await self._model(models.TargetsOut, request)

    async def list_releases(self) -> models.ReleasesOut:
        """List model releases. Newest first."""
        request = Request("GET", "/v1/releases")
        return await self._model(models.ReleasesOut, request)

    async def get_release(self, release_id: Id) -> models.ReleaseDetailOut:
        """Get a model release. With its card and last promotion check.

        Args:
            release_id: Id of the model release, a UUID.
        """
        request = Request("GET", f"/v1/releases/{quote(str(release_id), safe='')}")
        return await self._model(models.ReleaseDetailOut, request)

    async def list_aliases(self) -> models.AliasesOut:
        """List aliases. Champion and challenger; the revision is the value for `If-Match`."""
        request = Request("GET", "/v1/aliases")
        return await self._model(models.AliasesOut, request)

    async def move_alias(
        self, name: Literal["champion", "challenger"], body: models.AliasIn, *, if_match: int
    ) -> models.AliasOut:
        """Promote a model release. Or roll back to an earlier one, with a reason.

        Args:
            name: Alias to move: `champion` predicts and is shown; `challenger` predicts next to it for comparison.
            if_match: Revision in quotes, from the ETag of the last read; `'0'` if there is none yet, `*` for any.
        """
        request = Request(
            "PUT", f"/v1/aliases/{quote(str(name), safe='')}", body=body, headers={"If-Match": f'"{if_match}"'}
        )
        return await self._model(models.AliasOut, request)

    async def judge_release(self, release_id: Id, *, idempotency_key: str | None = None) -> models.JobOut:
        """Run the promotion check. A job compares a model release with the champion; each run is one attempt.

        Args:
            release_id: Id of the model release, a UUID.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/releases/{quote(str(release_id), safe='')}/judgements",
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.JobOut, request)

    async def recalibrate(self, body: models.RecalibrationIn, *, idempotency_key: str | None = None) -> models.JobOut:
        """Recalibrate the champion. A job fits a candidate on the labels so far and runs the promotion check.

        Args:
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST", "/v1/recalibrations", body=body, headers={"Idempotency-Key": idempotency_key or new_key()}
        )
        return await self._model(models.JobOut, request)

    async def list_jobs(self) -> models.JobsOut:
        """List jobs. The newest 200."""
        request = Request("GET", "/v1/jobs")
        return await self._model(models.JobsOut, request)

    async def get_job(self, job_id: Id) -> models.JobOut:
        """Get a job. State, progress and result.

        Args:
            job_id: Id of the job, a UUID.
        """
        request = Request("GET", f"/v1/jobs/{quote(str(job_id), safe='')}")
        return await self._model(models.JobOut, request)

    async def cancel_job(self, job_id: Id) -> models.JobOut:
        """Cancel a job. Stored results are kept.

        Args:
            job_id: Id of the job, a UUID.
        """
        request = Request("DELETE", f"/v1/jobs/{quote(str(job_id), safe='')}")
        return await self._model(models.JobOut, request)

    async def retry_job(self, job_id: Id, *, idempotency_key: str | None = None) -> models.JobOut:
        """Retry a job. For a failed or cancelled job, which resumes its work.

        Args:
            job_id: Id of the job, a UUID.
            idempotency_key: Any text of 1 to 200 visible ASCII characters, new for each request. A repeated request with the same key and body returns the first response and stores nothing twice.
        """
        request = Request(
            "POST",
            f"/v1/jobs/{quote(str(job_id), safe='')}/retry",
            headers={"Idempotency-Key": idempotency_key or new_key()},
        )
        return await self._model(models.JobOut, request)

    async def list_changes(self, *, after: str | None = None, limit: int | None = None) -> models.ChangesOut:
        """List what has changed. Oldest first, identifiers only; poll with the last `next_cursor` as `after`.

        Args:
            after: `next_cursor` of the previous response. Left out: from the first change.
            limit: Largest number of changes in the response.
        """
        request = Request("GET", "/v1/changes", query={"after": after, "limit": limit})
        return await self._model(models.ChangesOut, request)

    async def list_audit_events(
        self,
        *,
        cursor: int | None = None,
        limit: int | None = None,
        object_id: str | None = None,
        actor: str | None = None,
        action: str | None = None,
    ) -> models.AuditEventsOut:
        """List audit events. Newest first.

        Args:
            cursor: `next_cursor` of the previous page. Left out: the first page.
            limit: Largest number of entries on the page.
            object_id: Only events about this object: the id of a cell, label, job, release or account.
            actor: Only events of this account.
            action: Only events with this action, such as `label.add`.
        """
        request = Request(
            "GET",
            "/v1/audit-events",
            query={"cursor": cursor, "limit": limit, "object_id": object_id, "actor": actor, "action": action},
        )
        return await self._model(models.AuditEventsOut, request)

    async def iter_audit_events(
        self,
        *,
        limit: int | None = None,
        object_id: str | None = None,
        actor: str | None = None,
        action: str | None = None,
    ) -> AsyncIterator[models.AuditEventOut]:
        """The same, entry after entry through all pages."""
        cursor: int | None = None
        seen: set[str] = set()
        while True:
            page = await self.list_audit_events(
                limit=limit, object_id=object_id, actor=actor, action=action, cursor=cursor
            )
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor in seen:  # a cursor that comes again leads nowhere new
                return
            seen.add(page.next_cursor)
            cursor = int(page.next_cursor)

    async def healthz(self) -> models.HealthOut:
        """Check that the process responds. Even if all threads are busy."""
        request = Request("GET", "/healthz")
        return await self._model(models.HealthOut, request)

    async def readyz(self, *, verbose: str | None = None) -> models.ReadyOut:
        """Check that requests can be served. Database, model release and storage; 503 if not.

        Args:
            verbose: Any value, also an empty one, adds `limits` with their current use.
        """
        request = Request("GET", "/readyz", query={"verbose": verbose})
        return await self._model(models.ReadyOut, request)

    async def prometheus(self) -> bytes:
        """Get Prometheus metrics. Requests, latencies, jobs, and the champion's published estimates."""
        request = Request("GET", "/metrics")
        return await self._bytes(request)
