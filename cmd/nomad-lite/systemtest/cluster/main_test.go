package cluster

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
)

func TestMain(m *testing.M) {
	systemtest.RunTestsOrProgram(testsWithStockProgram{m}, programs.MainByProgramName())
}

// testsWithStockProgram runs tests, and then removes the stock program.
type testsWithStockProgram struct{ tests testscript.TestingM }

func (s testsWithStockProgram) Run() int {
	code := s.tests.Run()
	if stockProgramDir != "" {
		os.RemoveAll(stockProgramDir)
	}
	return code
}
