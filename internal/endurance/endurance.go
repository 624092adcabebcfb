package endurance

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var (
	durationFlag = flag.Duration("duration", 0, "run new iterations of a long test until the `duration` is over")
	seedFlag     = flag.Uint64("seed", 0, "`seed` of the first iteration of a long test, and without -duration of the only one")
	appendFlag   = flag.String("append", "", "append the result of a long test to the table of the `file`")
)

// Mode is what a long test does.
type Mode int

const (
	Sample Mode = iota // the test runs a few iterations: there is neither -duration nor -seed
	Repeat             // the test runs the iteration of -seed
	Part               // the test runs iterations for -duration, and reports them
)

// CurrentMode returns the mode that the flags select.
func CurrentMode() Mode {
	switch {
	case *durationFlag > 0:
		return Part
	case *seedFlag != 0:
		return Repeat
	}
	return Sample
}

// Config describes a long test.
type Config struct {
	Sample     int    // number of iterations in the mode Sample
	SampleSeed uint64 // seed of the first iteration in the mode Sample; 0 means a random one
	Unit       string // text behind the count, such as "simulations" or "of 800 faults"
	Load       string // what runs at the same time
}

const (
	// hangTimeout is the time after the duration after which a part has timed out.
	hangTimeout = 30 * time.Minute
	// reportTime is the time that a part needs to report that it has timed out.
	reportTime = 5 * time.Second
	// watchInterval is the interval in which a part samples the load and updates its row.
	watchInterval = time.Minute
)

// Run runs the iterations of a test.
type Run struct {
	t      *testing.T
	config Config
	seed   uint64 // of the first iteration
	limit  int    // number of iterations; 0 means that iterations start before until

	mu           sync.Mutex
	started      int             // number of iterations
	running      map[uint64]bool // seeds of the iterations that have not ended without a failure
	count        int
	kinds        map[string]int // parts of the count, see AddKind
	firstFailure string

	// In the mode Part:
	start, until time.Time
	part         part
	row          string    // last row that was written
	loadAverages []float64 // of each minute
	reported     bool      // the row has the final result
}

// Start starts the run of a test. In the mode Part the result contains the failures until the
// cleanup of Start, so a test calls Start before it registers other cleanups.
func Start(t *testing.T, config Config) *Run {
	t.Helper()
	r := &Run{t: t, config: config, running: map[uint64]bool{}, kinds: map[string]int{}}
	switch CurrentMode() {
	case Sample:
		r.seed, r.limit = config.SampleSeed, config.Sample
	case Repeat:
		r.seed, r.limit = *seedFlag, 1
	case Part:
		r.seed = *seedFlag
	}
	if r.seed == 0 {
		r.seed = 1 + uint64(rand.Uint32())
	}
	if CurrentMode() == Part {
		r.startPart()
		return r
	}
	if *appendFlag != "" {
		t.Fatal("-append needs -duration")
	}
	t.Cleanup(func() {
		if result := r.result(); result != resultPassed {
			t.Log(result) // names the seed
		}
	})
	return r
}

// startPart writes the row of the part, and watches the part until the test ends.
func (r *Run) startPart() {
	r.t.Helper()
	commit, err := readCommit()
	if err != nil {
		r.t.Fatal(err)
	}
	code, err := readCodeUnderTest()
	if err != nil {
		r.t.Fatal(err)
	}
	r.start = time.Now()
	r.until = r.start.Add(*durationFlag)
	timeout := r.until.Add(hangTimeout)
	if deadline, ok := r.t.Deadline(); ok {
		if !deadline.After(r.until.Add(reportTime)) {
			r.t.Fatalf("the timeout of the test is shorter than -duration %v: add -timeout 0", *durationFlag)
		}
		if deadline = deadline.Add(-reportTime); deadline.Before(timeout) {
			timeout = deadline
		}
	}
	r.part = part{
		start: r.start.UTC().Truncate(time.Second), test: code.pkg + "." + r.t.Name(), commit: commit, code: code.hash, seed: r.seed, unit: r.config.Unit,
	}
	if err := r.report(resultUnfinished); err != nil {
		r.t.Fatal(err)
	}
	r.loadAverages = nil // the first is the load of the minute before the start

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	var watchWG sync.WaitGroup
	watchWG.Go(func() { r.watch(done, signals, time.After(time.Until(timeout))) })
	r.t.Cleanup(func() {
		signal.Stop(signals)
		close(done)
		watchWG.Wait()
		if err := r.report(r.result()); err != nil {
			r.t.Error(err)
		}
	})
}

// watch updates the row of the part until done is closed. It ends the process if the part is
// interrupted or times out.
func (r *Run) watch(done <-chan struct{}, signals <-chan os.Signal, timeout <-chan time.Time) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			reportToStderr(r.report(resultUnfinished)) // a later report can succeed
		case s := <-signals:
			reportToStderr(r.report(resultInterrupted))
			signal.Reset(s)
			_ = syscall.Kill(os.Getpid(), s.(syscall.Signal)) // a process can always signal itself
		case <-timeout:
			reportToStderr(r.report(resultTimedOut))
			debug.SetTraceback("all")
			panic("the iteration has not ended long after -duration")
		}
	}
}

func reportToStderr(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "report of the part:", err)
	}
}

// Each calls iterate with the seed of each iteration. After the first error or failure of the test
// there is no other iteration.
func (r *Run) Each(iterate func(seed uint64) error) {
	r.t.Helper()
	for seed, ok := r.next(); ok; seed, ok = r.next() {
		r.end(seed, iterate(seed))
	}
}

// EachParallel is Each with as many concurrent iterations as the flag -parallel of the test binary says.
func (r *Run) EachParallel(iterate func(seed uint64) error) {
	r.t.Helper()
	var workersWG sync.WaitGroup
	for range flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int) {
		workersWG.Go(func() { r.Each(iterate) })
	}
	workersWG.Wait()
}

// next returns the seed of the next iteration, or false if there is none. There is always a first
// iteration.
func (r *Run) next() (seed uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.t.Failed(), r.limit > 0 && r.started == r.limit, r.limit == 0 && r.started > 0 && !time.Now().Before(r.until):
		return 0, false
	}
	seed = r.seed + uint64(r.started)
	r.started++
	r.running[seed] = true
	return seed, true
}

// end records the end of an iteration.
func (r *Run) end(seed uint64, err error) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.t.Failed() {
		return // the iteration, or a concurrent one, has failed
	}
	delete(r.running, seed)
	if err != nil {
		r.t.Errorf("seed %d: %v", seed, err)
		if r.firstFailure == "" {
			r.firstFailure = fmt.Sprintf("seed %d: %v", seed, err)
		}
	}
}

// Add adds n to the count of the run.
func (r *Run) Add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count += n
}

// AddKind is Add for a part of the run's work that has a kind, a word. The row names the count of each kind.
func (r *Run) AddKind(kind string, n int) {
	r.Add(n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kinds[kind] += n
}

// result returns the result of the run after its end.
func (r *Run) result() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.firstFailure != "":
		return failedPrefix + formatCell(r.firstFailure)
	case !r.t.Failed() && !isPanicking():
		return resultPassed
	case len(r.running) > 0:
		return failedPrefix + "seed " + strings.Trim(fmt.Sprint(slices.Sorted(maps.Keys(r.running))), "[]")
	}
	return failedPrefix + "after the last iteration"
}

// isPanicking reports whether a panic has called the calling function. Package testing runs the
// cleanups before it marks a test that panics as failed.
func isPanicking() bool {
	callers := make([]uintptr, 100)
	for frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)]); ; {
		frame, more := frames.Next()
		if frame.Function == "runtime.gopanic" {
			return true
		}
		if !more {
			return false
		}
	}
}

// formatCell returns the first characters of a text in the form of a cell of the table.
func formatCell(text string) string {
	const maxLength = 120
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "/")
	if runes := []rune(text); len(runes) > maxLength {
		text = string(runes[:maxLength]) + "…"
	}
	return text
}

// report writes the row of the part with a result to the file of -append. It prints the first row and the row of the
// final result, after which it has no effect.
func (r *Run) report(result string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reported {
		return nil
	}
	r.reported = result != resultUnfinished
	load, err := readLoadAverage()
	if err != nil {
		return err
	}
	r.loadAverages = append(r.loadAverages, load)
	sum := 0.0
	for _, l := range r.loadAverages {
		sum += l
	}
	p := &r.part
	p.load = fmt.Sprintf("%s; %d cores, load average %.1f", r.config.Load, runtime.NumCPU(), sum/float64(len(r.loadAverages)))
	p.duration, p.count, p.kinds, p.result = time.Since(r.start).Truncate(time.Second), r.count, r.kinds, result
	before := r.row
	r.row = p.String()
	if before == "" || r.reported {
		fmt.Printf("%s\n%s\n", tableHeader, r.row)
	}
	if *appendFlag == "" {
		return nil
	}
	parts, err := writeRow(*appendFlag, before, r.row)
	if err == nil && r.reported {
		fmt.Println(formatTotal(parts, *p))
	}
	return err
}

// readLoadAverage returns the number of processes that wanted a core in the last minute, on average.
func readLoadAverage() (load float64, err error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(string(text), &load)
	return load, err
}
