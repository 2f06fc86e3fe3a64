#!/usr/bin/env bash
# Makes .cache/lake-venv, a Python environment with the engines that read the lake in tests
# (core/e2e/foreign/requirements.txt). The DuckDB extensions come as wheels, nothing else is
# downloaded. With the argument spark it has Spark too, and .cache/spark Iceberg's runtime for
# it (needs Java and mvn); says in one line why not when that fails.
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

[ "${1:-}" = spark ] || exit 0
spark=4.0.1 runtime=iceberg-spark-runtime-4.0_2.13:1.10.0
[ "$(cat $venv/.spark 2>/dev/null)" = "$spark $runtime" ] && exit 0
if { $venv/bin/pip install --quiet --disable-pip-version-check pyspark==$spark &&
	rm -rf .cache/spark &&
	mvn -q -B dependency:copy -Dartifact=org.apache.iceberg:$runtime -DoutputDirectory="$PWD/.cache/spark"; } >.cache/spark.log 2>&1; then
	echo "$spark $runtime" >$venv/.spark
else
	echo "Spark $spark with $runtime: $(tail -n 1 .cache/spark.log) (all of it: .cache/spark.log)"
fi
