package thirdparty

import (
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/version"
)

func TestMain(m *testing.M) {
	mains := programs.MainByProgramName()
	development := mains["nomad-lite"]
	mains["nomad-lite"] = func() {
		version.Release = strings.TrimPrefix(systemtest.PublishedVersion, "v") // as the linker sets it in a release
		development()
	}
	systemtest.RunTestsOrProgram(m, mains)
}
