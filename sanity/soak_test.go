package sanity

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/csi-local-lvm/csi-local-lvm/sanity/contract"
	"github.com/csi-local-lvm/csi-local-lvm/sanity/soak"
)

// TestSoakOverFake runs a random history. TEST_SOAK_STEPS and TEST_SOAK_SEED choose another, TEST_SOAK gives it in words.
func TestSoakOverFake(t *testing.T) {
	soakOver(t, newFakeHarness, "go test ./sanity -run TestSoakOverFake", 400, soak.Options{DeepEvery: 1, Patience: 20 * time.Second})
}

// shrinkTime bounds the search for a shorter history that fails.
const shrinkTime = 2 * time.Minute

func soakOver(t *testing.T, newHarness func(*testing.T) contract.Harness, command string, steps int, o soak.Options) {
	seed := fromEnvironment(t, "TEST_SOAK_SEED", int(time.Now().UnixNano()%1e9))
	history := soak.Random(uint64(seed), fromEnvironment(t, "TEST_SOAK_STEPS", steps))
	if words := os.Getenv("TEST_SOAK"); words != "" {
		var err error
		history, err = soak.Parse(words)
		must(t, err)
	}
	start := time.Now()
	n := len(history)
	failed, err := replay(t, "history", newHarness, history, o)
	if err == nil {
		t.Logf("seed %d, %d steps in %s", seed, n, time.Since(start).Round(time.Second))
		return
	}
	if failed != 0 {
		history = history[:failed]
	}
	tries, fails := 0, 0
	short := soak.Shrink(history, shrinkTime, func(h []soak.Step) bool {
		tries++
		_, err := replay(t, fmt.Sprintf("shorter%d", tries), newFakeHarness, h, soak.Options{DeepEvery: 1, Patience: time.Second})
		if err != nil {
			fails++
		}
		return err != nil
	})
	where := "the shortest history that fails over the fake"
	if fails == 0 {
		short, where = history[max(0, len(history)-200):], "the end of the history, which does not fail over the fake"
	}
	t.Fatalf("seed %d, %d steps: %v\n%s, after %d tries:\n  TEST_SOAK='%s' %s\nthe whole again:\n  TEST_SOAK_SEED=%d TEST_SOAK_STEPS=%d %s",
		seed, n, err, where, tries, soak.Join(short), command, seed, n, command)
}

// replay runs a history on a machine of its own, in a test of its own, so that what a harness fails of is told as well.
func replay(t *testing.T, name string, newHarness func(*testing.T) contract.Harness, history []soak.Step, o soak.Options) (failed int, err error) {
	err = fmt.Errorf("the test ended in the middle") // unless it comes to its end
	t.Run(name, func(t *testing.T) { failed, err = soak.Run(t, newHarness(t), slices.Clone(history), o) })
	return failed, err
}

func fromEnvironment(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}
