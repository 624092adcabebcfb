package endurance

import (
	"cmp"
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
	seedFlag     = flag.Uint64("seed", 0, "`seed` of the first iteration of a long test, and without -duration and -sample of the only one")
	sampleFlag   = flag.Int("sample", 0, "`number` of iterations of a long test without -duration; 0 means its own number")
	appendFlag   = flag.String("append", "", "append the result of a long test to the table of the `file`")
)

// Mode is the way in which a long test runs its iterations.
type Mode int

const (
	Sample Mode = iota // the test runs a few iterations: there is -sample, or neither -duration nor -seed
	Repeat             // the test runs the iteration of -seed
	Part               // the test runs iterations for -duration, and reports them
)

// CurrentMode returns the mode that the flags select.
func CurrentMode() Mode {
	switch {
	case *durationFlag > 0:
		return Part
	case *seedFlag != 0 && *sampleFlag == 0:
		return Repeat
	}
	return Sample
}

// Config describes a long test.
type Config struct {
	Sample     int    // number of iterations in the mode Sample
	SampleSeed uint64 // seed of the first iteration in the mode Sample; 0 means a random seed
	Unit       string // text after the count in the row of the part, such as "simulations" or "of 800 faults"
	Load       string // description of what else the machine runs, for the row of the part
}

const (
	// hangTimeout is the time after the end of -duration at which a part that still runs has timed out.
	hangTimeout = 30 * time.Minute
	// reportTime is the time that a part needs to report that it has timed out.
	reportTime = 5 * time.Second
	// watchInterval is the interval in which a part samples the load and updates its row.
	watchInterval = time.Minute
)

// Run is one run of a long test: it runs the iterations of the test, and reports them in the mode Part.
type Run struct {
	t             *testing.T
	config        Config
	firstSeed     uint64 // seed of the first iteration; each further iteration has the next number
	maxIterations int    // maximum number of iterations; 0 means that iterations are started until the time until

	mu                sync.Mutex
	startedIterations int             // number of iterations that were started
	runningSeeds      map[uint64]bool // seeds of the iterations that run, or in which the test has failed
	workCount         int             // sum of the calls of Add
	countByKind       map[string]int  // sum of the calls of AddKind for each kind
	firstFailure      string

	// The following fields are used in the mode Part only.
	startTime, endTime time.Time
	part               part
	lastRow            string    // the row that was last written to the table
	loadAverages       []float64 // load average of the machine in each minute of the part
	hasReportedEnd     bool      // lastRow has the final result
}

// Start starts the run of a test. In the mode Part the result contains the failures until the
// cleanup of Start, so a test calls Start before it registers other cleanups.
func Start(t *testing.T, config Config) *Run {
	t.Helper()
	r := &Run{t: t, config: config, runningSeeds: map[uint64]bool{}, countByKind: map[string]int{}}
	switch CurrentMode() {
	case Sample:
		r.firstSeed, r.maxIterations = cmp.Or(*seedFlag, config.SampleSeed), cmp.Or(*sampleFlag, config.Sample)
	case Repeat:
		r.firstSeed, r.maxIterations = *seedFlag, 1
	case Part:
		r.firstSeed = *seedFlag
	}
	if r.firstSeed == 0 {
		r.firstSeed = 1 + uint64(rand.Uint32())
	}
	if CurrentMode() == Part {
		r.startPart()
		return r
	}
	if *appendFlag != "" {
		t.Fatal("-append needs -duration")
	}
	t.Cleanup(func() {
		if result := r.finalResult(); result != resultPassed {
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
	r.startTime = time.Now()
	r.endTime = r.startTime.Add(*durationFlag)
	timeout := r.endTime.Add(hangTimeout)
	if deadline, ok := r.t.Deadline(); ok {
		if !deadline.After(r.endTime.Add(reportTime)) {
			r.t.Fatalf("the timeout of the test is shorter than -duration %v: add -timeout 0", *durationFlag)
		}
		if deadline = deadline.Add(-reportTime); deadline.Before(timeout) {
			timeout = deadline
		}
	}
	r.part = part{
		startTime: r.startTime.UTC().Truncate(time.Second), testName: code.pkg + "." + r.t.Name(), commit: commit, codeHash: code.hash, firstSeed: r.firstSeed, unit: r.config.Unit,
	}
	if err := r.reportResult(resultUnfinished); err != nil {
		r.t.Fatal(err)
	}
	r.loadAverages = nil // reportResult has added the load of the minute before the start

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	var watchWG sync.WaitGroup
	watchWG.Go(func() { r.watchPart(done, signals, time.After(time.Until(timeout))) })
	r.t.Cleanup(func() {
		signal.Stop(signals)
		close(done)
		watchWG.Wait()
		if err := r.reportResult(r.finalResult()); err != nil {
			r.t.Error(err)
		}
	})
}

// watchPart updates the row of the part until done is closed. It ends the process if the part is
// interrupted or times out.
func (r *Run) watchPart(done <-chan struct{}, signals <-chan os.Signal, timeout <-chan time.Time) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			reportToStderr(r.reportResult(resultUnfinished)) // a later report can succeed
		case s := <-signals:
			reportToStderr(r.reportResult(resultInterrupted))
			signal.Reset(s)
			_ = syscall.Kill(os.Getpid(), s.(syscall.Signal)) // a process can always signal itself
		case <-timeout:
			reportToStderr(r.reportResult(resultTimedOut))
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
	for seed, ok := r.nextSeed(); ok; seed, ok = r.nextSeed() {
		r.endIteration(seed, iterate(seed))
	}
}

// EachParallel is like Each, but runs as many iterations at one time as the flag -parallel of the test binary allows.
func (r *Run) EachParallel(iterate func(seed uint64) error) {
	r.t.Helper()
	var workersWG sync.WaitGroup
	for range flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int) {
		workersWG.Go(func() { r.Each(iterate) })
	}
	workersWG.Wait()
}

// nextSeed starts the next iteration and returns its seed, or false if no further iteration must start. There is always
// a first iteration.
func (r *Run) nextSeed() (seed uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.t.Failed(), r.maxIterations > 0 && r.startedIterations == r.maxIterations, r.maxIterations == 0 && r.startedIterations > 0 && !time.Now().Before(r.endTime):
		return 0, false
	}
	seed = r.firstSeed + uint64(r.startedIterations)
	r.startedIterations++
	r.runningSeeds[seed] = true
	return seed, true
}

// endIteration records that the iteration with the seed has ended, and fails the test if err is not nil.
func (r *Run) endIteration(seed uint64, err error) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.t.Failed() {
		return // the iteration, or a concurrent one, has failed
	}
	delete(r.runningSeeds, seed)
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
	r.workCount += n
}

// AddKind adds n to the count of the run, like Add, and to the count of a kind of work, which is a word. The row of the
// part names the count of each kind.
func (r *Run) AddKind(kind string, n int) {
	r.Add(n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.countByKind[kind] += n
}

// finalResult returns the result of the run after its end.
func (r *Run) finalResult() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.firstFailure != "":
		return failedPrefix + formatCell(r.firstFailure)
	case !r.t.Failed() && !isPanicking():
		return resultPassed
	case len(r.runningSeeds) > 0:
		return failedPrefix + "seed " + strings.Trim(fmt.Sprint(slices.Sorted(maps.Keys(r.runningSeeds))), "[]")
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

// formatCell shortens a text and removes characters from it that a cell of the table cannot contain.
func formatCell(text string) string {
	const maxLength = 120
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "/")
	if runes := []rune(text); len(runes) > maxLength {
		text = string(runes[:maxLength]) + "…"
	}
	return strings.ReplaceAll(text, "<", "&lt;") // Markdown would take <nil> for HTML
}

// reportResult writes the row of the part with a result to the table in the file of -append. It prints the first row and
// the row with the final result. After the final result it has no effect.
func (r *Run) reportResult(result string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hasReportedEnd {
		return nil
	}
	r.hasReportedEnd = result != resultUnfinished
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
	p.loadText = fmt.Sprintf("%s; %d cores, load average %.1f", r.config.Load, runtime.NumCPU(), sum/float64(len(r.loadAverages)))
	p.duration, p.count, p.countByKind, p.result = time.Since(r.startTime).Truncate(time.Second), r.workCount, r.countByKind, result
	before := r.lastRow
	r.lastRow = p.String()
	if before == "" || r.hasReportedEnd {
		fmt.Printf("%s\n%s\n", tableHeader, r.lastRow)
	}
	if *appendFlag == "" {
		return nil
	}
	parts, err := writeRow(*appendFlag, before, r.lastRow)
	if err == nil && r.hasReportedEnd {
		fmt.Println(formatTestTotal(parts, *p))
	}
	return err
}

// readLoadAverage returns the load average of the machine over the last minute.
func readLoadAverage() (load float64, err error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(string(text), &load)
	return load, err
}
