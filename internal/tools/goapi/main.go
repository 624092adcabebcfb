// Command goapi prints the exported declarations of Go packages of the work tree, a line for each.
//
// A line has a name and, after ": ", its type or value. The name of an interface has the names of all its methods as the value,
// because a new method breaks the types of other modules that implement the interface. Names of parameters are omitted.
//
// A declaration, field or method whose doc comment has the sentence "For hosts only." is omitted, with the fields and methods of a
// type. An interface whose doc comment has the sentence "Later versions can add methods." has a line without the names of its
// methods.
//
// golang.org/x/exp/apidiff is no alternative: it compares with export data of an earlier version, which a clone without tags lacks, and
// whose stored form could not be read and reviewed as docs/promises/go-api.txt is.
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
