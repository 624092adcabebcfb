package compose

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer/importertest"
)

// optionsByName are options that single projects of testdata need.
var optionsByName = map[string]Options{
	"profiles":       {Profiles: []string{"debug", "seed"}},
	"docker-network": {DockerNetwork: "shop"},
	"override":       {Files: []string{"compose.yaml", "compose.override.yaml"}},
	"django":         {Environ: []string{"TAG=2.0", "HOME=/root"}},
	"monitoring":     {Environ: []string{"GF_SECURITY_ADMIN_PASSWORD=admin"}},
	"swarm":          {Environ: []string{"HOME=/root"}},
}

func optionsOf(name string) Options {
	o := optionsByName[name]
	if o.Files == nil {
		o.Files = []string{"compose.yaml"}
	}
	files := o.Files
	o.Files = nil
	for _, file := range files {
		o.Files = append(o.Files, filepath.Join("testdata", name, file))
	}
	return o
}

// TestProjects converts each project in testdata, and compares job and warnings with its golden files.
func TestMemoryThatTheMachineDoesNotHave(t *testing.T) {
	o := optionsOf("monitoring")
	for memoryMB, want := range map[int]bool{0: false, 100: true, 1 << 20: false} {
		o.MachineMemoryMB = memoryMB
		result, err := Convert(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(fmt.Sprint(result.Warnings), "MB of memory, and this machine has 100: lower memory of the tasks"); got != want {
			t.Errorf("a machine with %d MB: warned %v, want %v: %v", memoryMB, got, want, result.Warnings)
		}
	}
}

func TestProjects(t *testing.T) {
	projects, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, project := range projects {
		if project.Name() == "fuzz" {
			continue
		}
		count++
		t.Run(project.Name(), func(t *testing.T) {
			result, err := Convert(optionsOf(project.Name()))
			if err != nil {
				t.Fatal(err)
			}
			importertest.CheckJob(t, result.Job)
			importertest.CompareGolden(t, filepath.Join("testdata", project.Name()), result)
		})
	}
	if count < 20 {
		t.Errorf("%d projects, want at least 20", count)
	}
}
