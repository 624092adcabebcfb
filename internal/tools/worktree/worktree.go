// Package worktree finds the work tree that a program of internal/tools reads.
package worktree

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Root returns the only argument of a command line, which is a directory, or without arguments the root of the git work tree that
// contains the working directory.
func Root(args []string) (string, error) {
	switch len(args) {
	case 0:
		out, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
		if err != nil {
			return "", fmt.Errorf("find the root of the work tree: %w", err)
		}
		return strings.TrimSpace(string(out)), nil
	case 1:
		return args[0], nil
	}
	return "", errors.New("only one directory can be read")
}
