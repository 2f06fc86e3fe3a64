# Mink. `make help` lists the targets.
SHELL := /bin/bash
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X github.com/mink-project/mink/core/server.Version=$(VERSION)
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 10s
MODULE := github.com/mink-project/mink
export CGO_ENABLED ?= $(shell command -v $${CC:-cc} >/dev/null 2>&1 && echo 1 || echo 0)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: build
build: ## build bin/mink (static, no C)
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o bin/mink ./cmd/mink

.PHONY: plugins
plugins: ## build every plugin into bin/plugins, each with its manifest (static, no C)
	@VERSION='$(VERSION)' scripts/plugins.sh bin/plugins

.PHONY: demo
demo: build ## build, run the main job on embedded defaults, print what happened
	./bin/mink demo

.PHONY: run
run: build ## run a node on the embedded defaults (Kafka 9092, Flight 9123, HTTP 9190)
	./bin/mink serve

.PHONY: test
test: ## unit, story, conformance and simulation tests; prints what it had to leave out
	@scripts/test.sh

.PHONY: mutants
mutants: ## puts faults into the code, one by one, and expects the tests to notice each; TURN=TEXT: one of each list, by turns
	go test -count=1 -timeout 60m -v -run 'FaultsOfCode' $$(git grep -l 'codefault.MustNotice' -- '*_test.go' | xargs -n1 dirname | sort -u | sed 's#^#./#') -mutants $(if $(TURN),-mutants-turn $(TURN))

.PHONY: planted
planted: ## the planted bugs of docs/simulation.md that need the code built with them
	go test -count=1 -timeout 20m -v -run 'FaultsOfCode' ./core/metalog/memlog ./core/metalog/sqllog -mutants

.PHONY: sim
sim: ## clusters in virtual time with fresh seeds, everything failing (HOURS=n node-hours, default 20; or SEEDS=n clusters; SEED=n: the first)
	@echo "commit $(VERSION)"
	@go test -c -o bin/sim.test ./core/sim
	@cd core/sim && ../../bin/sim.test -test.timeout 0 -test.run "^TestManyClusters$$" -sim.first $(or $(SEED),0) $(if $(SEEDS),-sim.runs $(SEEDS),-sim.hours $(or $(HOURS),20))

.PHONY: e2e
e2e: build ## real processes and real clients (needs kcat and python3 with pyarrow)
	@scripts/e2e.sh

.PHONY: e2e-s3
e2e-s3: build plugins ## the end-to-end tests with the objects in S3 (a local server), killed under load
	@scripts/cloud-servers.sh && scripts/e2e.sh s3

.PHONY: interop
interop: build ## nine Kafka clients against one node (needs kcat, gcc, node and npm, maven and a JDK, python3)
	@scripts/interop.sh

.PHONY: e2e-lake
e2e-lake: build ## DuckDB, PyIceberg and Spark read the lake (needs python3, for Spark maven and a JDK; makes an environment of its own)
	@scripts/e2e-lake.sh

.PHONY: suites
suites: build ## other projects' Kafka suites against a node (franz-go, librdkafka, Java's tools, Connect)
	@scripts/suites.sh

.PHONY: chaos
chaos: build ## random SIGKILLs under load (ROUNDS=n, default 20)
	@ROUNDS=$${ROUNDS:-20} scripts/e2e.sh chaos

.PHONY: chaos-sink
chaos-sink: build ## kills of nodes, the Postgres sink and its Postgres at every step of a round, under load (ROUNDS=n, default 5; SEED=n)
	@scripts/e2e.sh chaos-sink

.PHONY: chaos-cluster
chaos-cluster: build ## random faults of three nodes, Postgres and an S3 server under load (ROUNDS=n, default 5; SEED=n)
	@VERSION='$(VERSION)' scripts/plugins.sh bin/plugins objstore-s3
	@VERSION='$(VERSION)' scripts/skewed-clock.sh
	@scripts/cloud-servers.sh && scripts/e2e.sh chaos-cluster

.PHONY: chaos-lake
chaos-lake: build ## kills and other faults at every step of tiering, under load (ROUNDS=n, default 10; SEED=n; FAULT=part of a fault's name)
	@VERSION='$(VERSION)' scripts/plugins.sh bin/plugins objstore-s3
	@CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o bin/mink-faults ./core/e2e/faultnode
	@scripts/cloud-servers.sh && ROUNDS=$${ROUNDS:-10} scripts/e2e.sh chaos-lake

.PHONY: lint
lint: ## gofmt, go vet, golangci-lint
	@unformatted=$$(gofmt -l $$(git ls-files '*.go' | grep -v pb/)); test -z "$$unformatted" || { echo "gofmt needed: $$unformatted"; exit 1; }
	go vet ./...
	go run $(GOLANGCI) run ./...

.PHONY: fuzz
fuzz: ## every fuzz test for FUZZTIME each (default 10s)
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: ## benchmarks as ratios to limits and peers of the same run
	@scripts/bench.sh

.PHONY: proto
proto: ## regenerate protobuf code (needs protoc; its Go plugins are pinned in go.mod)
	@command -v protoc >/dev/null || { echo "make proto needs protoc (Debian: apt-get install protobuf-compiler)"; exit 1; }
	protoc --plugin=protoc-gen-go=$$(go tool -n protoc-gen-go) -I core/cluster/clusterpb \
	  --go_out=core/cluster/clusterpb --go_opt=paths=source_relative cluster.proto
	protoc --plugin=protoc-gen-go=$$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$$(go tool -n protoc-gen-go-grpc) -I sdk/proto \
	  --go_out=. --go_opt=module=$(MODULE) --go-grpc_out=. --go-grpc_opt=module=$(MODULE) $$(cd sdk/proto && ls mink/plugin/v*/*.proto)

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
