#!/usr/bin/env bash
# Other engines read the lake (core/e2e/foreign) and use its catalog (core/icebergrest). Makes a Python environment of its own
# under .cache; the DuckDB extensions come as wheels, nothing else is downloaded. RUN
# chooses tests by name.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.cache/lake-venv
want=$(cat core/e2e/foreign/requirements.txt)
if [ "$(cat $venv/.requirements 2>/dev/null)" != "$want" ]; then
	rm -rf $venv
	python3 -m venv $venv
	$venv/bin/pip install --quiet --disable-pip-version-check -r core/e2e/foreign/requirements.txt
	echo "$want" >$venv/.requirements
fi
MINK_TEST_LAKE_PYTHON="$PWD/$venv/bin/python" exec go test -count=1 -timeout 20m -v -run "${RUN:-.}" ./core/e2e/foreign ./core/icebergrest
