package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/adopt"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/mount"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/request"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/run"
	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

// adoption is what the flags of "adopt" say.
type adoption struct {
	cfg      driver.Config
	manifest adopt.Manifest
	fsType   string
	release  bool
}

func adoptCommand(env func(string) string) *cobra.Command {
	a := adoption{cfg: driver.Default()}
	a.cfg.NodeName = env("NODE_NAME")
	cmd := &cobra.Command{
		Use:   "adopt VG/LV",
		Short: "Take over a logical volume for a static PersistentVolume, and print its manifest",
		Long: "Take over a logical volume that was made by hand, so that a static PersistentVolume can use it, and print the manifest of that.\n" +
			"Its content is not touched. It works beside the running driver. --release gives it back.",
		Args: cobra.ExactArgs(1),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&a.cfg.VolumeGroups, "volume-groups", nil, "the volume groups of the driver, as its own flag names them (required)")
	flags.StringVar(&a.cfg.NodeName, "node-name", a.cfg.NodeName, "name of the Kubernetes node (default: the environment's NODE_NAME)")
	flags.StringVar(&a.cfg.DriverName, "driver-name", a.cfg.DriverName, "name of the driver")
	flags.StringVar(&a.cfg.KubeletDir, "kubelet-dir", a.cfg.KubeletDir, "kubelet's root folder; what is mounted elsewhere is in use")
	flags.StringVar(&a.cfg.LVMExec, "lvm-exec", a.cfg.LVMExec, "where LVM's programs run: container, or host")
	flags.StringVar(&a.fsType, "fs-type", "", "the file system that must be on it: ext4, xfs or btrfs (default: whichever of these is)")
	flags.BoolVar(&a.manifest.Block, "block", false, "as a raw block volume, whatever is on it")
	flags.StringVar(&a.manifest.StorageClass, "storage-class", "", "storageClassName of the PersistentVolume")
	flags.StringVar(&a.manifest.Name, "name", "", "name of the PersistentVolume (default: made of VG and LV)")
	flags.BoolVar(&a.release, "release", false, "give it back: it is no longer the driver's, and its content stays")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return a.run(cmd.Context(), args[0], cmd.OutOrStdout()) }
	return cmd
}

func (a *adoption) run(ctx context.Context, name string, out io.Writer) error {
	if err := a.cfg.Validate(); err != nil {
		return err
	}
	vg, lv, ok := strings.Cut(name, "/")
	if !ok {
		return volume.Invalid("VG/LV", name, "give the volume group and the logical volume, as lvs(8) names them, with a / between")
	}
	fs, err := volume.ParseFS("--fs-type", a.fsType)
	if err != nil {
		return err
	}
	if a.manifest.Block && fs != "" {
		return volume.Invalid("--fs-type", a.fsType, "a block volume has none; leave out this or --block")
	}
	node, err := volume.ShortNode(a.cfg.NodeName)
	if err != nil {
		return err
	}
	a.manifest.Request = adopt.Request{
		Ref: volume.Ref{VG: vg, LV: lv}, Block: a.manifest.Block, FS: fs, Owner: a.cfg.DriverName, Node: node, KubeletDir: a.cfg.KubeletDir,
	}
	a.manifest.TopologyKey = request.TopologyKey(a.cfg.DriverName)
	backend, err := driver.Real(a.cfg, nil)
	if err != nil {
		return err
	}
	if _, err := begin(ctx); err != nil {
		return err
	}
	return a.do(ctx, backend.LVM, mount.New(&run.Local{}, nil), out)
}

func (a *adoption) do(ctx context.Context, l adopt.LVM, h adopt.Host, out io.Writer) error {
	if a.release {
		return adopt.Release(ctx, l, h, a.manifest.Request)
	}
	taken, err := adopt.Adopt(ctx, l, h, a.manifest.Request)
	if err != nil {
		return err
	}
	return a.manifest.Write(out, taken)
}
