package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/nomad-lite/nomad-lite/internal/tools/worktree"
)

func main() {
	flag.Usage = func() { fmt.Fprintln(flag.CommandLine.Output(), "usage: lines [directory]") }
	flag.Parse()
	if err := run(flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lines:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	root, err := worktree.Root(args)
	if err != nil {
		return err
	}
	rows, err := countTree(root)
	if err != nil {
		return err
	}
	return printTable(stdout, rows)
}

func printTable(w io.Writer, rows []row) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "product\tgenerated\ttest\tfolder\t")
	var total count
	for _, r := range rows {
		fmt.Fprintf(table, "%d\t%d\t%d\t%s\t\n", r.product, r.generated, r.test, r.folder)
		total.product += r.product
		total.generated += r.generated
		total.test += r.test
	}
	fmt.Fprintf(table, "%d\t%d\t%d\ttotal\t\n", total.product, total.generated, total.test)
	return table.Flush()
}
