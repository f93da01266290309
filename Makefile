# SPDX-License-Identifier: Apache-2.0
#
# Needs Go (the version go.mod names) and, for the tests, the PostgreSQL 15 programs or newer; -race needs a C compiler.
# Tools are pinned: in go.mod (tool lines) and, for buf, in tools/buf/go.mod. Nothing but Go modules is downloaded, except for matrix,
# which lets npm fetch builds of PostgreSQL.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# What test and race run: the core first, so that its failures show early.
PKG ?= ./ledger/... ./...
# The build tags of code that can fail on command, and of guards that can be switched off.
FAILPOINTS := failpoints
GUARDS := guards

# buf takes minutes to build and milliseconds to run: it is built once for each state of its module.
BUF := .cache/bin/buf-$(shell cat tools/buf/go.mod tools/buf/go.sum | cksum | cut -d' ' -f1)

##@ Use
.PHONY: help
help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## start the development ledger (SQLite, an authority of its own, loopback only)
	@trap 'exit 0' INT; go run ./cmd/ledgerd dev # who ends it with Ctrl-C has seen no error

.PHONY: demo
demo: ## watch the ledger prevent a duplicate: a temporary directory, free ports, nothing left behind
	go run ./cmd/ledgerctl demo --standalone

.PHONY: build
build: ## build ledgerd and ledgerctl into bin/
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/ledgerd ./cmd/ledgerctl

##@ Check
.PHONY: test
test: ## run every test over both stores and real mTLS (PKG=./ledger/... for some)
	@go run ./tools/gotest -tag $(FAILPOINTS),$(GUARDS) $(PKG)

.PHONY: race
race: ## the same with the race detector (needs a C compiler; several times slower)
	@CGO_ENABLED=1 go run ./tools/gotest -race -timeout 30m -tag $(FAILPOINTS),$(GUARDS) $(PKG)

.PHONY: cases
cases: ## run the numbered cases over every store: case, test, store, result
	@go run ./test/cases

.PHONY: traces
traces: ## run each trace with its guard, and without: trace, guard, every store, what then happens
	@go run ./test/traces

.PHONY: matrix
matrix: ## run the PostgreSQL store's tests on PostgreSQL 15 to 18 and variants (npm fetches them; RUN=18 for some)
	@go run ./test/engines -run "$(RUN)"

.PHONY: bench
bench: ## measure the ledger against pgbench and a bare server, 10 minutes (QUICK=1: one; MARKDOWN=docs/benchmarks.md writes the page)
	@go run ./test/bench $(if $(QUICK),-quick) $(if $(MARKDOWN),-markdown $(MARKDOWN))

.PHONY: lint
lint: ## gofumpt, go vet, staticcheck, and the house rules (test/house: SPDX lines, imports, comments)
	@files=$$(go tool gofumpt -l .); if [ -n "$$files" ]; then \
		echo "not formatted, run make fmt:"; echo "$$files"; exit 1; fi
	go vet ./...
	go vet -tags $(FAILPOINTS),$(GUARDS) ./...
	go vet -tags laterspec ./cmd/ledgerd
	go tool staticcheck ./...
	go tool staticcheck -tags $(FAILPOINTS),$(GUARDS) ./...
	go test ./test/house

.PHONY: verify
verify: verify-gen verify-proto verify-mod ## gen/ is what generate makes, proto/ is formatted and compatible, go.mod is tidy

.PHONY: verify-gen
verify-gen: $(BUF)
	@rm -rf .cache/verify && mkdir -p .cache/verify
	@$(BUF) generate -o .cache/verify
	@diff -ru gen .cache/verify/gen || { echo "gen/ is not what make generate makes: run it and commit the result"; exit 1; }
	@rm -rf .cache/verify
	@echo "gen/ is what make generate makes"

.PHONY: verify-proto
verify-proto: $(BUF)
	@$(BUF) lint
	@$(BUF) format --diff --exit-code
	@$(BUF) breaking --against proto/baseline.binpb
	@echo "proto/ is clean, formatted and compatible with proto/baseline.binpb"

.PHONY: verify-mod
verify-mod:
	@go mod tidy -diff || { echo "go.mod or go.sum is not tidy: run go mod tidy"; exit 1; }
	@echo "go.mod is tidy"

##@ Change
.PHONY: generate
generate: $(BUF) ## make gen/ from proto/
	$(BUF) generate

.PHONY: fmt
fmt: $(BUF) ## format Go and proto sources
	go tool gofumpt -w .
	$(BUF) format -w

.PHONY: baseline
baseline: $(BUF) ## at a release: record proto/ as what later versions must stay compatible with
	$(BUF) build proto -o proto/baseline.binpb

$(BUF):
	@echo "building buf once, this takes some minutes"
	@rm -f .cache/bin/buf-*
	@go -C tools/buf build -buildvcs=false -o "$(CURDIR)/$(BUF)" github.com/bufbuild/buf/cmd/buf
