#!/bin/sh
# Two roles, once, when the database is made: one owns all tables, the other, as which the service runs, owns nothing.
set -eu
folder="${SECRETS:-/run/secrets}"
owner=$(cat "$folder/owner_password")
service=$(cat "$folder/service_password")
psql --quiet --set=ON_ERROR_STOP=1 --username="${POSTGRES_USER:-postgres}" --dbname="$POSTGRES_DB" \
  --set=owner="$owner" --set=service="$service" --set=base="$POSTGRES_DB" <<'SQL'
CREATE ROLE secondread_owner LOGIN PASSWORD :'owner';
CREATE ROLE secondread LOGIN PASSWORD :'service';
ALTER DATABASE :"base" OWNER TO secondread_owner;
ALTER SCHEMA public OWNER TO secondread_owner;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
SQL
