#!/usr/bin/env bash
# End-to-end tests: real node processes, real clients. `scripts/e2e.sh chaos`
# runs ROUNDS random SIGKILLs under load instead (MINK_TEST_CHAOS_SEED to repeat
# a run). Needs kcat and python3; makes
# a Python environment of its own under .cache.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v kcat >/dev/null || { echo "e2e needs kcat (Debian package kcat)"; exit 1; }
venv=.cache/venv
want=$(cat scripts/requirements.txt)
if [ "$(cat $venv/.requirements 2>/dev/null)" != "$want" ]; then
	rm -rf $venv
	python3 -m venv $venv
	$venv/bin/pip install --quiet --disable-pip-version-check -r scripts/requirements.txt
	echo "$want" >$venv/.requirements
fi
export MINK_TEST_PYTHON="$PWD/$venv/bin/python"
export MINK_TEST_BINARY="$PWD/bin/mink"
[ -x "$MINK_TEST_BINARY" ] || { echo "e2e needs bin/mink: run make build"; exit 1; }

case "${1:-all}" in
chaos) MINK_TEST_CHAOS_ROUNDS="${ROUNDS:-20}" go test -count=1 -timeout 30m -v -run '^TestChaos' ./core/e2e ;;
*) go test -count=1 -timeout 30m -parallel 6 -run "${RUN:-.}" ./core/e2e ;;
esac
