# SPDX-License-Identifier: Apache-2.0
# Thin on purpose: every verb is `cargo xtask <verb>`, where the logic is.

export PATH := $(PATH):$(HOME)/.cargo/bin
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-network check test test-all bench bench-detect bench-jitter bench-planner bench-agreement bench-redis bench-pace bench-rack test-redis test-redis-suite test-rack suites-rack soak spec sim sim-pace deaths histories histories-guest rdma clocks departures link-rack man book clean

help:
	@echo "make setup         check for the Debian packages that the build needs, install them if root"
	@echo "make demo          four hosts in network namespaces, processes and hosts die, and every other host is notified; without root, three agents over loopback; cargo xtask demo redis: a replicated Redis loses leader after leader; cargo xtask demo pace: X-PACE beside TCP"
	@echo "make demo-network  a network of switches: trees are planned, every cable is cut in turn, and drawings show before and after"
	@echo "make check         format, lints, documents, unit tests of what you changed since your branch left main; run it before each commit"
	@echo "make test          everything that CI runs: format, lints, headers, unit tests, specifications, clusters by seed, end-to-end tests"
	@echo "make test-all      the same, and tests that take long and find little in a single change"
	@echo "make spec          check the TLA+ specifications with the model checker TLC, and mutants that it has to reject; larger sizes than in make test"
	@echo "make sim SEEDS=n   simulate whole clusters from seeds: drift, pauses, loss, cuts, crashes; a failure replays from its seed"
	@echo "make sim-pace SEEDS=n  connections of X-PACE over links that lose, delay, reorder and repeat packets (100,000 seeds, about an hour)"
	@echo "make deaths ROUNDS=n  40 programs of a host die at once, on n fresh clusters of five hosts (200); a few rounds are in make test"
	@echo "make histories     registers replicated by real members under faults, 200 runs, judged by porcupine; a failure replays from its seed"
	@echo "make histories-guest  the same, with an emulated machine as one of five hosts, stopped and slewed (downloads 70 MB once)"
	@echo "make bench-detect  detection times against TCP, pidfd, memberlist and BFD"
	@echo "make bench-jitter  the jitter bench against planted noise, sockperf and cyclictest"
	@echo "make bench-planner planned trees: bounds checked packet by packet, cost, time to plan"
	@echo "make bench-agreement decisions per second"
	@echo "make bench-redis   the Redis module beside a server alone, WAIT, an append-only file and Sentinel; fail-over; ten minutes at the memory limit"
	@echo "make bench-pace    X-PACE beside TCP, QUIC and SRT: delivery times, paces, losses, shared links, cost"
	@echo "make bench-rack    two programs that share memory beside TCP over the loopback"
	@echo "make test-redis RUNS=n  the Redis module: histories of clients under kills, stops and cuts (200 runs), judged by porcupine"
	@echo "make test-redis-suite UNITS='unit/type/list ...'  Redis' own tests against servers with the module: all that can run against a server they have not started"
	@echo "make test-rack     rack sockets: each call, with the memory before each of them, and memcached, Java, asyncio and Go, beside the same over TCP"
	@echo "make suites-rack SUITES='test_ssl libuv go ...'  tests of sockets of CPython, libuv and Go over rack sockets, beside the same over TCP; ten minutes"
	@echo "make bench         all benchmarks"
	@echo "make soak          100 million heartbeats between three hosts and the tail of the gaps between them; if interrupted, it continues the next time"
	@echo "make rdma          the jitter bench over RDMA between two emulated hosts (downloads 70 MB once)"
	@echo "make clocks        suspend, stop and slew a guest, with each time source (downloads 70 MB once)"
	@echo "make departures    X-PACE where the kernel keeps departure times, in a guest (downloads 70 MB once)"
	@echo "make link-rack     rack sockets between two guests that share memory, which is taken away and given back 100 times (downloads 70 MB once)"
	@echo "make book          the documentation as a book -> target/book/index.html (installs mdBook into target/tools once)"
	@echo "make man           the manual pages, into target/man; completions: fide completions SHELL"
	@echo "make clean         remove build results, and left-over namespaces of dead runs"

setup demo demo-network check test test-all bench bench-detect bench-jitter bench-planner bench-agreement bench-redis bench-pace bench-rack test-redis test-redis-suite test-rack suites-rack soak spec sim sim-pace deaths histories histories-guest rdma clocks departures link-rack man book clean:
	@command -v cargo >/dev/null || { echo "fide needs Rust 1.95 or later and found no cargo: install it with rustup" >&2; exit 1; }
	@cargo xtask $@ $(if $(filter sim,$@),$(if $(SEEDS),--seeds $(SEEDS))) $(if $(filter sim-pace,$@),$(SEEDS)) $(if $(filter deaths,$@),$(ROUNDS)) $(if $(filter test-redis,$@),$(RUNS)) $(if $(filter test-redis-suite,$@),$(UNITS)) $(if $(filter suites-rack,$@),$(SUITES)) $(ARGS)
