.PHONY: check quick site release test-slow test-long govulncheck generate reference check-promises state-fixture check-page test-vm test-vm-short test-faults test-starts test-short-tasks test-short-tasks-vm test-kills test-kills-user test-damage test-accounts test-hostile-jobs test-hostile-templates test-hostile-servers test-listeners test-scale test-defects test-lives test-planted test-mutants simulate test-behaviour test-cluster test-access-control test-upgrade screenshots bench bench-scale bench-peers bench-cluster bench-all

check: ## what CI runs
	bash .ci/run

quick: ## format, vet and short tests of the changed packages and of their direct importers, and links if a document changed; BASE is where the change starts, by default main
	go run -C internal/tools ./quick $(if $(BASE),-base $(BASE))

site: ## the static site of the documentation in dist/site, and a check of the links in all Markdown files
	go test -C internal/tools -count=1 ./site/...
	go run -C internal/tools ./site

release: check-promises ## all files of the release VERSION in dist: archives, packages, images, checksums; from a work tree without changes
	go run -C internal/tools ./release -version '$(VERSION)'

test-slow: ## all tests, with those that go test ./... skips: contract suites, engines, programs of others; root runs more of them
	NOMAD_LITE_SLOW=all go test -count=1 -timeout=120m ./...

test-long: ## the slow tests that make check leaves out: the commands of the documents, plugins that are built, engines, emulated machines, and Nomad's own job files from ../shared; root runs more of them
	NOMAD_LITE_SLOW=all go test -count=1 -v -timeout=60m -run '^Test((Docs|QuickStart|PluginsBuildAgainstThePublishedModule|PluginsOfAuthors|CorpusRuns|Docker|DownloadProgress)$$|Scripts$$/^plugin_(new|dev))' $(addprefix ./cmd/nomad-lite/systemtest/,commands thirdparty jobs)
	NOMAD_LITE_SLOW=all go test -count=1 -v -timeout=60m -run '^Test(Contract|ContractWithPodman|Engine|EnginesMountWhatIsChecked|FloodsDoNotDelayOthers)$$' ./builtin/docker ./builtin/qemu ./runtime/agent/httpapi

govulncheck: ## known vulnerabilities of the dependencies that the code reaches; needs network
	go run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./...

generate: ## protobuf code, after a change of a .proto file
	go generate ./...

# The packages of the files that are written from the code: pages and tables of docs, docs/promises, lists of stored fields and more.
REFERENCE = $(addprefix ./,$(sort $(dir $(shell git grep -l '^func TestReference' -- '*_test.go'))))
reference: ## all files that are written from the code, after a change of commands, settings, routes, records, comments and so on; a promise that was removed or changed stays, and is reported
	NOMAD_LITE_UPDATE=1 go test -count=1 -run '^TestReference' $(REFERENCE)

check-promises: ## fails if docs/promises lacks something that the program has: a release promises all that it has
	NOMAD_LITE_PROMISES_COMPLETE=1 go test -count=1 -run '^TestReference.*Promises$$' $(REFERENCE)

state-fixture: ## with VERSION=0.1, the data directory testdata/state/0.1 of a release, which is never changed again
	go test -count=1 -run '^Test(ReferenceStoredFields|ReferenceStateFixtures|FreezeState)$$' ./runtime/store -freeze '$(VERSION)'

check-page: ## the types and the unit tests of the modules of the web page; needs the Debian packages nodejs and node-typescript
	tsc -p runtime/agent/ui
	node --test runtime/agent/ui/test/*.test.js

test-vm: ## in emulated machines with cgroups v2: what touches processes, hostile jobs and accounts, power that is lost, reboots of a node of a stock server, and installations under systemd
	NOMAD_LITE_VM=1 go test -v -count=1 -timeout=2h -run '^TestVM$$' ./cmd/nomad-lite/systemtest/vm

test-vm-short: ## the part of test-vm that CI runs: what only cgroups v2 can show, and power that is lost once; five minutes
	NOMAD_LITE_VM=1 go test -v -short -count=1 -timeout=60m -run '^TestVM$$' ./cmd/nomad-lite/systemtest/vm

# The variables of long runs are described in docs/endurance.md. A part has its own timeout.
DURATION ?= 30m
PART = -duration $(DURATION) $(if $(SEED),-seed $(SEED)) $(if $(APPEND),-append $(CURDIR)/docs/endurance.md)
LONG = go test -count=1 -timeout 0 -v -run

test-faults: ## a long run of faults: each process killed at each moment of a task's life, damaged states, stopped starts; then the processes again with a node whose allocations come from servers; needs root
	$(LONG) '^TestAllFaults$$' ./cmd/nomad-lite/systemtest/faults $(PART)
	$(LONG) '^TestAllFaultsInCluster$$' ./cmd/nomad-lite/systemtest/faults $(PART)

test-starts: ## a long run of kills of agent, plugins, keeper and log collector while tasks start and exit that may run only once; needs root
	$(LONG) '^TestInterruptedStarts$$' ./cmd/nomad-lite/systemtest/faults $(PART)
	$(LONG) '^TestInterruptedStartsOnPodman$$' ./cmd/nomad-lite/systemtest/faults $(PART)

test-short-tasks: ## a long run of kills of agent, plugins, keeper and log collector while tasks of 20 ms start and exit; needs root
	$(LONG) '^TestShortTasks$$' ./cmd/nomad-lite/systemtest/faults $(PART)

test-short-tasks-vm: ## test-short-tasks in emulated machines with cgroups v2
	$(LONG) '^TestShortTasksInVM$$' ./cmd/nomad-lite/systemtest/vm $(PART)

test-kills: ## a long run of random pairs of kills while 100 tasks of all kinds run, artifacts are downloaded, canaries are deployed, devices fail, tasks exceed their memory, and the clock of the machine steps by up to 30 s; needs root
	$(LONG) '^TestRandomKills$$' ./cmd/nomad-lite/systemtest/faults $(PART)

test-damage: ## a long run of random damages to the state file while tasks of all kinds run; needs root
	$(LONG) '^TestDamagedStateKeepsTasks$$' ./cmd/nomad-lite/systemtest/faults $(PART)

test-kills-user: ## test-kills with an agent that is not root, and the kinds of tasks that it can run; needs root
	$(LONG) '^TestRandomKillsOfUser$$' ./cmd/nomad-lite/systemtest/faults $(PART)

test-accounts: ## a long run of random schedules, in which other accounts attack an agent while tasks start, restart and end and the agent is killed; needs root
	$(LONG) '^TestOtherAccountsGetNothing$$' ./cmd/nomad-lite/systemtest/hostile $(PART)

test-hostile-jobs: ## a long run of random jobs with hostile values, whose tasks attack the machine, other tasks and the agent, and of random texts with file functions; needs root
	$(LONG) '^TestHostileJobsGetNothingMore$$' ./cmd/nomad-lite/systemtest/hostile $(PART)
	$(LONG) '^TestHostileJobsOnPodman$$' ./cmd/nomad-lite/systemtest/hostile $(PART)
	$(LONG) '^TestJobTextsReadNothingMore$$' ./cmd/nomad-lite/systemtest/hostile $(PART)
	$(LONG) '^TestJobTextsFindPermittedFiles$$' ./cmd/nomad-lite/systemtest/hostile $(PART)

test-listeners: ## a long run of random commands at listeners of another account in the place of an agent that does not run; needs root
	$(LONG) '^TestListenersOfOtherAccountsGetOnlyChallenges$$' ./cmd/nomad-lite/systemtest/hostile $(PART)

COUNT ?= 2500
test-hostile-templates: ## COUNT random templates that take all time or memory that they get, beside those of another task; a quarter of an hour
	NOMAD_LITE_HOSTILE_TEMPLATES=$(COUNT) go test -count=1 -v -timeout=60m -run '^TestHostileTemplates$$' ./builtin/template/evaluators

test-hostile-servers: ## a long run of servers whose responses to a node and requests are changed at random
	$(LONG) '^TestLyingServersGetNothingMore$$' ./cmd/nomad-lite/systemtest/hostile $(PART)

test-scale: ## a long run of loads of hundreds of tasks, which start, survive a killed agent and stop, with figures beside raw_exec; on a machine that does nothing else; needs root
	$(LONG) '^TestScale$$' ./cmd/nomad-lite/systemtest/bench $(PART)

test-defects: ## drivers, hooks and device plugins with one defect each against all cases of the contract tests; some minutes
	NOMAD_LITE_ALL_CASES=1 go test -count=1 -timeout=30m -run '^Test(Driver|Hook|Device)Defects$$' ./sdk/sdktest

test-lives: ## a million random lives of a task through the table of its steps, with kills, shutdowns and crashes of the agent
	go test -count=1 -v -run '^TestRandomLives$$' ./runtime/core/tasksteps -lives 1000000

test-planted: ## each defect of a list is planted alone in the task runner, and in access control, and must be found by the tests; fifteen minutes
	go run -C internal/tools ./planted -defects runtime/agent/httpapi/testdata/access-defects.txt ./runtime/acl ./runtime/store/accesscontrol ./runtime/agent/httpapi
	go run -C internal/tools ./planted -defects runtime/core/taskrunner/testdata/defects.txt ./runtime/core/taskrunner ./runtime/core/taskdriver ./runtime/core/allocrunner

MUTANTS = go run -C internal/tools ./mutants -equivalent internal/tools/mutants/equivalent.txt
test-mutants: ## small changes of the record of a task, of the tables that lead to it, of the order of tasks and of the restart policy, one at a time, which tests must find; two hours
	$(MUTANTS) $(addprefix runtime/core/record/,apply.go facts.go record.go) -- ./runtime/core/record
	$(MUTANTS) runtime/core/tasksteps/tasksteps.go -- ./runtime/core/tasksteps
	$(MUTANTS) runtime/core/taskrunner/startrule.go runtime/core/taskdriver/watchtable.go -- ./runtime/core/taskrunner ./runtime/core/taskdriver
	$(MUTANTS) $(addprefix runtime/core/restart/,restart.go end.go) -- ./runtime/core/restart
	$(MUTANTS) $(addprefix runtime/core/lifecycle/,coordinator.go extension.go gate.go graph.go group.go phase.go tasks.go) -- ./runtime/core/lifecycle ./runtime/job/model

simulate: ## a long run of random jobs and faults under virtual time: plans alone, then with the real runners, then with the real runners as a node of simulated servers
	$(LONG) '^TestSimulation$$' ./runtime/scheduler $(PART)
	$(LONG) '^TestSimulation$$' ./runtime/agent $(PART)
	$(LONG) '^TestClusterSimulation$$' ./runtime/agent $(PART)

test-behaviour: ## scenarios that were played on Nomad, from ../shared, with an agent alone and with a node behind the scheduler and the HTTP API of another; two minutes, needs root
	NOMAD_LITE_BEHAVIOUR=1 go test -count=1 -run '^TestBehaviourMatchesNomad$$' ./cmd/nomad-lite/systemtest/jobs
	NOMAD_LITE_BEHAVIOUR=1 go test -count=1 -run '^TestBehaviourMatchesNomadWithOwnScheduler$$' ./cmd/nomad-lite/systemtest/cluster

test-cluster: ## a node of a stock cluster, from ../shared: the scenarios of test-behaviour, 200 tasks that survive outages of ten minutes, then a long run of random faults; needs root
	NOMAD_LITE_SLOW=1 NOMAD_LITE_BEHAVIOUR=1 go test -count=1 -v -timeout=60m -run '^TestBehaviourMatchesNomadInCluster$$' ./cmd/nomad-lite/systemtest/cluster
	NOMAD_LITE_SLOW=1 go test -count=1 -v -timeout=60m -run '^TestTasksSurviveOutages$$' ./cmd/nomad-lite/systemtest/cluster -duration 1s $(if $(APPEND),-append $(CURDIR)/docs/endurance.md)
	NOMAD_LITE_SLOW=1 $(LONG) '^TestRandomFaultsInCluster$$' ./cmd/nomad-lite/systemtest/cluster $(PART)

PAIRS_OF_TOKENS ?= all
test-access-control: ## the recorded table of requests and tokens, from ../shared, is played, or PAIRS_OF_TOKENS of its cells; needs root and python3; hours, or minutes for 300
	NOMAD_LITE_ACCESS_CONTROL=$(PAIRS_OF_TOKENS) go test -v -count=1 -timeout=24h -run '^TestRecordedAccessControl$$' ./cmd/nomad-lite/systemtest/jobs

test-upgrade: ## the program of the last release is replaced by a release of HEAD and back, under 100 tasks of all kinds; containers need dockerd, podman and busybox-static, Java a JDK, a third-party driver ../shared; minutes; a user other than root runs the kinds that this user can run
	NOMAD_LITE_UPGRADE=1 go test -v -count=1 -timeout=30m -run '^TestUpgrade(Podman)?$$' ./cmd/nomad-lite/systemtest/upgrade

BENCHTIME ?= $(if $(BASE),100ms,5x)
PAIRS ?= 10
bench: ## every figure of the design's budgets, beside its floor, as a table, and the API; with BASE=commit, the comparison with it in PAIRS rounds, of the benchmarks that BENCH matches; on a machine that does nothing else
ifeq ($(BASE),)
	go test -run '^$$' -bench '^Benchmark(HTTPRequests|Jobs|EventStream)$$' ./runtime/agent/httpapi
	go test -run '^$$' -bench . -benchtime $(BENCHTIME) -timeout 30m ./cmd/nomad-lite/systemtest/bench
else
	go run -C internal/tools ./benchcompare -base '$(BASE)' -bench '$(BENCH)' -pairs $(PAIRS) -benchtime $(BENCHTIME)
endif

bench-scale: ## rates, memory and times of reads of 100 to 10,000 tasks at once, as a table; ten minutes; on a machine that does nothing else; needs root
	NOMAD_LITE_SLOW=1 go test -run '^$$' -bench '^BenchmarkScaleCurve$$' -benchtime 1x -timeout 60m ./cmd/nomad-lite/systemtest/bench

ROUNDS ?= 3
bench-peers: ## nomad-lite, Nomad from ../shared, docker, podman and runc with the same program, in turn, in ROUNDS rounds of some minutes; leaves out what is not installed; on a machine that does nothing else; needs root
	NOMAD_LITE_SLOW=1 go test -run '^$$' -bench '^BenchmarkPeers$$' -benchtime $(ROUNDS)x -timeout 60m ./cmd/nomad-lite/systemtest/bench

bench-cluster: ## a node beside a stock client, from ../shared, on the same stock server: times, memory, bytes and calls, in ROUNDS rounds, each of some minutes; the stock client needs 6 GB for its 200 tasks; on a machine that does nothing else; needs root
	NOMAD_LITE_SLOW=1 go test -run '^$$' -bench '^BenchmarkClusterNode$$' -benchtime $(ROUNDS)x -timeout 60m ./cmd/nomad-lite/systemtest/cluster

screenshots: ## the pictures of docs/how-to/ui-walks.md, drawn again with chromium
	NOMAD_LITE_SLOW=1 NOMAD_LITE_SCREENSHOTS=$(CURDIR)/docs/images go test -count 1 -run '^TestUIWalks$$' ./cmd/nomad-lite/systemtest/pages

bench-all: ## the benchmarks of all packages
	go test -run '^$$' -bench . -benchtime 1x ./...
