// Command goapi prints the exported declarations of Go packages of the work tree, a line for each.
//
// A line has a name and, after ": ", its type or value. The name of an interface has the names of all its methods as the value,
// because a new method breaks the types of other modules that implement the interface. Names of parameters are omitted.
package main

import (
	"fmt"
	"os"

	"github.com/nomad-lite/nomad-lite/internal/tools/worktree"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "goapi:", err)
		os.Exit(1)
	}
}

func run(packages []string) error {
	root, err := worktree.Root(nil)
	if err != nil {
		return err
	}
	lines, err := list(root, packages)
	if err != nil {
		return err
	}
	for _, line := range lines {
		if _, err := fmt.Println(line); err != nil {
			return err
		}
	}
	return nil
}
