package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The disks, in the order in which the machine has them.
var disks = []struct {
	name  string
	bytes int64
}{{"pv0", 1536 << 20}, {"pv1", 1536 << 20}, {"root", 512 << 20}, {"book", bookBytes}}

// host is the side that has the power.
type host struct {
	vmExec, keep string
	cuts         int
	seed         uint64

	folder string
	rack   *Rack
	random *rand.Rand

	mu    sync.Mutex
	seen  []Entry           // of the present boot
	until map[string]func() // called when the node writes this
	timer *time.Timer
	all   int            // entries
	torn  int            // boots at which LVM's metadata had to be restored
	lost  map[string]int // cuts by what was going on
	total Loss
}

// aim is when the power is to be cut: at a write, or at a moment, after an entry of the node.
type aim struct {
	after  string
	writes int
	wait   time.Duration
}

func (a aim) String() string {
	if a.writes != 0 {
		return fmt.Sprintf("%d writes after %q", a.writes, a.after)
	}
	return fmt.Sprintf("%s after %q", a.wait, a.after)
}

func (h *host) run() (err error) {
	h.random = rand.New(rand.NewPCG(h.seed, 0))
	h.rack, h.lost = newRack(h.seed), map[string]int{}
	if h.folder = h.keep; h.folder == "" {
		if h.folder, err = os.MkdirTemp("", "powercut"); err != nil {
			return err
		}
		defer os.RemoveAll(h.folder) //nolint:errcheck,forbidigo // a temporary folder of our own
	}
	for _, d := range disks {
		told := h.told
		if d.name != "book" {
			told = nil
		}
		if err := h.rack.add(h.folder, d.name, d.bytes, told); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, h.rack.close()) }()
	fmt.Printf("powercut: %d cuts, seed %d\n", h.cuts, h.seed)
	start := time.Now()
	stuck := 0 // boots in a row
	for n := 1; n <= h.cuts+1; n++ {
		err := h.boot(n)
		if errors.Is(err, errStuck) {
			stuck++
		} else {
			stuck = 0
		}
		if errors.Is(err, errClock) || errors.Is(err, errStuck) && stuck < 3 { // of the emulation; the disks are as they were
			fmt.Printf("boot %d counts for nothing: %v\n", n, err)
			n--
			continue
		}
		if err != nil {
			return fmt.Errorf("cut %d of -cuts %d -seed %d: %w", n-1, h.cuts, h.seed, err)
		}
	}
	fmt.Printf("powercut: %d cuts survived in %s; %d lines in the book; %d writes were not flushed at a cut, of which %d were lost and %d torn; LVM's metadata was restored %d times; cuts while: %v\n",
		h.cuts, time.Since(start).Round(time.Second), h.all, h.total.Unflushed, h.total.Lost, h.total.Torn, h.torn, h.lost)
	return nil
}

// take draws when the power is cut.
func (h *host) take() aim {
	a := aim{after: []string{doLoading, doLoading, doLoading, doLoading, doLoading, doServing, doServing, doBooting}[h.random.IntN(8)]}
	switch {
	case a.after == doBooting:
		a.writes = 1 + h.random.IntN(60)
	case h.random.IntN(3) == 0:
		a.wait = time.Duration(h.random.IntN(6000)) * time.Millisecond
	default:
		a.writes = 1 + h.random.IntN(800)
	}
	return a
}

// boot lets the machine run until its power is cut, or the last time until it ends by itself.
func (h *host) boot(n int) error {
	last, a, seed := n > h.cuts, h.take(), h.random.Uint64()
	h.mu.Lock()
	if h.timer != nil {
		h.timer.Stop() // it was cut by a write
	}
	h.seen, h.until = nil, map[string]func(){}
	if !last {
		h.until[a.after] = func() {
			if a.writes != 0 {
				h.rack.cutAfter(a.writes)
			}
			h.timer = time.AfterFunc(max(a.wait, time.Duration(a.writes)*40*time.Millisecond), h.rack.cut) // a load that stands still is cut too
		}
	}
	h.mu.Unlock()
	loss, err := h.rack.powerOn()
	if err != nil {
		return err
	}
	h.total.Unflushed, h.total.Lost, h.total.Torn = h.total.Unflushed+loss.Unflushed, h.total.Lost+loss.Lost, h.total.Torn+loss.Torn
	start := time.Now()
	ended, err := h.machine(n, fmt.Sprint(seed), last)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all += len(h.seen)
	doing := h.doing()
	fault, up := h.fault()
	if wall := time.Since(start); up > 2*int(wall.Seconds())+10 {
		return fmt.Errorf("%w: it says %d s after %s, so its time-outs are none", errClock, up, wall.Round(time.Second))
	}
	if ended && err != nil && len(h.seen) == 0 {
		return fmt.Errorf("%w within %s: %w", errStuck, time.Since(start).Round(time.Second), err)
	}
	if fault != "" || ended != last || err != nil {
		return h.report(n, fault, ended, err)
	}
	mended := ""
	if slices.ContainsFunc(h.seen, func(e Entry) bool { return e.Do == doMended }) {
		h.torn++
		mended = "; LVM's metadata was restored"
	}
	if last {
		return nil
	}
	h.lost[doing]++
	fmt.Printf("cut %d: %s, while %s%s; %s\n", n, a, doing, mended, time.Since(start).Round(100*time.Millisecond))
	return nil
}

// machine runs it. ended: by itself.
func (h *host) machine(n int, seed string, last bool) (ended bool, err error) {
	socket := filepath.Join(h.folder, "nbd")
	_ = os.Remove(socket) // of an earlier run that was killed
	l, err := net.Listen("unix", socket)
	if err != nil {
		return false, err
	}
	defer l.Close() //nolint:errcheck // removes the socket; it is a temporary one
	go h.rack.serve(l)
	args := []string{"-m", "1024", "-t", "300"}
	for _, d := range disks {
		args = append(args, "-D", "nbd+unix:///"+d.name+"?socket="+socket)
	}
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	args = append(args, self, "node", seed)
	if last {
		args = append(args, "last")
	}
	log, err := os.Create(h.log(n))
	if err != nil {
		return false, err
	}
	defer log.Close() //nolint:errcheck // only to be read by people
	vm := exec.Command(h.vmExec, args...)
	vm.Stdout, vm.Stderr = log, log
	vm.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := vm.Start(); err != nil {
		return false, err
	}
	done := make(chan error, 1)
	go func() { done <- vm.Wait() }()
	select {
	case err := <-done:
		return true, err
	case <-h.rack.down:
		_ = syscall.Kill(-vm.Process.Pid, syscall.SIGKILL) // vm-exec, QEMU and all
		<-done                                             //nolint:errcheck // "signal: killed" is what is wanted
		return false, nil
	}
}

func (h *host) log(n int) string { return filepath.Join(h.folder, fmt.Sprintf("boot%d.log", n)) }

// told gets what the node writes in the book.
func (h *host) told(text []byte) {
	all, err := decode(text)
	if err != nil {
		all = []Entry{{Do: doFault, Text: err.Error()}}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range all {
		h.seen = append(h.seen, e)
		if f := h.until[e.Do]; f != nil {
			delete(h.until, e.Do)
			f()
		}
	}
}

// errClock is a machine whose clock runs away: on a busy host the kernel can calibrate an emulated timer wrongly.
var errClock = errors.New("the machine's clock was wrong")

// errStuck is a machine that wrote nothing in the book: it did not come to where the node begins, which writes before it
// does anything else. An emulator does that now and then on a busy host.
var errStuck = errors.New("the machine did not come up")

// fault gives the fault that the node found, and how long it had run by its own clock.
func (h *host) fault() (text string, uptime int) {
	for _, e := range h.seen {
		if e.Do == doFault {
			return e.Text, e.N
		}
	}
	return "", 0
}

// doing says what was begun and not done.
func (h *host) doing() string {
	open := map[string]string{}
	phase := "off"
	for _, e := range h.seen {
		switch {
		case e.Slot == "":
			phase = e.Do
		case e.Done:
			delete(open, e.Slot)
		default:
			open[e.Slot] = e.Do
		}
	}
	for _, slot := range slots {
		if do := open[slot.name]; do != "" {
			return phase + " " + do
		}
	}
	return phase
}

// report tells what there is to know of a fault.
func (h *host) report(n int, fault string, ended bool, err error) error {
	if log, e := os.ReadFile(h.log(n)); e == nil {
		lines := strings.Split(string(log), "\n")
		fmt.Printf("-- the end of what the machine printed:\n%s\n", strings.Join(lines[max(0, len(lines)-80):], "\n"))
	}
	fmt.Println("-- the end of the book:")
	for _, e := range h.seen[max(0, len(h.seen)-60):] {
		fmt.Printf("%+v\n", e)
	}
	if fault != "" {
		return errors.New(fault)
	}
	return errors.Join(fmt.Errorf("the machine ended by itself: %t, which was not to be", ended), err)
}
