#!/bin/sh
# The shards of a list of images by GNU parallel, a job per core, or by xargs where parallel is missing.
#
#   SHARDS=500 RELEASE=release IMAGES=list.parquet OUT=scores JOBS=8 sh score-parallel.sh
#
# Machines that see the same folder share the work with: parallel --sshloginfile hosts --retries 3
set -eu
JOBS="${JOBS:-$(getconf _NPROCESSORS_ONLN)}"
if command -v parallel >/dev/null; then
  seq "$SHARDS" | parallel --jobs "$JOBS" secondread score "$RELEASE" --images "$IMAGES" --shard "{}/$SHARDS" --out "$OUT"
else
  seq "$SHARDS" | xargs -P "$JOBS" -I '{}' secondread score "$RELEASE" --images "$IMAGES" --shard '{}'"/$SHARDS" --out "$OUT"
fi
secondread score-finish "$OUT"
