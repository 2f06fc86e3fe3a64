#!/usr/bin/env bash
# Makes .cache/lake-venv, a Python environment with the engines that read the lake in tests
# (core/e2e/foreign/requirements.txt). The DuckDB extensions come as wheels, nothing else is
# downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.cache/lake-venv
want=$(cat core/e2e/foreign/requirements.txt)
[ "$(cat $venv/.requirements 2>/dev/null)" != "$want" ] || exit 0
rm -rf $venv
python3 -m venv $venv
$venv/bin/pip install --quiet --disable-pip-version-check -r core/e2e/foreign/requirements.txt
echo "$want" >$venv/.requirements
