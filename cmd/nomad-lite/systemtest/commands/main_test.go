package commands

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
)

func TestMain(m *testing.M) { systemtest.RunTestsOrProgram(m, programs.MainByProgramName()) }
