package mount

import (
	"regexp"
	"strings"
)

// Where a container's process is in the cgroup tree. The forms in use, with the parts that tell:
//
//	/kubepods/burstable/pod<uid>/<id>                                              cgroupfs driver
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice/cri-containerd-<id>.scope   systemd driver
//	.../crio-<id>.scope, .../crio-conmon-<id>.scope, .../docker-<id>.scope         other runtimes
//	/system.slice/containerd.service/kubepods-besteffort-pod<uid_>.slice:cri-containerd:<id>   containerd, drivers that disagree
//	/docker/<id>                                                                   without Kubernetes
//
// A pod's uid is a UUID, or 32 hex digits for a static pod; systemd's driver writes "_" for "-". Below a container may be
// cgroups of its own (systemd, or a nested kubelet): then the innermost counts.
var (
	cgroupPod       = regexp.MustCompile(`(?:^|[/-])pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:[./:]|$)`)
	cgroupContainer = regexp.MustCompile(`(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)`)
)

// parseCgroup reads /proc/PID/cgroup ("ID:CONTROLLERS:PATH" lines, cgroups(7)) and gives container id and pod uid, each
// empty where no path tells it.
func parseCgroup(content string) (container, pod string) {
	for line := range strings.Lines(content) {
		_, path, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if _, path, _ = strings.Cut(path, ":"); !ok {
			continue
		}
		if c := last(cgroupContainer, path); c != "" && container == "" {
			container = c
		}
		if p := last(cgroupPod, path); p != "" && pod == "" {
			pod = strings.ReplaceAll(p, "_", "-")
		}
	}
	return container, pod
}

// last gives the innermost match, part by part, because matches may touch.
func last(form *regexp.Regexp, path string) (found string) {
	for part := range strings.SplitSeq(path, "/") {
		if m := form.FindStringSubmatch(part); m != nil {
			found = m[1]
		}
	}
	return found
}
