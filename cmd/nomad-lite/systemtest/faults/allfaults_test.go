package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
)

// faultCase is a case of TestAllFaults.
type faultCase struct {
	name string
	run  func(*testing.T, *rand.Rand)
}

// allFaultCases returns the cases of a long run: each fault of the tables of TestFaults, TestDamagedState and
// TestHostileHooks once, and random starts and bit flips, which depend on the seed, many times. The order is fixed and
// mixes them.
func allFaultCases() (cases []faultCase) {
	add := func(count int, name string, run func(*testing.T, *rand.Rand)) {
		for range count {
			cases = append(cases, faultCase{name, run})
		}
	}
	for _, c := range newMatrixCases(false) {
		add(1, c.name, c.run)
	}
	for _, d := range newStateDamages(stateBlockSize) {
		add(1, "state "+d.name, func(t *testing.T, _ *rand.Rand) { testDamagedState(t, d) })
	}
	add(40, "state with flipped bits", func(t *testing.T, random *rand.Rand) { testDamagedState(t, newBitFlips(random)) })
	for _, s := range allAgentEnvironments {
		add(15, "stopped starts, "+s.name, func(t *testing.T, random *rand.Rand) { testStoppedStarts(t, s, randomStoppedStarts(random, 30)) })
	}
	add(5, "starts without descriptors", func(t *testing.T, random *rand.Rand) { testLimitedStarts(t, randomLimitedStarts(random, 20)) })
	add(1, "hostile hooks", func(t *testing.T, _ *rand.Rand) { testHostileHooks(t, allHookFaults()) })
	add(1, "restart loop", func(t *testing.T, _ *rand.Rand) { testRestartLoop(t, 1000) })
	return mixed(cases)
}

// newMatrixCases returns the cases of the fault matrix.
func newMatrixCases(inCluster bool) (cases []faultCase) {
	for _, f := range faultMatrix(inCluster) {
		cases = append(cases, faultCase{f.String(), func(t *testing.T, random *rand.Rand) {
			n := newFaultNode(t, f)
			n.random = random
			n.testFault()
		}})
	}
	return cases
}

// mixed returns the cases in an order that mixes them, always the same.
func mixed(cases []faultCase) []faultCase {
	rand.New(rand.NewPCG(0, 0)).Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	return cases
}

// TestAllFaults runs all cases of TestFaults, TestDamagedState, TestStoppedStartLeavesTasks,
// TestStartWithoutDescriptorsLeavesTasks, TestHostileHooks and TestRestartLoopLeaksNoResources. Consecutive seeds are
// consecutive cases: a part whose seed follows the last seed of another part continues with its next case.
//
//	make test-faults
//	go test -run TestAllFaults ./cmd/nomad-lite/systemtest/faults -seed 42
func TestAllFaults(t *testing.T) { runAllFaults(t, allFaultCases()) }

// TestAllFaultsInCluster runs all cases of TestFaults with nodes whose allocations come from servers of a cluster. Its seeds
// are those of TestAllFaults.
//
//	make test-faults
//	go test -run TestAllFaultsInCluster ./cmd/nomad-lite/systemtest/faults -seed 42
func TestAllFaultsInCluster(t *testing.T) { runAllFaults(t, mixed(newMatrixCases(true))) }

func runAllFaults(t *testing.T, cases []faultCase) {
	t.Helper()
	if endurance.CurrentMode() == endurance.Sample {
		t.Skip("runs with make test-faults; the other tests run a sample of the faults")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	run := endurance.Start(t, endurance.Config{Unit: fmt.Sprintf("of %d faults", len(cases)), Load: "2 nodes per core"})
	run.EachParallel(func(seed uint64) error {
		c := cases[(seed-1)%uint64(len(cases))]
		if !t.Run(c.name, func(t *testing.T) { c.run(t, rand.New(rand.NewPCG(seed, 0))) }) {
			return errors.New(c.name)
		}
		run.Add(1)
		return nil
	})
}
