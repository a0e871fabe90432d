"""Settings: the environment variables ``SECONDREAD_<NAME>``, and the trace collector's.

``ml.datasets`` stands without the service and reads ``SECONDREAD_DATASETS`` and ``SECONDREAD_CACHE`` itself; they are
fields here so that one list, and one help text, names every variable.
"""

import os
import secrets
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

from app.audit.chain.keys import KeyRing
from app.http.days import load_time_zone
from app.http.errors import describe_fault
from app.storage.bucket import SCHEMES, find_endpoints


class Settings(BaseSettings):
    """Everything that the environment decides. Descriptions are shown by ``secondread serve --help``."""

    model_config = SettingsConfigDict(env_prefix="SECONDREAD_", extra="ignore")

    home: Path = Field(Path(".secondread"), description="folder for database, images, releases and the secret key")
    database_url: str | None = Field(
        None, description="postgresql://user@host/name?sslmode=verify-full; unset: SQLite in HOME"
    )
    database_direct_url: str | None = Field(
        None,
        description="the same database past a transaction pooler, for workers, `db upgrade` and `db restore`; unset: "
        "DATABASE_URL",
    )
    database_owner_url: str | None = Field(
        None, description="the same database by a role that owns its tables, for `db upgrade`; unset: DATABASE_URL"
    )
    storage_url: str | None = Field(
        None,
        description="folder for images, or a bucket for all that processes share: s3://bucket/prefix, gs://… or "
        "az://…, by the extra s3, with credentials and endpoint in obstore's variables, such as AWS_ACCESS_KEY_ID and "
        "AWS_ENDPOINT; unset: HOME/images",
    )
    storage_cache: int = Field(1024**3, ge=0, description="bytes of copies in HOME, if images are in a bucket")
    datasets: Path | None = Field(None, description="folder with real data sets, for training and tests")
    cache: str | None = Field(
        None,
        description="folder for decoded training images, or off; unset: .decoded in the folder of images, and the "
        "user's cache for DATASETS",
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on")
    processes: int = Field(
        1, ge=1, le=64, description="server processes that serve the port together and share the cores"
    )
    allowed_hosts: list[str] = Field(
        ["127.0.0.1", "localhost", "[::1]"], description='JSON list of host names that requests may name, or ["*"]'
    )
    secret_key: SecretStr | None = Field(
        None, description="at least 32 bytes, or the key ring of `db rotate-key`; unset: HOME/secret.key"
    )
    secret_key_file: Path | None = Field(
        None, description="file with the secret key or the key ring, instead of SECRET_KEY"
    )
    secrets: Path | None = Field(
        None, description="folder with a file per secret setting, for example secondread_database_url"
    )
    audit_anchor: Path | None = Field(
        None,
        description="file outside the database, to which servers and workers add the head of the audit chain each "
        "minute; unset: HOME/heads",
    )
    erasures: Path | None = Field(
        None,
        description="list of erasures, which `db restore` needs; keep copies outside of backups; unset: "
        "HOME/erasures.jsonl",
    )
    metrics_token: SecretStr | None = Field(
        None, description="at least 32 bytes: the bearer token of GET /metrics; unset: GET /metrics is refused"
    )
    inference_url: str | None = Field(
        None,
        description="server of the Open Inference Protocol v2 that runs the network, or one model of it "
        "(https://…/v2/models/NAME); unset: this process",
    )
    plain_http_hosts: list[str] = Field(
        [],
        description="JSON list of hosts within a private network that INFERENCE_URL or the bucket's endpoint may "
        "reach without TLS; this machine is always allowed",
    )
    inference_token: SecretStr | None = Field(None, description="bearer token for the server of INFERENCE_URL")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="device of the network in this process: cuda only, cpu, or auto (cuda if available)",
    )
    inference_threads: int = Field(
        0,
        ge=0,
        le=256,
        description="threads of one network run, as many runs at once as there are cores for; "
        "0: all cores, one for a small network",
    )
    inference_queue: int = Field(32, ge=1, le=10_000, description="predictions that may wait before 429")
    decode_memory: int = Field(
        1024**3,
        ge=1024**3,
        description="bytes for decoding pictures of more than a megapixel or of 16 bits, in separate processes",
    )
    requests_at_once: int = Field(
        8, ge=1, le=10_000, description="requests of one caller that run at once; the others wait in turn"
    )
    rate_limit: int = Field(
        12_000, ge=0, description="requests per minute of one account, in each server process, before 429; 0: no limit"
    )
    change_plan: Path | None = Field(None, description="JSON file that bounds what a recalibration may change")
    recalibrate_days: int | None = Field(
        None, ge=1, description="days between recalibrations by schedule; unset: never"
    )
    executor_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]{1,90}$",
        description="name of a worker on PostgreSQL: the same after each restart, and different from those of other "
        "workers; unset: the host's name and a number",
    )
    worker: bool = Field(True, description="whether `serve` starts the worker process, on SQLite")
    oidc_issuer: str | None = Field(None, description="issuer of an OpenID provider, for single sign-on")
    oidc_client_id: str | None = Field(None, description="this service's client id there")
    oidc_client_secret: SecretStr | None = Field(None, description="this service's client secret there")
    public_url: str | None = Field(
        None,
        description="address that browsers use; if it begins with https, cookies are for TLS only and HSTS is sent",
    )
    trusted_proxies: list[str] = Field(
        ["127.0.0.1", "::1"],
        description="JSON list of trusted proxies, addresses or networks: their X-Forwarded-For and "
        "X-Forwarded-Proto count",
    )
    timezone: str = Field(
        "UTC",
        description="time zone of the laboratory's days on the pages of annotators, such as Europe/Berlin; weeks and "
        "stored times are UTC",
    )
    min_free_bytes: int = Field(2 * 1024**3, ge=0, description="free bytes below which uploads get 507")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is said where a setting is made, then the environment, then files of the folder of secrets."""
        folder = (env_settings() | init_settings()).get("secrets")
        if folder is None:
            return init_settings, env_settings
        if not Path(folder).is_dir():
            raise ValueError(f"SECONDREAD_SECRETS: there is no folder {folder}")
        return init_settings, env_settings, SecretsSettingsSource(settings_cls, folder)

    @field_validator("secret_key", "metrics_token")
    @classmethod
    def _strong(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            KeyRing.parse(value.get_secret_value().encode())
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        return [str(ip_network(item) if "/" in item else ip_address(item)) for item in value]

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        return load_time_zone(value).key

    @property
    def zone(self) -> ZoneInfo:
        """The laboratory's time zone."""
        return load_time_zone(self.timezone)

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.secret_key is not None and self.secret_key_file is not None:
            raise ValueError("set SECRET_KEY or SECRET_KEY_FILE, not both")
        return self

    @model_validator(mode="after")
    def _whole_provider(self) -> Self:
        parts = (self.oidc_issuer, self.oidc_client_id, self.oidc_client_secret)
        if any(parts) and not (all(parts) and self.public_url):
            raise ValueError("single sign-on needs OIDC_ISSUER, OIDC_CLIENT_ID, OIDC_CLIENT_SECRET and PUBLIC_URL")
        if self.oidc_issuer is not None and not self.oidc_issuer.startswith(("https://", "http://127.0.0.1:")):
            raise ValueError("OIDC_ISSUER must be an https address")
        return self

    @field_validator("inference_url")
    @classmethod
    def _web_address(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
                raise ValueError("must be an address such as http://127.0.0.1:8000")
            if parts.username is not None:
                raise ValueError("must not carry a password; set INFERENCE_TOKEN")
        return value

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.inference_url is not None and self.device == "cuda":
            raise ValueError("by INFERENCE_URL the network runs elsewhere, and DEVICE wants cuda here: unset one")
        return self

    @field_validator("storage_url")
    @classmethod
    def _known_place(cls, value: str | None) -> str | None:
        if value is not None and "://" in value and not value.startswith(("file://", *SCHEMES)):
            raise ValueError("only a folder or a bucket (s3://, gs://, az://) is supported")
        return value

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        addresses = {} if self.inference_url is None else {"SECONDREAD_INFERENCE_URL": self.inference_url}
        if self.bucket_url is not None:
            addresses |= find_endpoints(self.bucket_url)
        for name, address in addresses.items():
            parts = urlsplit(address)
            host = parts.hostname or ""
            if parts.scheme == "http" and not _is_this_machine(host) and host not in self.plain_http_hosts:
                raise ValueError(
                    f"{name}: {host} would be asked without TLS: use https, or allow it by "
                    f"SECONDREAD_PLAIN_HTTP_HOSTS='[\"{host}\"]'"
                )
        return self

    @property
    def sqlalchemy_url(self) -> str:
        """Database to use; a bare ``postgresql://`` gets the driver that is installed."""
        return self._with_driver(self.database_url)

    @property
    def direct_sqlalchemy_url(self) -> str:
        """The same database past a transaction pooler, which a worker's lock would not survive."""
        return self._with_driver(self.database_direct_url or self.database_url)

    @property
    def owner_sqlalchemy_url(self) -> str:
        """The same database by the role that owns its tables."""
        return self._with_driver(self.database_owner_url or self.database_direct_url or self.database_url)

    def _with_driver(self, url: str | None) -> str:
        if url is None:
            return f"sqlite:///{self.home.absolute() / 'secondread.db'}"
        return url.replace("postgresql://", "postgresql+psycopg://", 1)

    @property
    def images_folder(self) -> Path:
        """Folder of the image store, where it is no bucket."""
        if self.storage_url is None or self.bucket_url is not None:
            return self.home / "images"
        return Path(self.storage_url.removeprefix("file://"))

    @property
    def bucket_url(self) -> str | None:
        """Address of the bucket; None where everything lies in folders."""
        return self.storage_url if self.storage_url is not None and self.storage_url.startswith(SCHEMES) else None

    @property
    def erasure_list(self) -> Path:
        """List of erasures."""
        return self.erasures or self.home / "erasures.jsonl"

    @property
    def head_file(self) -> Path:
        """File of heads of the audit chain."""
        return self.audit_anchor or self.home / "heads"

    @property
    def releases_folder(self) -> Path:
        """Folder with a verified copy of each release."""
        return self.home / "releases"

    @property
    def key_file(self) -> Path:
        """File of the key ring, where no setting contains it."""
        return self.home / "secret.key" if self.secret_key_file is None else self.secret_key_file

    def existing_ring(self) -> KeyRing | None:
        """Key ring that is set or lies in HOME; None where there is none yet."""
        if self.secret_key is not None:
            return KeyRing.parse(self.secret_key.get_secret_value().encode())
        path, own = self.key_file, self.secret_key_file is None
        if own and not path.is_file():
            return None
        mode = path.stat().st_mode & 0o777
        if own and mode & 0o077:
            raise ValueError(
                f"{path}: other users of this machine can get at it (mode {mode:o}); run `chmod 600 {path}`"
            )
        try:
            return KeyRing.parse(path.read_bytes() if own else path.read_bytes().strip())
        except ValueError as exc:
            raise ValueError(f"{path}: a key {exc}") from exc

    def key_ring(self) -> KeyRing:
        """Key ring, made once in HOME where none is set."""
        ring = self.existing_ring()
        if ring is not None:
            return ring
        self.home.mkdir(parents=True, exist_ok=True)
        unfinished = write_secret_file(self.key_file, KeyRing.new().to_bytes())
        try:
            os.link(unfinished, self.key_file)  # whole, or not at all
        except FileExistsError:
            pass  # another process made it just now
        finally:
            unfinished.unlink()
        return KeyRing.parse(self.key_file.read_bytes())


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def write_secret_file(path: Path, content: bytes) -> Path:
    """Write a secret to a new file of its own, next to where it is to be; gives its path."""
    unfinished = path.with_name(f".secret.{secrets.token_hex(8)}.tmp")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return unfinished


def settings_help() -> str:
    """One line for each setting."""
    lines = []
    for name, info in Settings.model_fields.items():
        default = "unset" if info.default is None else info.default
        lines.append(f"SECONDREAD_{name.upper()}: {info.description} (default {default})")
    return "\n\n".join(lines)


def read_settings() -> Settings:
    """The settings that the environment makes."""
    try:
        return Settings()
    except ValidationError as exc:
        faults = [(".".join(str(part) for part in fault["loc"]), describe_fault(fault)) for fault in exc.errors()]
        lines = [f"SECONDREAD_{name.upper()}: {what}" if name else what for name, what in faults]
        raise ValueError("; ".join(lines)) from None


class _CollectorSettings(BaseSettings):
    """OpenTelemetry's own variables, as far as they decide whether there are traces."""

    model_config = SettingsConfigDict(env_prefix="OTEL_", extra="ignore")

    exporter_otlp_traces_endpoint: str = ""
    exporter_otlp_endpoint: str = ""
    exporter_otlp_traces_protocol: str = ""
    exporter_otlp_protocol: str = ""
    traces_exporter: str = ""
    sdk_disabled: str = ""


def collector_variable() -> str | None:
    """Name of OpenTelemetry's variable with the collector's address; None without one."""
    variables = _CollectorSettings().model_dump()
    name = next((name for name in ("exporter_otlp_traces_endpoint", "exporter_otlp_endpoint") if variables[name]), None)
    if name is None or variables["sdk_disabled"].lower() == "true" or variables["traces_exporter"] == "none":
        return None
    address = urlsplit(variables[name])
    if address.scheme not in {"http", "https"} or not address.hostname:
        raise ValueError(f"OTEL_{name.upper()}: must be an address such as http://127.0.0.1:4318")
    for other in ("exporter_otlp_traces_protocol", "exporter_otlp_protocol"):
        if variables[other] not in {"", "http/protobuf"}:
            raise ValueError(f"OTEL_{other.upper()}: only http/protobuf is supported")
    return f"OTEL_{name.upper()}"
