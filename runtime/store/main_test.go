package store

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

// Environment variables for a test to start its own binary again: with a role and a state file's path.
const (
	testRoleEnvVar = "NOMAD_LITE_STORE_TEST"
	testPathEnvVar = "NOMAD_LITE_STORE_PATH"
)

func TestMain(m *testing.M) {
	switch os.Getenv(testRoleEnvVar) {
	case "":
		os.Exit(m.Run())
	case "write":
		writeUntilKilled(os.Getenv(testPathEnvVar))
	case "hold":
		holdStoreOpen(os.Getenv(testPathEnvVar))
	case "hostile file":
		inspectOrRestore(os.Getenv(testPathEnvVar))
	case "rotate":
		rotateKeysUntilKilled(os.Getenv(testPathEnvVar))
	}
}

// holdStoreOpen opens the state file, prints a line and blocks until the test closes stdin.
func holdStoreOpen(path string) {
	if _, err := Open(context.Background(), Config{StateFilePath: path, Logger: hclog.NewNullLogger()}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("open")
	os.Stdin.Read(make([]byte, 1)) // blocks until the test ends
}

// writerCount is how many goroutines in the killed process write concurrently.
const writerCount = 8

// writeUntilKilled changes the state as fast as it can, and prints each complete change. Change n by writer w sets the
// variables w/a and w/b to n. It also adds an allocation, or removes change n-1's allocation.
func writeUntilKilled(path string) {
	s, err := Open(context.Background(), Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if d := s.Damage(); len(d) > 0 {
		fmt.Fprintln(os.Stderr, d)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	for w := range writerCount {
		wg.Go(func() {
			name := strconv.Itoa(w)
			n := 1
			if v := s.Snapshot().Variable(nil, "default", name+"/a"); v != nil {
				n, _ = strconv.Atoi(v.Items["n"])
				n++
			}
			for ; ; n++ {
				index, err := s.Update(testContext, func(tx *Txn) error {
					value := strconv.Itoa(n)
					tx.PutVariable(&api.Variable{Namespace: "default", Path: name + "/a", Items: api.VariableItems{"n": value}})
					if n%2 == 1 {
						tx.PutScheduledAllocation(&api.Allocation{ID: "alloc-" + name, Namespace: "default", JobID: "job" + value, Job: testJob("job"+value, uint64(n))})
					} else {
						tx.DeleteAllocationAndQueueRemoval("alloc-" + name)
					}
					tx.PutVariable(&api.Variable{Namespace: "default", Path: name + "/b", Items: api.VariableItems{"n": value, "pad": strings.Repeat("x", n*97%5000)}})
					return nil
				})
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				fmt.Printf("%d %d %d\n", w, n, index)
			}
		})
	}
	wg.Wait()
}
