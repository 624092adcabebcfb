package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/nomad-lite/nomad-lite/internal/tools/worktree"
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
	root, err := worktree.Root(args)
	if err != nil {
		return err
	}
	ix, err := readTree(root)
	if err != nil {
		return err
	}
	inTables, err := ix.checkTables()
	if err != nil {
		return err
	}
	findings := append(ix.check(), inTables...)
	for _, f := range findings {
		fmt.Fprintln(stdout, f)
	}
	if len(findings) > 0 {
		return fmt.Errorf("%d names do not exist; correct the comment or the document", len(findings))
	}
	return nil
}
