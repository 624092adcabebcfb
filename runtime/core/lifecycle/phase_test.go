package lifecycle

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

// The specification in this file implements the phaseTable rules independently: over a plain task
// list, with one step at a time. It shares nothing with the code under test but the constants'
// names.

type specTask struct {
	stage Stage
	state State
}

// specOpenGates is the table of open gates, one column per stage.
var specOpenGates = map[Phase]string{
	// columns: pre-eph, pre-side, main, post-eph, post-side, poststop
	PhaseInit:      "------",
	PhasePrestart:  "OO----",
	PhaseMain:      "-OO---",
	PhasePoststart: "-OOOO-",
	PhaseWaitAlloc: "-OO-O-",
	PhasePoststop:  "-----O",
}

var specStages = [...]Stage{PrestartEphemeral, PrestartSidecar, MainTask, PoststartEphemeral, PoststartSidecar, PoststopTask}

// specNextPhase applies the specification's rules until the phase no longer changes.
func specNextPhase(p Phase, tasks []specTask) Phase {
	for {
		next := applySpecRule(p, tasks)
		if next == p {
			return p
		}
		p = next
	}
}

func applySpecRule(p Phase, tasks []specTask) Phase {
	alive, notPending, mainPending, poststartAlive, prestartUndone := false, false, false, false, false
	for _, t := range tasks {
		dead := t.state == Succeeded || t.state == Failed
		if t.stage != PoststopTask && !dead {
			alive = true
		}
		if t.state != Pending {
			notPending = true
		}
		switch t.stage {
		case PrestartEphemeral:
			if t.state != Succeeded {
				prestartUndone = true
			}
		case PrestartSidecar:
			if t.state != Running {
				prestartUndone = true
			}
		case MainTask:
			if t.state == Pending {
				mainPending = true
			}
		case PoststartEphemeral:
			if !dead {
				poststartAlive = true
			}
		}
	}
	switch {
	case !alive:
		return PhasePoststop
	case p == PhaseInit && !notPending:
		return PhasePrestart
	case p == PhasePrestart && !prestartUndone:
		return PhaseMain
	case p == PhaseMain && !mainPending:
		return PhasePoststart
	case p == PhasePoststart && !poststartAlive:
		return PhaseWaitAlloc
	}
	return p
}

func checkNextPhase(t *testing.T, p Phase, tasks []specTask) {
	var set StateSetByStage
	for _, task := range tasks {
		set.AddTask(task.stage, task.state)
	}
	if got, want := p.Next(set), specNextPhase(p, tasks); got != want {
		t.Errorf("%v.Next(%v) = %v, want %v", p, tasks, got, want)
	}
}

// checkAllTaskLists checks all task lists in these states, and returns their number.
func checkAllTaskLists(t *testing.T, longest int, states ...State) int {
	var allTaskKinds []specTask
	for _, stage := range specStages {
		for _, state := range states {
			allTaskKinds = append(allTaskKinds, specTask{stage, state})
		}
	}
	var checkLists func(tasks []specTask, from int) int
	checkLists = func(tasks []specTask, from int) int {
		for p := PhaseInit; p <= PhasePoststop; p++ {
			checkNextPhase(t, p, tasks)
		}
		n := 1
		if len(tasks) == longest || len(tasks) < 4 && t.Failed() {
			return n
		}
		for i := from; i < len(allTaskKinds); i++ {
			n += checkLists(append(tasks, allTaskKinds[i]), i)
		}
		return n
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for first := range allTaskKinds {
		wg.Go(func() {
			n := checkLists(append(make([]specTask, 0, longest), allTaskKinds[first]), first)
			mu.Lock()
			defer mu.Unlock()
			total += n
		})
	}
	wg.Wait()
	return total
}

// Every list of up to six tasks, in every phase. Task order matters neither in the code nor in the
// specification, so one order per list is enough; the random test shuffles.
func TestNextAgreesWithSpecificationOnAllSmallAllocations(t *testing.T) {
	const maxListLength = 6
	total := 1 + checkAllTaskLists(t, maxListLength, Pending, Running, Succeeded, Failed) // includes the empty list
	checkNextPhase(t, PhaseInit, nil)

	// The number of lists without order: choose(24+k-1, k) for each length k.
	want := 0
	for k, c := 0, 1; k <= maxListLength; k++ {
		want += c
		c = c * (24 + k) / (k + 1)
	}
	if total != want {
		t.Errorf("walked %d lists, want %d", total, want)
	}
}

func TestNextAgreesWithSpecificationOnLargeAllocations(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		tasks := make([]specTask, rng.IntN(40))
		// Each list has few kinds of tasks. With more kinds, the rules for "all tasks" would rarely
		// apply.
		stages, states := 1+rng.IntN(6), 1+rng.IntN(4)
		for i := range tasks {
			tasks[i] = specTask{specStages[rng.IntN(stages)], State(rng.IntN(states))}
		}
		checkNextPhase(t, Phase(rng.IntN(6)), tasks)
	}
}

func TestGatesAreThoseOfTheReference(t *testing.T) {
	for p := PhaseInit; p <= PhasePoststop; p++ {
		got := ""
		for _, stage := range specStages {
			if p.OpensStage(stage) {
				got += "O"
			} else {
				got += "-"
			}
		}
		if got != specOpenGates[p] {
			t.Errorf("gates in %v: %s, want %s", p, got, specOpenGates[p])
		}
	}
}

// Next never returns an earlier phase, and it is idempotent.
func TestNextIsMonotonousAndIdempotent(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		var stageStates StateSetByStage
		for i := range stageStates {
			stageStates[i] = stateSet(rng.IntN(16))
		}
		for p := PhaseInit; p <= PhasePoststop; p++ {
			next := p.Next(stageStates)
			if next < p {
				t.Fatalf("%v.Next(%v) = %v goes back", p, stageStates, next)
			}
			if again := next.Next(stageStates); again != next {
				t.Fatalf("%v.Next(%v) = %v, and then %v", p, stageStates, next, again)
			}
		}
	}
}

func TestStageNames(t *testing.T) {
	names := []string{"prestart", "prestart sidecar", "main", "poststart", "poststart sidecar", "poststop"}
	for i, want := range names {
		s := Stage(1 << i)
		if got := s.String(); got != want {
			t.Errorf("%d: %q, want %q", s, got, want)
		}
		if s.Ephemeral() != (want == "prestart" || want == "poststart") || s.Sidecar() != strings.HasSuffix(want, "sidecar") {
			t.Errorf("%s: ephemeral %v, sidecar %v", want, s.Ephemeral(), s.Sidecar())
		}
	}
	if got := (MainTask | PoststopTask).String(); got != "several stages" {
		t.Errorf("%q", got)
	}
}

func TestStageOf(t *testing.T) {
	for _, c := range []struct {
		hook    string
		sidecar bool
		want    Stage
	}{
		{"", false, MainTask},
		{"", true, MainTask},
		{"prestart", false, PrestartEphemeral},
		{"prestart", true, PrestartSidecar},
		{"poststart", false, PoststartEphemeral},
		{"poststart", true, PoststartSidecar},
		{"poststop", false, PoststopTask},
		{"poststop", true, PoststopTask},
	} {
		if got := StageOf(c.hook, c.sidecar); got != c.want {
			t.Errorf("StageOf(%q, %v) = %v, want %v", c.hook, c.sidecar, got, c.want)
		}
	}
	if !PrestartSidecar.Sidecar() || !PoststartSidecar.Sidecar() || MainTask.Sidecar() || PoststopTask.Sidecar() {
		t.Error("Sidecar is wrong about a stage")
	}
}

func TestStateOf(t *testing.T) {
	for _, c := range []struct {
		state  string
		failed bool
		want   State
	}{
		{"pending", false, Pending},
		{"pending", true, Pending},
		{"running", false, Running},
		{"running", true, Running},
		{"dead", false, Succeeded},
		{"dead", true, Failed},
		{"", false, Pending},
	} {
		if got := StateOf(c.state, c.failed); got != c.want {
			t.Errorf("StateOf(%q, %v) = %v, want %v", c.state, c.failed, got, c.want)
		}
	}
}
