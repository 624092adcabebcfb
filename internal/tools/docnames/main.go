package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

func main() {
	flag.Usage = func() { fmt.Fprintln(flag.CommandLine.Output(), "usage: docnames [directory]") }
	flag.Parse()
	if err := run(flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "docnames:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	var root string
	switch len(args) {
	case 0:
		out, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
		if err != nil {
			return fmt.Errorf("find the root of the work tree: %w", err)
		}
		root = strings.TrimSpace(string(out))
	case 1:
		root = args[0]
	default:
		return errors.New("only one directory can be checked")
	}
	ix, err := readTree(root)
	if err != nil {
		return err
	}
	findings := ix.check()
	for _, f := range findings {
		fmt.Fprintln(stdout, f)
	}
	if len(findings) > 0 {
		return fmt.Errorf("%d names in comments do not exist; correct the comment", len(findings))
	}
	return nil
}
