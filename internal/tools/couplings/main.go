package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/nomad-lite/nomad-lite/internal/tools/worktree"
)

func main() {
	list := flag.Bool("list", false, "print each counted field and variable")
	dir := flag.String("dir", "", "directory of the packages; by default the root of the current work tree")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: couplings [-list] [-dir directory] package...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*dir, *list, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "couplings:", err)
		os.Exit(1)
	}
}

func run(dir string, list bool, patterns []string, stdout io.Writer) error {
	if dir == "" {
		root, err := worktree.Root(nil)
		if err != nil {
			return err
		}
		dir = root
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	counts, err := countPackages(dir, patterns)
	if err != nil {
		return err
	}
	if list {
		for _, c := range counts {
			for _, f := range c.found {
				fmt.Fprintf(stdout, "%s:%d: %s: %s\n", f.position.Filename, f.position.Line, f.kind, f.name)
			}
		}
	}
	return printTable(stdout, counts)
}

func printTable(w io.Writer, counts []packageCount) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "structs\tmutexes\tfunction fields\treferences\tpackage\t")
	total := packageCount{path: "total"}
	for _, c := range counts {
		total.structs += c.structs
		total.found = append(total.found, c.found...)
	}
	for _, c := range append(counts, total) {
		fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%s\t\n", c.structs, c.number(mutex), c.number(functionField), c.number(reference), c.path)
	}
	return table.Flush()
}
