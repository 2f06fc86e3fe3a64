#!/usr/bin/env bash
# Other engines read the lake of a node that Kafka and Flight clients write to (core/e2e), and the one that its sink writes
# (core/e2e/foreign), and use its catalog (core/icebergrest). Needs bin/mink. Makes a Python environment of its own
# under .cache (scripts/lake-venv.sh). RUN chooses tests by name. Prints what was left out, and
# fails for it when MINK_TEST_NOTHING_LEFT_OUT is set.
set -euo pipefail
cd "$(dirname "$0")/.."

left_out=$(scripts/lake-venv.sh spark)
[ -n "$left_out" ] || MINK_TEST_ICEBERG_SPARK=$(ls "$PWD"/.cache/spark/*.jar)
export MINK_TEST_ICEBERG_SPARK
export MINK_TEST_LAKE_PYTHON="$PWD/.cache/lake-venv/bin/python" MINK_TEST_BINARY="$PWD/bin/mink"
[ -x "$MINK_TEST_BINARY" ] || { echo "e2e-lake needs bin/mink: run make build"; exit 1; }
go test -count=1 -timeout 20m -v -run "${RUN:-.}" ./core/e2e/foreign ./core/icebergrest
go test -count=1 -timeout 20m -v -run "${RUN:-^TestLake(OfANode|InOtherCatalogs|RefusesNames|Maintenance)|^TestDemo\$}" ./core/e2e
if [ -n "$left_out" ]; then
	echo "left out: $left_out"
	[ "${MINK_TEST_NOTHING_LEFT_OUT:-}" != 1 ] || exit 1
fi
