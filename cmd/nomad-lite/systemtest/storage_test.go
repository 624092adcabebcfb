package systemtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// damage is a damage to a state file while no agent runs.
type damage struct {
	name string
	do   func(path string) error
}

// damages returns the damages for a state of the usual size.
func damages() []damage {
	const block, usual = 4096, 32 * 4096
	all := []damage{
		{"empty", func(path string) error { return os.Truncate(path, 0) }},
		{"missing", os.Remove},
		{"text", func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("this is not a state file\n", 1000)), 0o600)
		}},
	}
	step, flips := 10*block, 3
	if *allFaults {
		step, flips = block, 40
	}
	for at := block; at <= usual/2; at += step {
		all = append(all, damage{fmt.Sprintf("truncated at %d", at), func(path string) error { return os.Truncate(path, int64(at)) }})
	}
	for seed := range flips {
		all = append(all, damage{fmt.Sprintf("bits flipped, seed %d", seed), func(path string) error { return flip(path, uint64(seed)) }})
	}
	return all
}

// flip inverts some bits of a file.
func flip(path string, seed uint64) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for range 1 + random.IntN(16) {
		b[random.IntN(len(b))] ^= 1 << random.IntN(8)
	}
	return os.WriteFile(path, b, 0o600)
}

// TestDamagedState damages the state of a killed agent whose tasks continue. The next agent
// continues with the readable rest: it reports the damage, the job runs when it is
// registered again, and no task runs twice.
func TestDamagedState(t *testing.T) {
	for _, d := range damages() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			n := startedNode(t)
			before := n.tasks()
			n.agent.kill()
			if err := d.do(n.state()); err != nil {
				t.Fatal(err)
			}
			n.past = map[string]*api.Allocation{} // all allocations can be lost
			n.start()
			n.register(n.job("1s", "one"))
			n.await("it runs again, once", n.lives(func(a *api.Allocation) bool { return n.alone(a.ID) }))
			says := strings.Contains(n.said(), "state could not be read") || strings.Contains(n.said(), "its directory stays until somebody removes it")
			if now := n.tasks(); !says && !slices.Equal(now, before) {
				t.Errorf("tasks are %v, were %v, and the agent does not say why", now, before)
			}
			n.end()
		})
	}
}

func TestLockedState(t *testing.T) {
	t.Parallel()
	n := startedNode(t)
	before := n.tasks()
	n.agent.kill()
	file, err := os.Open(n.state())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	n.start()
	if err := n.agent.cmd.Wait(); err == nil {
		t.Error("an agent runs on a state that another process has locked")
	}
	if want := fmt.Sprintf("state file %s is in use by process %d", n.state(), os.Getpid()); !strings.Contains(n.said(), want) {
		t.Errorf("the agent does not say that the %s", want)
	}
	file.Close()
	n.start()
	n.await("it runs", n.lives(func(a *api.Allocation) bool { return true }))
	if now := n.tasks(); !slices.Equal(now, before) {
		t.Errorf("tasks are %v, were %v", now, before)
	}
	n.end()
}

func TestStateDeletedWhileOpen(t *testing.T) {
	t.Parallel()
	n := startedNode(t)
	before := n.tasks()
	if err := os.Remove(n.state()); err != nil {
		t.Fatal(err)
	}
	n.register(n.job("2s", "one"))
	n.await("it is updated", n.lives(func(a *api.Allocation) bool { return *a.Job.Version == 1 }))
	n.agent.kill()
	n.start()
	n.await("the update is not lost", n.lives(func(a *api.Allocation) bool { return *a.Job.Version == 1 }))
	if now := n.tasks(); !slices.Equal(now, before) {
		t.Errorf("tasks are %v, were %v", now, before)
	}
	n.end()
}

// TestFullDisk fills the disk of a node. New jobs are rejected, running tasks continue, an
// agent can be started, and pending state writes are made when there is room again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	n := newRootNode(t)
	if err := os.Mkdir(n.data, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", n.data, "tmpfs", 0, "size=16m,mode=0711"); err != nil {
		t.Fatal(err)
	}
	n.startLife()
	before := n.tasks()

	ballast := filepath.Join(n.data, "ballast")
	fill(t, ballast)
	if err := os.WriteFile(filepath.Join(n.dir, "two.nomad.hcl"), []byte(n.job("2s", "one")), 0o644); err != nil {
		t.Fatal(err)
	}
	var answer string
	n.do("register "+filepath.Join(n.dir, "two.nomad.hcl"), &answer)
	if !strings.Contains(answer, "no space left on device") {
		t.Errorf("a job is registered on a full disk: %s", answer)
	}
	n.agent.kill()
	n.start()
	n.await("it runs on", n.lives(func(a *api.Allocation) bool { return *a.Job.Version == 0 }))
	if now := n.tasks(); !slices.Equal(now, before) {
		t.Errorf("tasks are %v, were %v", now, before)
	}
	for _, p := range before {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	n.await("its end is seen", func(allocReport) bool { return !slices.Equal(n.tasks(), before) })

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	n.register(n.job("2s", "one"))
	n.await("it runs again", n.lives(func(a *api.Allocation) bool { return *a.Job.Version == 1 && n.alone(a.ID) }))
	n.end()
}

// fill writes a file until there is no room left.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for size := 1 << 20; size > 0; {
		if _, err = file.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

func newRootNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	return newNode(t, fault{step: -1})
}

// startedNode is a node on which the job runs.
func startedNode(t *testing.T) *node {
	t.Helper()
	n := newRootNode(t)
	n.startLife()
	return n
}

func (n *node) startLife() {
	n.Helper()
	n.start()
	n.register(n.job("1s", "one"))
	n.await("it runs", n.lives(func(*api.Allocation) bool { return true }))
}

func (n *node) state() string { return filepath.Join(n.data, store.FileName) }

// end purges the job and stops the agent.
func (n *node) end() {
	n.Helper()
	n.do("purge life", new(string))
	n.await("it is gone", func(s allocReport) bool { return n.alone("") })
	n.agent.end("stop")
}

// tasks returns the processes of the job.
func (n *node) tasks() (all []process.ID) {
	for kind, processes := range n.processes() {
		if isTask(kind) {
			all = append(all, processes...)
		}
	}
	return all
}

// alone reports whether no other allocation of the job has a process, and asserts
// that no two had at the same time.
func (n *node) alone(id string) bool {
	n.Helper()
	text, err := os.ReadFile(n.diary)
	if err != nil {
		n.Fatal(err)
	}
	if strings.Contains(string(text), "double") {
		n.Fatalf("I1: two have run at once:\n%s", text)
	}
	for kind := range n.processes() {
		if isTask(kind) && !strings.HasPrefix(kind, id+"/") {
			return false
		}
	}
	return true
}
