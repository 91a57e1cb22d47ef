package sanity

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	csisanity "github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
)

func TestCSISanityOverFake(t *testing.T)         { csiSanity(t, newFakeHarness, false) }
func TestCSISanityAttachedOverFake(t *testing.T) { csiSanity(t, newFakeHarness, true) }

// csiSanity runs the suite that all CSI drivers share, over each access type and the two kinds of storage, with or without
// ControllerPublishVolume. Only what a capability rules out may be skipped, and it leaves the machine as it was.
func csiSanity(t *testing.T, newHarness func(*testing.T) contract.Harness, attach bool) {
	for _, access := range []string{"mount", "block"} {
		for _, layout := range []volume.Type{volume.Linear, volume.Thin} {
			t.Run(access+"-"+string(layout), func(t *testing.T) {
				inOwnProcess(t, func() {
					h := newHarness(t)
					h.Attach(attach)
					csiSanityOver(t, h, access, layout)
				})
			})
		}
	}
}

func csiSanityOver(t *testing.T, h contract.Harness, access string, layout volume.Type) {
	h.Start(t)
	config := sanityConfig(t, h)
	config.TestVolumeAccessType = access
	config.TestVolumeParameters = map[string]string{volume.KeyType: string(layout)}
	if layout == volume.Thin {
		config.TestVolumeParameters[volume.KeyThinPool] = h.Pool()
	}
	useOnce(t, h, config.TestVolumeParameters)
	before := h.World(t)

	var report ginkgo.Report
	ginkgo.ReportAfterSuite("", func(r ginkgo.Report) { report = r })
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.NoColor, reporter.Succinct = true, true
	context := csisanity.GinkgoTest(&config)
	ginkgo.RunSpecs(t, t.Name(), suite, reporter)
	context.Finalize()

	if after := h.World(t); after != before {
		t.Errorf("csi-sanity leaves the world\n%s\nand it was\n%s", after, before)
	}
	checkSkipped(t, report, capabilities(t, h))
	h.Stop(t)
}

// useOnce makes a volume and deletes it: a thin pool gets another device when its first volume is made, and keeps it.
func useOnce(t *testing.T, h contract.Harness, parameters map[string]string) {
	v, err := h.Controller().CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "first", Parameters: parameters,
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 4 << 20},
	})
	must(t, err)
	_, err = h.Controller().DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: v.GetVolume().GetVolumeId()})
	must(t, err)
}

func sanityConfig(t *testing.T, h contract.Harness) csisanity.TestConfig {
	create := func(path string) (string, error) { h.Mkdir(t, path); return path, nil }
	remove := func(path string) error { h.Remove(t, path); return nil }
	config := csisanity.NewTestConfig()
	config.Address = h.(interface{ endpoint() string }).endpoint()
	config.TargetPath, config.StagingPath = h.Target(t, "sanity"), h.Staging(t, "sanity")+"/volume"
	config.CreateTargetDir, config.CreateStagingDir = create, create
	config.RemoveTargetPath, config.RemoveStagingPath = remove, remove
	config.CheckPath = func(path string) (csisanity.PathKind, error) {
		kinds := map[byte]csisanity.PathKind{0: csisanity.PathIsNotFound, 'd': csisanity.PathIsDir, 'f': csisanity.PathIsFile}
		if kind, ok := kinds[h.Lstat(t, path).Kind]; ok {
			return kind, nil
		}
		return csisanity.PathIsOther, nil
	}
	config.DialOptions = append(config.DialOptions, grpc.WithUnaryInterceptor(sized))
	config.TestNodeVolumeAttachLimit = true
	config.TestVolumeMutableParameters = map[string]string{volume.KeyReadAhead: "512", volume.KeyWriteOps: "max"}
	config.TestVolumeSize, config.TestVolumeExpandSize = 64<<20, 128<<20
	return config
}

// skips are the reasons for which csi-sanity may skip, and the capability that the driver must then be without.
var skips = map[string]string{
	"ControllerPublishVolume not supported":                "controller PUBLISH_UNPUBLISH_VOLUME",
	"ControllerUnpublishVolume not supported":              "controller PUBLISH_UNPUBLISH_VOLUME",
	"Controller Publish, UnpublishVolume not supported":    "controller PUBLISH_UNPUBLISH_VOLUME",
	"ControllerPublishVolume.readonly field not supported": "controller PUBLISH_READONLY",
	"Snapshot not supported":                               "controller CREATE_DELETE_SNAPSHOT",
	"CreateSnapshot not supported":                         "controller CREATE_DELETE_SNAPSHOT",
	"DeleteSnapshot not supported":                         "controller CREATE_DELETE_SNAPSHOT",
	"ListSnapshots not supported":                          "controller LIST_SNAPSHOTS",
	"GetSnapshot not supported":                            "controller GET_SNAPSHOT",
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported":     "plugin SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
	"Volume Cloning not supported":                         "controller CLONE_VOLUME",
	"ControllerExpandVolume not supported":                 "controller EXPAND_VOLUME",
	"ControllerModifyVolume not supported":                 "controller MODIFY_VOLUME",
	"Modify volume not supported":                          "controller MODIFY_VOLUME",
	"Modify Volume not supported":                          "controller MODIFY_VOLUME",
	"ControllerGetVolumeHealth not supported":              "controller GET_VOLUME_HEALTH",
	"ControllerListVolumeHealth not supported":             "controller LIST_VOLUME_HEALTH",
	"GroupControllerService not supported":                 "plugin GROUP_CONTROLLER_SERVICE",
	"NodeExpandVolume not supported":                       "node EXPAND_VOLUME",
	"NodeGetVolumeHealth not supported":                    "node GET_VOLUME_HEALTH",
	"NodeGetStorageHealth not supported":                   "node GET_STORAGE_HEALTH",
}

// pendingUpstream is the one spec that csi-sanity itself has switched off. The suite of the driver has the like (List).
const pendingUpstream = "pagination should detect volumes added between pages and accept tokens when the last volume from a page is deleted"

// sized has each answer compute its size, as each request does when it is sent. One spec of csi-sanity compares a topology that it has sent with
// one that it has received, as Go structs; they differ in the size that the messages of protobuf remember, and in nothing else.
func sized(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if m, ok := reply.(proto.Message); ok {
		proto.Size(m)
	}
	return err
}

func checkSkipped(t *testing.T, report ginkgo.Report, has map[string]bool) {
	passed, reasons := 0, map[string]int{}
	for _, spec := range report.SpecReports.WithLeafNodeType(types.NodeTypeIt) {
		switch {
		case spec.State == types.SpecStatePassed:
			passed++
		case spec.State == types.SpecStateSkipped:
			reasons[spec.Failure.Message]++
			if lacks, known := skips[spec.Failure.Message]; !known || has[lacks] {
				t.Errorf("skipped (%s), and it is not for a capability that the driver lacks: %s", spec.Failure.Message, spec.FullText())
			}
		case spec.State == types.SpecStatePending && spec.LeafNodeText == pendingUpstream:
		default: // a failure has been told
			t.Errorf("%s: %s", spec.State, spec.FullText())
		}
	}
	if passed < 40 {
		t.Errorf("only %d specs passed", passed)
	}
	t.Logf("%d specs passed in %s", passed, report.RunTime.Round(100*time.Millisecond))
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		t.Logf("%d skipped: %s", reasons[reason], reason)
	}
}

// capabilities are all that the driver says it can do.
func capabilities(t *testing.T, h contract.Harness) map[string]bool {
	has := map[string]bool{}
	plugin, err := h.Identity().GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	must(t, err)
	for _, c := range plugin.GetCapabilities() {
		has["plugin "+c.GetService().GetType().String()] = true
	}
	controller, err := h.Controller().ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	must(t, err)
	for _, c := range controller.GetCapabilities() {
		has["controller "+c.GetRpc().GetType().String()] = true
	}
	node, err := h.Node().NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	must(t, err)
	for _, c := range node.GetCapabilities() {
		has["node "+c.GetRpc().GetType().String()] = true
	}
	return has
}

// inOwnProcess runs the body of a test in another process of this test binary: Ginkgo runs one suite per process.
func inOwnProcess(t *testing.T, body func()) {
	const mark = "CSI_TEST_OWN_PROCESS"
	if os.Getenv(mark) == t.Name() {
		body()
		return
	}
	exact := "^" + strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^") + "$"
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run", exact)
	if end, ok := t.Deadline(); ok {
		cmd.Args = append(cmd.Args, "-test.timeout", (time.Until(end) * 9 / 10).String())
	}
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Errorf("the test in a process of its own: %v", err)
	}
}
