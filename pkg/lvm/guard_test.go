package lvm

import (
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// resumes takes note of what a guard resumes. A device "hangs" hangs until it is released.
type resumes struct {
	mu      sync.Mutex
	names   []string
	release chan struct{}
}

func (r *resumes) resume(name, uuid string) error {
	if name == "hangs" {
		<-r.release
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names = append(r.names, name+"="+uuid)
	return nil
}

func (r *resumes) seen() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.names)
	return strings.Join(r.names, " ")
}

// What a guard is told, and what it resumes at which time.
func TestGuardWatches(t *testing.T) {
	for _, c := range []struct {
		name, lines string
		dead        bool // the input ends
		want        string
		after       time.Duration
	}{
		{"all is done", "a 1\nb 2\ndone\n", false, "", 0},
		{"all is done, and the driver ends", "a 1\ndone\n", true, "", 0},
		{"the driver is killed", "a 1\nb 2\n", true, "a=1 b=2", 0},
		{"the driver is killed before the first", "", true, "", 0},
		{"the driver is late", "a 1\nb 2\n", false, "a=1 b=2", holdBound},
		{"one hangs", "hangs 1\nb 2\n", true, "b=2", 0},
		{"one hangs, and the driver is late", "a 1\nhangs 2\n", false, "a=1", holdBound},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &resumes{release: make(chan struct{})}
				in, driver := io.Pipe()
				ended := make(chan error, 1)
				go func() { ended <- guard{resume: r.resume, bound: holdBound}.watch(in) }()
				if _, err := io.WriteString(driver, c.lines); err != nil {
					t.Fatal(err)
				}
				if c.dead {
					_ = driver.Close()
				}
				synctest.Wait()
				if c.after != 0 {
					if got := r.seen(); got != "" {
						t.Errorf("resumed at once: %s", got)
					}
					time.Sleep(c.after) //nolint:forbidigo // the time of the bubble
					synctest.Wait()
				}
				if got := r.seen(); got != c.want {
					t.Errorf("resumed %q, want %q", got, c.want)
				}
				close(r.release)
				if err := <-ended; err != nil {
					t.Error(err)
				}
				_ = driver.Close()
			})
		})
	}
}

// Only a device that is suspended, and the very one, is resumed. The test's /dev has no device-mapper: who tries to resume fails.
func TestGuardResumesItsOwnOnly(t *testing.T) {
	d := newDeviceMapper(t.TempDir(), t.TempDir(), nil)
	for _, c := range []struct {
		is    dmStatus
		tries bool
	}{
		{dmStatus{uuid: "LVM-x", suspended: true}, true},
		{dmStatus{uuid: "LVM-x"}, false},
		{dmStatus{uuid: "LVM-y", suspended: true}, false},
	} {
		d.status = func(string) (dmStatus, error) { return c.is, nil }
		if err := d.resumeOwn("a", "LVM-x"); (err != nil) != c.tries {
			t.Errorf("%+v: %v", c.is, err)
		}
	}
}
