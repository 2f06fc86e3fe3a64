#!/usr/bin/env bash
# Installs the servers that the tests of the plugins start, pinned, under .cache/cloud:
# versitygw (S3), fake-gcs-server (GCS), Azurite (Azure Blob), Iceberg's reference REST
# catalog (needs Java and mvn), moto (Glue; needs Python).
# Prints one line for each that could not be installed.
set -uo pipefail
cd "$(dirname "$0")/.."
cache=$PWD/.cache/cloud
mkdir -p "$cache/bin"

# with NAME VERSION COMMAND...: runs the command unless that version is there.
with() {
	local name=$1 version=$2
	shift 2
	[ "$(cat "$cache/.$name" 2>/dev/null)" = "$version" ] && return
	if "$@" >"$cache/$name.log" 2>&1; then
		echo "$version" >"$cache/.$name"
	else
		echo "$name $version: $(tail -n 1 "$cache/$name.log") (all of it: .cache/cloud/$name.log)"
	fi
}

azurite() {
	mkdir -p "$cache/azurite"
	npm install --prefix "$cache/azurite" --no-audit --no-fund "azurite@$1"
}

iceberg_rest() { mvn -q -B -f scripts/iceberg-rest/pom.xml dependency:copy-dependencies -DoutputDirectory="$cache/iceberg-rest"; }

moto() {
	python3 -m venv "$cache/moto"
	"$cache/moto/bin/pip" install -q "moto[server,glue]==$1"
}

with versitygw v1.8.0 env GOBIN="$cache/bin" go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
with fake-gcs-server v1.56.1 env GOBIN="$cache/bin" go install github.com/fsouza/fake-gcs-server@v1.56.1
with azurite 3.37.0 azurite 3.37.0
with iceberg-rest 1.10.0 iceberg_rest
with moto 5.2.5 moto 5.2.5
