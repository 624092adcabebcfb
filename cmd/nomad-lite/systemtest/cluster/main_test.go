package cluster

import (
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

func TestMain(m *testing.M) {
	systemtest.RunTestsOrProgram(testsWithStockProgram{m}, programs.MainByProgramName())
}

// testsWithStockProgram runs tests, and then removes the stock program that they have unpacked.
type testsWithStockProgram struct{ tests testscript.TestingM }

func (s testsWithStockProgram) Run() int {
	code := s.tests.Run()
	if err := peers.RemovePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}
