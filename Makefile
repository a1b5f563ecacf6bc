# SPDX-License-Identifier: Apache-2.0
# Thin on purpose: every verb is `cargo xtask <verb>`, where the logic is.

export PATH := $(PATH):$(HOME)/.cargo/bin
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-network check test test-all bench bench-detect bench-jitter bench-planner bench-agreement soak spec sim deaths histories histories-guest rdma clocks man book clean

help:
	@echo "make setup         check for the Debian packages that the build needs, install them if root"
	@echo "make demo          four hosts in network namespaces, something dies, everybody knows; without root three agents over loopback"
	@echo "make demo-network  a network of switches: trees planned, every cable cut in turn, drawn before and after"
	@echo "make check         what you changed since your branch left main: format, lints, documents, unit tests; before each commit"
	@echo "make test          all that CI runs: format, lints, headers, unit tests, specifications, clusters by seed, end-to-end tests"
	@echo "make test-all      the same, and tests that take long and find little in a single change"
	@echo "make spec          the TLA+ specifications before the model checker TLC, and mutants that it has to reject, larger ones than make test"
	@echo "make sim SEEDS=n   whole clusters in a seeded world: drift, pauses, loss, cuts, crashes; a failure replays from its seed"
	@echo "make deaths ROUNDS=n  40 programs of a host die at once, on n fresh clusters of five hosts (200); a few rounds are in make test"
	@echo "make histories     registers replicated by real members under faults, 200 runs, judged by porcupine; a failure replays from its seed"
	@echo "make histories-guest  the same where one of five hosts is an emulated machine, stopped and slewed (downloads 70 MB once)"
	@echo "make bench-detect  detection times against TCP, pidfd, memberlist and BFD"
	@echo "make bench-jitter  the jitter bench against planted noise, sockperf and cyclictest"
	@echo "make bench-planner planned trees: bounds run packet by packet, cost, time to plan"
	@echo "make bench-agreement decisions per second"
	@echo "make bench         all benchmarks"
	@echo "make soak          100 million heartbeats between three hosts and the tail of the gaps between them; interrupted, it goes on the next time"
	@echo "make rdma          the jitter bench over RDMA between two emulated hosts (downloads 70 MB once)"
	@echo "make clocks        a guest suspended, stopped and slewed under each time source (downloads 70 MB once)"
	@echo "make book          the documentation as a book -> target/book/index.html (installs mdBook into target/tools once)"
	@echo "make man           the manual pages, into target/man; completions: fide completions SHELL"
	@echo "make clean         remove what was built, and left-over namespaces of dead runs"

setup demo demo-network check test test-all bench bench-detect bench-jitter bench-planner bench-agreement soak spec sim deaths histories histories-guest rdma clocks man book clean:
	@command -v cargo >/dev/null || { echo "fide needs Rust 1.95 or later and found no cargo: install it with rustup" >&2; exit 1; }
	@cargo xtask $@ $(if $(filter sim,$@),$(if $(SEEDS),--seeds $(SEEDS))) $(if $(filter deaths,$@),$(ROUNDS)) $(ARGS)
