package vm

import (
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
)

// The test binary is the init process of the virtual machines.
func TestMain(m *testing.M) {
	if guest := os.Getenv(vmEnvVar); os.Getpid() == 1 && guest != "" {
		runVMInit(guest)
	}
	systemtest.RunTestsOrProgram(m, programs.MainByProgramName())
}
