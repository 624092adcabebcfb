package peertest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/root"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/racereport"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// The test binary is also the nomad-lite of the tests, and the plugins that run under both agents.
func TestMain(m *testing.M) {
	programs := map[string]func(){"nomad-lite": runNomadLite, "probe-device": serveProbeDevice, "probe_wire": serveWireProbe}
	for name := range probeVariants {
		programs[name] = serveProbe
	}
	testscript.Main(sharedHostTests{m}, programs)
}

func runNomadLite() {
	os.Exit(root.Execute(os.Args[1:], &cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// sharedHostTests runs the tests of the package, and then stops the agents that they share.
type sharedHostTests struct{ tests testscript.TestingM }

func (s sharedHostTests) Run() int {
	reports := racereport.CollectInNewDir()
	code := s.tests.Run()
	if err := errors.Join(sharedNomad.stop(), sharedLite.stop(), removePeers()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code == 0 && sharedLite.host != nil && slowtest.Enabled() && flag.Lookup("test.run").Value.String()+flag.Lookup("test.skip").Value.String() == "" {
		if err := checkFieldTable(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return max(code, reports.PrintAndRemove(os.Stderr))
}
