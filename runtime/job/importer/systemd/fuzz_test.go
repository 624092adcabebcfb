package systemd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer/importertest"
)

// FuzzUnit converts a service, a timer and the environment file that the service can name. What is printed is a job.
func FuzzUnit(f *testing.F) {
	units, err := filepath.Glob("testdata/*/*.service")
	if err != nil || len(units) == 0 {
		f.Fatalf("%d units, error: %v", len(units), err)
	}
	for _, path := range units {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "[Timer]\nOnCalendar=Mon..Fri *-*-* 02:30:00 UTC\n", "A=b\n", true)
	}
	f.Add("[Service]\nExecStart=-|@:/bin/sh a \\x41 '${B}' $C\nEnvironmentFile=env\n", "[Timer]\nOnUnitActiveSec=1h\n", "C=\"a b\n", false)
	f.Fuzz(func(t *testing.T, service, timer, env string, isTimer bool) {
		dir := t.TempDir()
		// A unit may only name files of the test: others could be devices that block.
		service = strings.ReplaceAll(service, "EnvironmentFile=", "EnvironmentFile="+dir+"/")
		for name, text := range map[string]string{"a.service": service, "a.timer": timer, "env": env} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		unit := filepath.Join(dir, "a.service")
		if isTimer {
			unit = filepath.Join(dir, "a.timer")
		}
		result, err := Convert(Options{Units: []string{unit}, Dirs: []string{dir}})
		if err != nil {
			return
		}
		importertest.CheckParses(t, result.Job)
	})
}
