package store

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

var testContext = context.Background()

// testChildCommand returns a command that starts the test binary again. The role selects what the new process does.
func testChildCommand(t *testing.T, role, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), testRoleEnvVar+"="+role, testPathEnvVar+"="+path, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = new(bytes.Buffer)
	return cmd
}

func TestKilledWriterLosesNothing(t *testing.T) {
	t.Parallel()
	path := tempStatePath(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	confirmedWrites := make(map[int]int)
	var index uint64
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for range rounds {
		cmd := testChildCommand(t, "write", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The process may be killed at any time after its first change.
		kill := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() })
		first := true
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var w, n int
			var i uint64
			if _, err := fmt.Sscan(lines.Text(), &w, &n, &i); err != nil {
				t.Errorf("the writer says %q", lines.Text())
			}
			confirmedWrites[w], index = max(confirmedWrites[w], n), max(index, i)
			if first {
				first = false
				kill.Reset(time.Duration(random.IntN(50_000)) * time.Microsecond)
			}
		}
		cmd.Wait()
		kill.Stop()
		if text := cmd.Stderr.(*bytes.Buffer).String(); text != "" {
			t.Fatalf("the writer says: %s", text)
		}
		checkWrittenRecords(t, path, confirmedWrites, index)
	}
	if index < uint64(rounds) {
		t.Errorf("only %d changes in all", index)
	}
}

// checkWrittenRecords verifies the state after a process with several writers was killed. For each writer, the state may
// contain at most one unreported change.
func checkWrittenRecords(t *testing.T, path string, confirmedWrites map[int]int, index uint64) {
	t.Helper()
	s := openStore(t, path)
	defer s.Close()
	if d := s.Damage(); len(d) > 0 {
		t.Fatalf("damage: %v", d)
	}
	if s.Index() < index {
		t.Errorf("index %d, but %d was told", s.Index(), index)
	}
	snap := s.Snapshot()
	for w := range writerCount {
		name := strconv.Itoa(w)
		a, b := snap.Variable(nil, "default", name+"/a"), snap.Variable(nil, "default", name+"/b")
		alloc := snap.Allocation(nil, "alloc-"+name)
		if a == nil || b == nil {
			if confirmedWrites[w] > 0 || a != nil || b != nil || alloc != nil {
				t.Errorf("writer %d: change %d was told, but half of it is there: %v %v %v", w, confirmedWrites[w], a, b, alloc)
			}
			continue
		}
		n, err := strconv.Atoi(a.Items["n"])
		if err != nil || b.Items["n"] != a.Items["n"] || a.ModifyIndex != b.ModifyIndex {
			t.Errorf("writer %d: half a change: %v and %v", w, a, b)
		}
		if n < confirmedWrites[w] || n > confirmedWrites[w]+1 {
			t.Errorf("writer %d: state of change %d, but %d was told", w, n, confirmedWrites[w])
		}
		confirmedWrites[w] = n // in the next process, writer w continues after its change n
		if (alloc != nil) != (n%2 == 1) {
			t.Errorf("writer %d: half of change %d: alloc %v", w, n, alloc)
		}
		if alloc != nil && (alloc.Job == nil || *alloc.Job.ID != "job"+a.Items["n"]) {
			t.Errorf("writer %d: alloc of change %d has the job %v", w, n, alloc.Job)
		}
	}
}
