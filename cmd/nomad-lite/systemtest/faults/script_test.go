package faults

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

func TestScripts(t *testing.T) { testscript.Run(t, systemtest.NewScriptParams("testdata/script")) }
