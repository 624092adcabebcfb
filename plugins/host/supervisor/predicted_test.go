package supervisor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// A node is ready with predicted fingerprints, while the processes start.
func TestNodeIsReadyWithPredictedFingerprint(t *testing.T) {
	const launchDuration = 100 * time.Millisecond
	healthy := driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "predicted", Attributes: map[string]driver.Attribute{"driver.a": {Value: true}}}
	for what, c := range map[string]struct {
		unknown   bool // the builtin predicts nothing
		others    []catalog.Entry
		launchErr error
		readyIn   time.Duration
		later     string // description of the driver's health after the launch
	}{
		"predicted":                      {later: "reported"},
		"not predicted":                  {unknown: true, readyIn: launchDuration, later: "reported"},
		"beside a plugin that may be it": {others: []catalog.Entry{externalEntryWithoutBlock("x")}, readyIn: launchDuration, later: "reported"},
		"launch fails":                   {launchErr: errors.New("no"), later: "failed to fingerprint driver"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				entry := builtinEntry("a")
				entry.PredictFingerprint = func() (driver.Fingerprint, bool) { return healthy, !c.unknown }
				s := startSupervisor(t, Config{}, append(c.others, entry), func(_ context.Context, name string, _ int) (*fakePlugin, error) {
					time.Sleep(launchDuration)
					if name != "builtin a" {
						return newFakePlugin(name, "0.1.0"), nil
					}
					if c.launchErr != nil {
						return nil, c.launchErr
					}
					p := newFakePlugin("a", "0.1.0")
					p.drv.omitsFirstFingerprint = true
					go func() { p.drv.fingerprints <- driver.Fingerprint{HealthDescription: "reported"} }()
					return p, nil
				})
				began := time.Now()
				if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil {
					t.Fatal(err)
				}
				if d := time.Since(began); d != c.readyIn {
					t.Errorf("ready after %v, want %v", d, c.readyIn)
				}
				if p := s.Plugins(); c.readyIn == 0 && p[len(p)-1].HasReportedOrFailed {
					t.Errorf("before the launch: %+v", p[len(p)-1])
				}
				if info := s.DriverInfoByName()["a"]; c.readyIn == 0 && (!info.Healthy || info.Description != "predicted" || info.Attributes["driver.a"].Value != true) {
					t.Errorf("before the launch: %+v", info)
				}
				if _, err := s.Driver(t.Context(), "a"); (err != nil) != (c.launchErr != nil) {
					t.Errorf("Driver: %v", err)
				}
				if d := time.Since(began); d != launchDuration {
					t.Errorf("Driver has returned after %v, want %v", d, launchDuration)
				}
				if err := s.WaitAllReportedOrFailed(t.Context()); err != nil {
					t.Fatal(err)
				}
				if d := time.Since(began); d != launchDuration {
					t.Errorf("all processes have reported after %v, want %v", d, launchDuration)
				}
				synctest.Wait()
				if info := s.DriverInfoByName()["a"]; info.Healthy || info.Description != c.later {
					t.Errorf("after the launch: %+v, want %q", info, c.later)
				}
			})
		})
	}
}
