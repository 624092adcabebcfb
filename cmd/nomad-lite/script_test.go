package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"nomad-lite": main})
}

func TestScripts(t *testing.T) {
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"await": await},
		Setup: func(env *testscript.Env) error {
			// What a script builds with Go comes from this checkout and the caches of the machine.
			for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOFLAGS", "GOPROXY", "GONOSUMDB", "GOTOOLCHAIN"} {
				env.Setenv(name, goEnv(name))
			}
			env.Setenv("REPOSITORY", repository)
			return nil
		},
	})
}

// await waits until each of the files exists: a script that signals a process
// in the background waits for a file that the process writes when it is ready.
func await(ts *testscript.TestScript, neg bool, files []string) {
	if neg || len(files) == 0 {
		ts.Fatalf("usage: await file...")
	}
	for _, file := range files {
		deadline := time.Now().Add(30 * time.Second)
		for {
			if _, err := os.Stat(ts.MkAbs(file)); err == nil {
				break
			}
			if time.Now().After(deadline) {
				ts.Fatalf("await: %s did not appear within 30 s", file)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
