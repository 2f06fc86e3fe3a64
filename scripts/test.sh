#!/usr/bin/env bash
# Runs the Go tests with what this machine has, and says what it left out.
# With MINK_TEST_NOTHING_LEFT_OUT=1 anything left out is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

left_out=()
flags=()
if command -v "${CC:-cc}" >/dev/null 2>&1; then
	flags+=(-race)
	export CGO_ENABLED=1
else
	left_out+=("the race detector: no C compiler (install gcc)")
	export CGO_ENABLED=0
fi

find_postgres() {
	command -v initdb && return
	ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null | sort -V | tail -1
}
if [ -n "$(find_postgres)" ]; then
	export MINK_TEST_POSTGRES=required
else
	left_out+=("Postgres: no initdb found (install postgresql)")
fi

missing=$(scripts/cloud-servers.sh)
if [ -z "$missing" ]; then
	export MINK_TEST_CLOUD=required
else
	while read -r line; do left_out+=("the object-store plugins' tests: $line"); done <<<"$missing"
fi

# The chart's test wants helm, which is no dependency of the module.
helm=v3.19.4
if [ "$(cat .cache/helm/.version 2>/dev/null)" != $helm ]; then
	mkdir -p .cache/helm/bin
	if GOBIN=$PWD/.cache/helm/bin CGO_ENABLED=0 go install helm.sh/helm/v3/cmd/helm@$helm >.cache/helm/log 2>&1; then
		echo $helm >.cache/helm/.version
	fi
fi
if [ -e .cache/helm/.version ]; then
	export MINK_TEST_HELM=required
else
	left_out+=("the chart: helm $helm cannot be installed (.cache/helm/log)")
fi
command -v systemd-analyze >/dev/null || left_out+=("the systemd unit's check by systemd-analyze (install systemd)")

packages=$(go list ./... | grep -v -e /core/e2e -e /core/bench)
# shellcheck disable=SC2086
go test "${flags[@]}" -timeout 20m "$@" $packages

if [ ${#left_out[@]} -gt 0 ]; then
	printf 'left out: %s\n' "${left_out[@]}"
	if [ "${MINK_TEST_NOTHING_LEFT_OUT:-}" = 1 ]; then exit 1; fi
else
	echo "left out: nothing"
fi
