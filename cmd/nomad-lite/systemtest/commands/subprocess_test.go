package commands

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agent"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec/confined"
)

// The hidden command agent.JobParserCommand must start the job parser.
func TestJobParser(t *testing.T) {
	job, err := confined.NewChildProcessParser("nomad-lite", agent.JobParserCommand).Parse(t.Context(), `job "web" {}`, "")
	if err != nil || *job.ID != "web" {
		t.Error(job, err)
	}
}
