package bench

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

const (
	peerBurst = 50 // tasks that start at once
	peerStops = 25 // tasks that stop at once

	// concurrentCommands is the number of commands of a peer that run at a time, for a peer that starts one task per command. More
	// of them start no more tasks per second on two cores.
	concurrentCommands = 8
)

// BenchmarkPeers compares the programs with which a user can run a program in a root file system on one machine. Each iteration
// measures all of them in turn, with the same program in the same root file system and without a network of its own, and the
// driver docker also in bridges. The results are a table with a row for each peer, and figures of the driver docker whose floor
// is the engine alone. A peer that is not installed is left out, and the table gives the reason.
//
//	make bench-peers
func BenchmarkPeers(b *testing.B) {
	if !*quick && !slowtest.Enabled() {
		b.Skip("runs with make bench-peers")
	}
	if os.Geteuid() != 0 {
		b.Skip("needs root, to isolate tasks")
	}
	defer func() {
		if err := peers.RemovePrograms(); err != nil {
			b.Error(err)
		}
	}()
	c := newPeerComparison(b)
	for b.Loop() {
		for _, p := range c.peers {
			c.measure(p)
		}
	}
	b.ReportMetric(0, "ns/op") // an iteration measures many figures
	addBenchSamples(b, "docker starts", c.values[liteDocker][burstRate], c.values[engineAlone][burstRate])
	addBenchSamples(b, "stop, docker in bridges", c.values[liteDockerBridge][stopTime], c.values[engineAloneBridge][stopTime])
	fmt.Println("\n" + c.table()) // b.Log prints ten lines at most
}

// addBenchSamples adds the measured values of a figure and their baselines, which are none if a peer was left out.
func addBenchSamples(b *testing.B, name string, values, floors []float64) {
	b.Helper()
	for i := range min(len(values), len(floors)) {
		addBenchSample(b, name, values[i], floors[i])
	}
}

// peer is a way to run the program.
type peer struct {
	name string

	// start starts tasks. It returns when they are submitted, and the files that the tasks write are those of stampFiles.
	start      func(b *testing.B, count int)
	stampFiles func(b *testing.B) []string

	stop   func(b *testing.B) // stops the tasks, and waits until the peer has seen their end
	remove func(b *testing.B) // removes what remains of the stopped tasks; nil means nothing

	dirs []string // the arguments or the environment of each process of the peer contains one of them
}

// peerFigure is a column of the table.
type peerFigure string

const (
	firstInstruction peerFigure = "command or submit -> first instruction, ms"
	burstRate        peerFigure = "starts/s"
	idleMemory       peerFigure = "memory without tasks, MB"
	taskMemory       peerFigure = "memory per task, MB"
	stopTime         peerFigure = "stop, ms"
)

var peerFigures = []peerFigure{firstInstruction, burstRate, idleMemory, taskMemory, stopTime}

// peerComparison has the peers of a run, and their figures.
type peerComparison struct {
	*testing.B
	peers   []*peer
	leftOut map[string]error // peers that are not measured, with the reasons
	values  map[string]map[peerFigure][]float64
}

func newPeerComparison(b *testing.B) *peerComparison {
	c := &peerComparison{B: b, leftOut: map[string]error{}, values: map[string]map[peerFigure][]float64{}}
	root := newPeerRoot(b)
	c.add(root.forkPeer())
	c.addLite(root)
	c.addNomad(root)
	c.addCommand("runc run", root.runcPeer, "runc")
	c.addCommand("podman run", root.podmanPeer, "podman", "runc")
	if root.engine != nil {
		c.add(root.dockerRunPeer(), root.enginePeer(engineAlone, "host"), root.enginePeer(engineAloneBridge, "bridge"))
	} else {
		c.leftOut["docker"] = root.engineMissing
	}
	return c
}

func (c *peerComparison) add(all ...*peer) {
	for _, p := range all {
		p.runOnce(c.B) // plugins and pages of programs are loaded before the first measurement
		c.peers, c.values[p.name] = append(c.peers, p), map[peerFigure][]float64{}
	}
}

// addCommand adds a peer that needs installed programs.
func (c *peerComparison) addCommand(name string, newPeer func(b *testing.B, name string) *peer, programs ...string) {
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			c.leftOut[name] = err
			return
		}
	}
	c.add(newPeer(c.B, name))
}

func (p *peer) runOnce(b *testing.B) {
	b.Helper()
	p.start(b, 1)
	p.waitStamps(b)
	p.stopAndRemove(b)
}

func (p *peer) stopAndRemove(b *testing.B) time.Duration {
	b.Helper()
	began := time.Now()
	p.stop(b)
	took := time.Since(began)
	if p.remove != nil {
		p.remove(b)
	}
	return took
}

// waitStamps waits until all tasks run their program, and returns the time of the last first instruction.
func (p *peer) waitStamps(b *testing.B) (last time.Time) {
	b.Helper()
	for _, file := range p.stampFiles(b) {
		if stamp := systemtest.WaitTimestamps(b, file, 1)[0]; stamp.After(last) {
			last = stamp
		}
	}
	return last
}

func (c *peerComparison) measure(p *peer) {
	c.Helper()
	add := func(f peerFigure, value float64) { c.values[p.name][f] = append(c.values[p.name][f], value) }
	began := time.Now()
	p.start(c.B, 1)
	add(firstInstruction, systemtest.Milliseconds(p.waitStamps(c.B).Sub(began)))
	p.stopAndRemove(c.B)

	const quiet = 5 * time.Second // processes return memory when they have nothing to do
	settle(quiet)
	idle := p.memoryMB(c.B)
	add(idleMemory, idle)
	burst := max(1, sized(peerBurst))
	began = time.Now()
	p.start(c.B, burst)
	add(burstRate, float64(burst)/p.waitStamps(c.B).Sub(began).Seconds())
	settle(quiet)
	add(taskMemory, (p.memoryMB(c.B)-idle)/float64(burst))
	p.stopAndRemove(c.B)

	p.start(c.B, max(1, sized(peerStops)))
	p.waitStamps(c.B)
	add(stopTime, systemtest.Milliseconds(p.stopAndRemove(c.B)))
}

// memoryMB returns the memory of all processes of a peer without those of tasks, in MB.
func (p *peer) memoryMB(b *testing.B) float64 {
	b.Helper()
	kib := 0
	entries, err := os.ReadDir("/proc")
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range entries {
		dir := filepath.Join("/proc", e.Name())
		exe, err := os.Readlink(filepath.Join(dir, "exe"))
		if err != nil || filepath.Base(exe) == peerProgram || e.Name() == fmt.Sprint(os.Getpid()) {
			continue // no process, or a process that has exited, or a task
		}
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		for _, d := range p.dirs {
			if strings.Contains(string(args)+string(environ), d) {
				text, _ := os.ReadFile(filepath.Join(dir, "smaps_rollup")) // empty if the process has exited
				kib += systemtest.ParseMemoryKiB(b, text)
				break
			}
		}
	}
	return float64(kib) / 1000 * 1.024
}

// table returns a table of the medians.
func (c *peerComparison) table() string {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, f := range peerFigures {
		fmt.Fprintf(t, "\t%s", f)
	}
	fmt.Fprintln(t, "\t")
	for _, p := range c.peers {
		fmt.Fprint(t, p.name)
		for _, f := range peerFigures {
			fmt.Fprintf(t, "\t%.4g", systemtest.Median(c.values[p.name][f]))
		}
		fmt.Fprintln(t, "\t")
	}
	_ = t.Flush() // to memory
	for _, name := range slices.Sorted(maps.Keys(c.leftOut)) {
		fmt.Fprintf(&text, "%s is left out: %v\n", name, c.leftOut[name])
	}
	return text.String()
}

// forEachConcurrently calls do with 0 to count-1, with some calls at a time, and fails the benchmark with their errors.
func forEachConcurrently(b *testing.B, count int, do func(i int) error) {
	b.Helper()
	var workers sync.WaitGroup
	next, errs := make(chan int), make([]error, count)
	for range min(count, concurrentCommands) {
		workers.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	workers.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
}
