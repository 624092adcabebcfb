package compose

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer/importertest"
)

// FuzzProject converts a compose file with an environment file. What is printed is a job.
func FuzzProject(f *testing.F) {
	files, err := filepath.Glob("testdata/*/compose.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("%d files, error: %v", len(files), err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "A=b\nTAG=\"1\"\n", "")
	}
	f.Add("services: {a: &a {image: x, env_file: .env, <<: *a}}", "A='${B:-c}'", "net")
	f.Fuzz(func(t *testing.T, text, env, network string) {
		dir := t.TempDir()
		if strings.Contains(text, "/dev") || strings.Contains(text, "/proc") {
			t.Skip("a file could block, or be that of another process")
		}
		for name, content := range map[string]string{"compose.yaml": text, ".env": env} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		result, err := Convert(Options{Files: []string{filepath.Join(dir, "compose.yaml")}, Profiles: []string{"*"}, DockerNetwork: network})
		if err != nil {
			return
		}
		importertest.CheckParses(t, result.Job)
	})
}
