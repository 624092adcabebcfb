package bench

import (
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
)

func TestMain(m *testing.M) {
	systemtest.RunTestsOrProgram(reportedBenchmarks{m}, programs.MainByProgramName())
}

// reportedBenchmarks runs the benchmarks of the package, and prints their report.
type reportedBenchmarks struct{ *testing.M }

func (r reportedBenchmarks) Run() int {
	code := r.M.Run()
	printBenchResults(os.Stdout)
	printMachinePrices(os.Stdout)
	_ = os.RemoveAll(benchBinaryDir)
	return code
}
