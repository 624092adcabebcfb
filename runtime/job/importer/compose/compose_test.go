package compose

import (
	"os"
	"path/filepath"
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
