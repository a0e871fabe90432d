"""Tables of accounts, API keys and browser sessions."""

import uuid
from datetime import datetime

from sqlalchemy import JSON, CheckConstraint, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, IdentifiedRow, UtcDateTime

ROLES = ("viewer", "annotator", "admin", "service")


class Account(IdentifiedRow, BaseTable):
    """A person or a machine that may call."""

    __tablename__ = "accounts"
    __table_args__ = (CheckConstraint(f"role IN {ROLES}", name="role"),)

    name: Mapped[str] = mapped_column(String(100), unique=True)
    role: Mapped[str] = mapped_column(String(20))
    disabled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # SHA-256 of a random one-time password, cleared by its first use
    one_time_sha256: Mapped[str | None] = mapped_column(String(64))
    # argon2id; None for those who sign in elsewhere, and until the first password is chosen
    password_hash: Mapped[str | None] = mapped_column(String(200))
    # «issuer subject» of an OpenID provider
    oidc_subject: Mapped[str | None] = mapped_column(String(500), index=True, unique=True)
    # of the pages; None for what the browser asks for
    language: Mapped[str | None] = mapped_column(String(10))


class ApiKey(IdentifiedRow, BaseTable):
    """A bearer key ``sr_<id>_<secret>``; only the secret's SHA-256 is kept."""

    __tablename__ = "api_keys"

    account_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("accounts.id"), index=True)
    secret_sha256: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[list[str]] = mapped_column(JSON)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class BrowserSession(IdentifiedRow, BaseTable):
    """A signed-in browser; only the cookie's SHA-256 is kept."""

    __tablename__ = "browser_sessions"

    account_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("accounts.id"), index=True)
    token_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
