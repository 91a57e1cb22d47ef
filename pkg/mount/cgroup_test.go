package mount

import (
	"strings"
	"testing"
)

const (
	testID  = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"
	otherID = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
	testPod = "12345678-9abc-def0-1234-56789abcdef0"
	podLine = "12345678_9abc_def0_1234_56789abcdef0"
)

func TestParseCgroup(t *testing.T) {
	for _, tc := range []struct{ name, content, container, pod string }{
		{"systemd, containerd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + podLine + ".slice/cri-containerd-" + testID + ".scope\n", testID, testPod},
		{"systemd, guaranteed", "0::/kubepods.slice/kubepods-pod" + podLine + ".slice/cri-containerd-" + testID + ".scope\n", testID, testPod},
		{"systemd, cri-o", "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + podLine + ".slice/crio-" + testID + ".scope\n", testID, testPod},
		{"cri-o, below its container", "0::/kubepods.slice/kubepods-pod" + podLine + ".slice/crio-" + testID + ".scope/container\n", testID, testPod},
		{"conmon", "0::/kubepods.slice/kubepods-pod" + podLine + ".slice/crio-conmon-" + testID + ".scope\n", testID, testPod},
		{"systemd, docker", "0::/kubepods.slice/kubepods-pod" + podLine + ".slice/docker-" + testID + ".scope\n", testID, testPod},
		{"cgroupfs", "0::/kubepods/burstable/pod" + testPod + "/" + testID + "\n", testID, testPod},
		{"cgroupfs, guaranteed", "0::/kubepods/pod" + testPod + "/" + testID + "\n", testID, testPod},
		{"static pod", "0::/kubepods/pod" + strings.Repeat("a1", 16) + "/" + testID + "\n", testID, strings.Repeat("a1", 16)},
		{"drivers that disagree", "0::/system.slice/containerd.service/kubepods-besteffort-pod" + podLine + ".slice:cri-containerd:" + testID + "\n", testID, testPod},
		{"docker alone", "0::/docker/" + testID + "\n", testID, ""},
		{"docker alone, systemd", "0::/system.slice/docker-" + testID + ".scope\n", testID, ""},
		{"nested", "0::/docker/" + otherID + "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + podLine + ".slice/cri-containerd-" + testID + ".scope\n", testID, testPod},
		{"seen from a cgroup namespace", "0::/../../kubepods-pod" + podLine + ".slice/cri-containerd-" + testID + ".scope\n", testID, testPod},
		{"version 1", "12:cpu,cpuacct:/kubepods/pod" + testPod + "/" + testID + "\n1:name=systemd:/kubepods/pod" + testPod + "/" + testID + "\n0::/system.slice\n", testID, testPod},
		{"version 1, only one tells", "12:cpu:/\n11:pids:/kubepods/pod" + testPod + "/" + testID + "\n", testID, testPod},
		{"pod, not its containers", "0::/kubepods.slice/kubepods-pod" + podLine + ".slice\n", "", testPod},
		{"a host's process", "0::/system.slice/sshd.service\n", "", ""},
		{"a user's", "0::/user.slice/user-1000.slice/session-1.scope\n", "", ""},
		{"63 digits", "0::/docker/" + testID[1:] + "\n", "", ""},
		{"65 digits", "0::/docker/a" + testID + "\n", "", ""},
		{"not a pod", "0::/mypod" + testPod + "/x\n", "", ""},
		{"empty", "", "", ""},
		{"torn", "0:", "", ""},
	} {
		if c, p := parseCgroup(tc.content); c != tc.container || p != tc.pod {
			t.Errorf("%s: container %q pod %q, want %q %q", tc.name, c, p, tc.container, tc.pod)
		}
	}
}

func FuzzParseCgroup(f *testing.F) {
	f.Add("0::/kubepods.slice/kubepods-pod" + podLine + ".slice/cri-containerd-" + testID + ".scope\n")
	f.Add("12:cpu:/kubepods/pod" + testPod + "/" + testID)
	f.Add(":::\n\n/pod")
	f.Fuzz(func(t *testing.T, s string) {
		c, p := parseCgroup(s)
		if c != "" && (len(c) != 64 || strings.Trim(c, "0123456789abcdef") != "" || !strings.Contains(s, c)) {
			t.Errorf("container %q", c)
		}
		if p != "" && (len(p) != 36 && len(p) != 32 || strings.Trim(p, "0123456789abcdef-") != "") {
			t.Errorf("pod %q", p)
		}
	})
}
