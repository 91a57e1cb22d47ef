// Command powercut cuts the power of a machine, again and again, at random moments of a random load, and looks each
// time what is left. The machine is emulated, and killed by SIGKILL from outside. Its disks are served by this program,
// and have a volatile cache: a flush is honoured, and of what was written after the last one any part may be missing, by
// whole writes or by blocks of 4 KiB. LVM, the file systems, and the folders of kubelet and the driver are on such disks.
//
// In the machine this program is the node: it starts the driver as a process of its own, and makes the calls of kubelet
// and the sidecars. Before and after each it writes a line in a book, a disk that loses nothing. After a boot it compares
// the world with the book (see Node.recover), and goes on with the load.
//
// Why a server of our own: QEMU's caches end in the page cache of the host, which outlives a killed QEMU, so nothing would
// ever be lost; its blklogwrites takes a log, from which one disk could be made again, but not two in one moment; and
// dm-log-writes within the machine is lost with the machine. No kept Go library serves NBD without bringing a disk format.
//
//	powercut [-cuts N] [-seed N] [-keep DIR] VM-EXEC    on the host
//	powercut node SEED [last]                           in the machine
//	powercut driver CONFIG                              the driver under test
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/driver"
)

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "powercut:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	switch {
	case len(args) >= 2 && args[0] == "node":
		return runNode(args[1], len(args) > 2)
	case len(args) == 2 && args[0] == "driver":
		return runDriver(args[1])
	case len(args) == 1 && args[0] == driver.GuardCommand: // started by the driver
		return driver.Guard()
	}
	flags := flag.NewFlagSet("powercut", flag.ContinueOnError)
	h := host{}
	flags.IntVar(&h.cuts, "cuts", 200, "how often the power is cut")
	flags.Uint64Var(&h.seed, "seed", uint64(time.Now().UnixNano())%1e9, "of the load and the cuts")
	flags.StringVar(&h.keep, "keep", "", "keep disks and logs in this folder")
	if err := flags.Parse(args); err != nil {
		return err
	}
	h.vmExec = flags.Arg(0)
	return h.run()
}
