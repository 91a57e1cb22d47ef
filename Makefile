# Everything that is done with this source: "make" lists it. "make test" is the whole suite; CI runs it, "make imagetest" and "make e2ecore".
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build demo test image imagetest manifests lint alerts dashboard picture unit fuzz sweepfake vm hard sweep soak powercut e2e e2ecore bench shell clean

step := hack/step
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
IMAGE ?= ghcr.io/csi-local-lvm/csi-local-lvm:$(VERSION)
IMAGE_FLAGS ?=
ENGINE ?= docker
static := CGO_ENABLED=0 go build -trimpath -buildvcs=false
lint := go tool -modfile=hack/tools/go.mod golangci-lint

# typed gives a variable as it was typed on the command line: a regular expression or a command may hold a "$".
typed = $(if $(findstring command,$(origin $1)),$(value $1),$($1))

# The throwaway machine: memory in MiB, disks /dev/vda to /dev/vdd, and how long one package's tests may take.
VM_MEMORY ?= 2048
VM_DISKS ?= -d 4G -d 4G -d 4G -d 4G
VM_TIMEOUT ?= 40m
VM_LIMIT ?= 2520
VM_JOBS ?= 2
vm_flags = -m $(VM_MEMORY) -t $(VM_LIMIT) $(VM_DISKS)
vm_test = CGO_ENABLED=0 go test -tags vm -count=1 -p $(VM_JOBS) -timeout $(VM_TIMEOUT) -exec "'$(CURDIR)/hack/vm-exec' $(vm_flags)"
# Packages with tests that need the machine, the longest (sanity) first; VM_JOBS of them at a time, each in a machine of its own.
VM_PACKAGES ?= $(shell grep -rlE --include='*_test.go' '^//go:build .*\bvm\b' . | xargs -r dirname | sort -ru)
# The tests that need it, and no others: the rest has run on this machine, which is faster.
VM_RUN ?= ^($(shell grep -rhoE --include='*_vm_test.go' '^func Test[A-Za-z0-9_]+' . | sed 's/^func //' | sort -u | paste -sd '|'))$$

# What "make test" leaves to "make hard": the same faults as over the fake, on a machine where each takes minutes.
VM_SKIP ?=
hard_tests = KilledLVM \
	KilledLvcreate \
	KilledLvextend \
	KilledSnapshot \
	KilledWhileVolumesAreHeld \
	VolumesAreHeldForTenSecondsAtMost \
	StoppedLVM \
	DeadDisks \
	HungDisks \
	SlowDisk \
	FlakyDisk \
	SoakOverRealMachine \
	StuckUdev \
	FullEtcLVM \
	OddLVMConf \
	NoisyLVM \
	LockedGroup \
	GuestGroupInABlockVolume \
	UnmountableFilesystem \
	OutOfDescriptors \
	NoUdevCookies \
	CSISanityAttached \
	SharedMounts \
	HealthOfAHungDisk \
	HealthOfAPulledDisk \
	HealthOfAnErringDisk \
	HealthOfAThinPool \
	HealthOfABtrfs \
	CopyOnRealDevices \
	DevicesThatGo \
	StatusAndDoctor \
	MoreFaults \
	IOLimitsHold
hard_suite = AccessModes \
	Adopt(Refuses|Interrupted) \
	AllServicesAtOnce \
	Attach.+ \
	BadInput \
	BusyBesideASecondTarget \
	ChangedBlocks.+ \
	CopiedVolumes \
	CopyGivenUpForAStop \
	Expand(Sizes|NoSpace|WrongPath|ReadOnly|OntoAnOldSignature|OnNode) \
	GivenUpCalls \
	GoneAlready \
	Groups.* \
	HealthOf.* \
	Inline(AtASecondTarget|TargetInTheWay) \
	Journal(Damaged|Fails.*|HoldsOn|Syncs) \
	Later.* \
	List \
	ManyFilesystems \
	Modify(Refuses|Create|ThickOrigin) \
	Names \
	NothingToUnpublish \
	Other(AccessType|Arguments|VolumeGroup) \
	PanicInARetry \
	QuotedFlags \
	ReadOnlyAndFlags \
	ReadersAndGroups \
	Restore(Refused)? \
	RollbackThatFails \
	Sizes \
	SlowCreate \
	SlowSnapshot \
	Snapshot(Pages|sRefused|sSurviveReboots|OfA.+) \
	StackAtTheTarget \
	TargetWithinTheVolume \
	Topology \
	TwoStagingPaths \
	Types \
	UnstageLeavesFiles
blank := $() $()
hard = ^Test($(subst $(blank),|,$(strip $(hard_tests))))$$|^TestDriverOverRealMachine$$/^($(subst $(blank),|,$(strip $(hard_suite))))$$|^TestContract$$/^(names|tune)$$|^TestContract$$/^(extend|snapshots|types)$$/^(striped|raid5|raid6|raid10)|^TestCSISanity$$/^(mount-linear|block-linear|block-thin)$$

UNIT_TIMEOUT ?= 5m
E2E ?= .
# The part that CI runs: provisioning, inline volumes, teardown, restarts, power.
e2e_core = ^Test(PersistentVolumes|TooLarge|InlineVolume|KubeletRestartedInTermination|HeldLonger|HeldLongerAndDriverKilled|KubeletKilledForGood|DriverRestartedUnderLoad|PowerCut)$$
FUZZ ?= 100000
BENCH ?= .
SWEEP ?= full
SWEEP_OF ?=
STEPS ?= 10000
soak = TEST_SOAK_STEPS=$(STEPS) TEST_SOAK_SEED=$(SEED)
CUTS ?= 200
SEED ?=
BENCH_TIME ?= 20x
BENCH_COUNT ?= 1

help: ## list the targets
	@sed -nE 's/^([a-z0-9]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: ## install what the tests need (Debian, as root)
	@$(step) setup hack/setup build vm

build: ## build the static binary bin/csi-local-lvm
	@$(step) build env $(static) -ldflags "-s -w -X main.version=$(VERSION)" -o bin/ ./cmd/csi-local-lvm

demo: setup build ## show the driver at work in a throwaway machine (DEMO=here: on this one)
	@$(step) "build the demo" env $(static) -o bin/ ./hack/demo
	@hack/demo.sh

test: FUZZ = 5000
test: VM_SKIP = $(hard)
test: setup lint alerts dashboard unit fuzz sweepfake vm ## run the whole suite: setup, lint, alerts, dashboard, unit, fuzz (short), sweepfake, vm

image: ## build the container image (IMAGE=name:tag ENGINE=docker, podman or buildah; IMAGE_FLAGS="--platform linux/amd64,linux/arm64")
	@$(step) "image $(IMAGE)" $(ENGINE) build --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) -t $(IMAGE) $(IMAGE_FLAGS) .

imagetest: ## build the image without a registry, and start it (as root)
	@hack/setup image
	@$(step) "build the image and start it" env VERSION=$(VERSION) REVISION=$(REVISION) hack/image \
	  go test -C hack/deploy -tags image -count=1 -run 'Image|Programs|OtherArchitecture' .

manifests: ## render the chart into deploy/kubernetes
	@$(step) manifests go run -C hack/deploy . $(CURDIR)

lint: ## check style, rules and scripts
	@$(step) "lint: shell scripts" shellcheck -x hack/setup hack/vm-exec hack/step hack/fuzz hack/image hack/prometheus hack/dashboard/draw hack/demo.sh .ci/run
	@$(step) "lint: Go" $(lint) run --allow-parallel-runners ./...
	@$(step) "lint: chart and manifests" bash -c "go vet -C hack/deploy -tags image . && go test -C hack/deploy -count=1 ."
	@$(step) "lint: tests in a cluster" bash -c "go vet -C e2e ./... && go test -C e2e -count=1 ./cluster"

alerts: ## test the alert rules of the chart with promtool
	@$(step) "alerts" hack/prometheus promtool test rules hack/alerts/test.yaml

dashboard: ## put the queries of the dashboard to a Prometheus that scrapes a driver
	@$(step) "dashboard" go test -tags prometheus -count=1 -timeout $(UNIT_TIMEOUT) -run '^TestDashboard$$' ./sanity

picture: ## draw the dashboard into docs/dashboard.png, with Grafana's own panels, of busy drivers (6 minutes; takes npm packages into the cache)
	@$(step) "setup picture" hack/setup picture
	@$(step) picture go test -tags prometheus -count=1 -timeout 20m -run '^TestPicture$$' ./sanity

unit: ## run the tests that need no root and no LVM
	@$(step) unit go test -race -timeout $(UNIT_TIMEOUT) ./...

fuzz: ## run every fuzz target with FUZZ inputs (100000)
	@$(step) "fuzz, $(FUZZ) inputs each" hack/fuzz $(FUZZ)

vm: ## run the tests on a real kernel and LVM (VM_PACKAGES=./pkg/lvm VM_RUN=TestName to choose)
	@$(step) "vm: $(or $(VM_PACKAGES),no packages)" env $(if $(VM_PACKAGES),$(vm_test) -run '$(call typed,VM_RUN)' -skip '$(VM_SKIP)' $(VM_PACKAGES),true)

hard: VM_RUN = $(hard)
hard: VM_TIMEOUT = 3h
hard: VM_LIMIT = 10900
hard: vm powercut ## the hard tests on real LVM that "make test" has no time for: killed LVM, dead disks, odd settings, power cuts

sweepfake: ## put a fault at every effect of the driver, over the fake
	@$(step) "sweep over the fake" env TEST_SWEEP=full go test -count=1 -run TestSweepOverFake ./sanity

sweep: VM_TIMEOUT = 12h
sweep: VM_LIMIT = 43200
sweep: ## put a fault at every effect of the driver, on real LVM (SWEEP=7: at each seventh; SWEEP_OF=CreateSnapshot: of these calls; hours; "make test" has a few)
	@$(step) "sweep, $(SWEEP)" env TEST_SWEEP=$(SWEEP) $(vm_test) -v -run '^TestSweepOverRealMachine$$$(addprefix /,$(SWEEP_OF))' ./sanity

soak: VM_TIMEOUT = 12h
soak: VM_LIMIT = 43200
soak: ## random operations against a model, over the fake and on real LVM (SEED=n STEPS=10000; hours)
	@$(step) "soak, $(STEPS) steps, over the fake" env $(soak) go test -race -count=1 -timeout 2h -run TestSoakOverFake ./sanity
	@$(step) "soak, $(STEPS) steps, on real LVM" env $(soak) $(vm_test) -run TestSoakOverRealMachine ./sanity

powercut: ## cut the power of the machine at random moments (CUTS=200 SEED=n; an hour or two)
	@$(step) "build powercut" env $(static) -o bin/ ./hack/powercut
	@$(step) "powercut, $(CUTS) cuts" bin/powercut -cuts $(CUTS) $(if $(SEED),-seed $(SEED)) hack/vm-exec

e2e: ## the driver in a real cluster: kubelet, scheduler, containerd, sidecars (E2E=TestName to choose; the first run builds them for half an hour)
	@$(step) "setup e2e" hack/setup build vm e2e
	@$(step) "build the cluster" env CGO_ENABLED=0 go -C e2e run -trimpath ./cmd/prepare
	@$(step) e2e env CGO_ENABLED=0 go -C e2e test -trimpath -count=1 -timeout 3h -v -run '$(call typed,E2E)' .

e2ecore: E2E = $(e2e_core)
e2ecore: e2e ## the part of e2e that CI runs

bench: build ## measure the driver against the bare tools in the machine (BENCH=regexp BENCH_TIME=20x BENCH_COUNT=n; without KVM better VM_ACCEL=uml)
	@$(if $(filter uml,$(VM_ACCEL)),hack/setup uml)
	@$(step) bench env $(vm_test) -run '^$$' -bench '$(BENCH)' -benchtime $(BENCH_TIME) -count $(BENCH_COUNT) ./sanity

shell: export TYPED = $(call typed,CMD)
shell: ## a root shell in the machine (CMD='lvs' runs one command)
	@hack/vm-exec $(vm_flags) $(if $(value CMD),bash -c "$$TYPED",-i bash)

clean: ## remove what was built (the machine's cache is in ~/.cache/csi-local-lvm)
	@rm -rf bin .cache
