// Command probe runs the attacks of package attack in a task.
//
// It is a separate program, because it also runs in images without a C library, and because the test binary would need
// a second to initialize in each task.
package main

import (
	"fmt"
	"os"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/hostile/attack"
)

func main() {
	if err := attack.RunProbeMode(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
