package statefile

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

const stateInspectHelp = `Print the contents of a state file that no agent uses.

  nomad-lite operator state inspect DATA-DIR                 what there is
  nomad-lite operator state inspect DATA-DIR allocations     the records of a table
  nomad-lite operator state inspect DATA-DIR jobs default/web
                                                             one record, as JSON

Instead of a data directory a state file can be named, also a damaged file that
was set aside. The file is only read. The values of variables and environments,
tokens, and the texts of jobs and templates are not shown; the field Sealed stands
for what is encrypted with a key of keyring.json. A KEY may be the begin of one.

Exit codes: 0, or 1 when the file cannot be opened or has no such record.`

const stateVerifyHelp = `Check a state file that no agent uses.

Each page and the checksum of each record is read. What an agent would put into
quarantine, or could not read at all, is listed, and so are the parts that only
another version knows, which an agent keeps. The file is only read.

Exit codes: 0 when nothing is damaged, 1 when something is damaged or the file
cannot be opened.`

// NewCommand returns the command "state" of the group "operator", with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("state", "Inspect and check a state file", newInspectCommand(s), newVerifyCommand(s))
}

func newInspectCommand(s *cli.Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect [flags] DATA-DIR|FILE [TABLE [KEY]]",
		Short: "Print the contents of a state file",
		Long:  stateInspectHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 3 {
				return cli.UsageError(cmd, fmt.Errorf("takes a data directory or state file, and perhaps a table and a key, and not %q", args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			contents, err := store.InspectFile(resolveStateFilePath(args[0]))
			if err != nil {
				return err
			}
			return printContents(s, contents, args[1:], asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printContents prints a summary of a state file, the records of a table, or the record of a table and a key.
func printContents(s *cli.Streams, contents *store.FileContents, tableAndKey []string, asJSON bool) error {
	switch len(tableAndKey) {
	case 0:
		return printStateSummary(s, contents, asJSON)
	case 1:
		return printRecordsOfTable(s, contents, tableAndKey[0], asJSON)
	default:
		return printRedactedRecord(s, contents, tableAndKey[0], tableAndKey[1])
	}
}

func newVerifyCommand(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "verify [flags] DATA-DIR|FILE",
		Short: "Check a state file",
		Long:  stateVerifyHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.UsageError(cmd, fmt.Errorf("takes one data directory or state file, and not %q", args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			path := resolveStateFilePath(args[0])
			contents, err := store.InspectFile(path)
			if err != nil {
				return err
			}
			for _, q := range contents.Quarantine {
				fmt.Fprintf(s.Out, "in quarantine since %s: %s %q: %s%s\n", q.Time.UTC().Format(time.RFC3339), q.Table, q.Key, q.Cause, readableByThisBuildHint(q))
			}
			for _, u := range contents.UnknownParts {
				fmt.Fprintf(s.Out, "unknown to this version, and kept: %s (%d records)\n", u.Name, u.RecordCount)
			}
			for _, d := range contents.Damage {
				fmt.Fprintln(s.Out, d.NameAndCause())
			}
			if n := len(contents.Damage); n > 0 {
				return &cli.ExitError{Code: 1, Err: fmt.Errorf(
					"%s is damaged: %d places, %d records can be read. An agent starts with those and keeps what it cannot read", path, n, len(contents.Records))}
			}
			summary := "all well"
			if n := len(contents.Quarantine); n > 0 {
				summary = fmt.Sprintf("%d in quarantine", n)
			}
			_, err = fmt.Fprintf(s.Out, "%s: %d records at index %d, %s\n", path, len(contents.Records), contents.Index, summary)
			return err
		},
	}
}

// readableByThisBuildHint returns the end of the line about a quarantined record: a hint if this version can read the record, else "".
func readableByThisBuildHint(q store.QuarantinedEntry) string {
	if q.ReadableByThisBuild {
		return "; this version can read it, and takes it back at the next start of an agent"
	}
	return ""
}

// resolveStateFilePath returns the path of the state file in a data directory, or dataDirOrFile itself if dataDirOrFile
// is not a directory.
func resolveStateFilePath(dataDirOrFile string) string {
	if info, err := os.Stat(dataDirOrFile); err == nil && info.IsDir() {
		return filepath.Join(dataDirOrFile, store.FileName)
	}
	return dataDirOrFile
}

// tableSummary is the number and the size of the records in one table of a state file.
type tableSummary struct {
	Table   store.Table
	Records int
	Bytes   int
}

func printStateSummary(s *cli.Streams, c *store.FileContents, asJSON bool) error {
	var tableSummaries []tableSummary
	for _, r := range c.Records {
		i := slices.IndexFunc(tableSummaries, func(row tableSummary) bool { return row.Table == r.Table })
		if i < 0 {
			i, tableSummaries = len(tableSummaries), append(tableSummaries, tableSummary{Table: r.Table})
		}
		tableSummaries[i].Records++
		tableSummaries[i].Bytes += r.SizeBytes
	}
	if asJSON {
		type quarantinedRecord struct {
			Table store.Table
			Key   string
			Cause string
			Time  time.Time
			Bytes int
		}
		out := struct {
			Size       int64
			Format     int
			Writer     string
			Index      uint64
			Tables     []tableSummary
			Quarantine []quarantinedRecord
			Unknown    []store.UnknownPart
			Damage     []string
		}{Size: c.SizeBytes, Format: c.Format, Writer: c.WriterVersion, Index: c.Index, Tables: tableSummaries, Unknown: c.UnknownParts}
		for _, q := range c.Quarantine {
			out.Quarantine = append(out.Quarantine, quarantinedRecord{q.Table, q.Key, q.Cause, q.Time, len(q.Value)})
		}
		for _, d := range c.Damage {
			out.Damage = append(out.Damage, d.NameAndCause())
		}
		return printStateJSON(s, out)
	}
	fmt.Fprintf(s.Out, "Size    %d\nFormat  %d, written by version %s\nIndex   %d\n\n", c.SizeBytes, c.Format, c.WriterVersion, c.Index)
	tab := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "Table\tRecords\tBytes")
	for _, row := range tableSummaries {
		fmt.Fprintf(tab, "%s\t%d\t%d\n", row.Table, row.Records, row.Bytes)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	if len(c.Quarantine) > 0 {
		fmt.Fprintln(s.Out, "\nQuarantine")
		for _, q := range c.Quarantine {
			fmt.Fprintf(s.Out, "%s %q: %s (%d bytes, %s)%s\n", q.Table, q.Key, q.Cause, len(q.Value), q.Time.UTC().Format(time.RFC3339), readableByThisBuildHint(q))
		}
	}
	if len(c.UnknownParts) > 0 {
		fmt.Fprintln(s.Out, "\nUnknown to this version, and kept")
		for _, u := range c.UnknownParts {
			fmt.Fprintf(s.Out, "%s (%d records)\n", u.Name, u.RecordCount)
		}
	}
	if len(c.Damage) > 0 {
		fmt.Fprintln(s.Out, "\nDamage")
		for _, d := range c.Damage {
			fmt.Fprintln(s.Out, d.NameAndCause())
		}
	}
	return nil
}

func printRecordsOfTable(s *cli.Streams, c *store.FileContents, table string, asJSON bool) error {
	records, err := recordsOfTable(c, table)
	if err != nil {
		return err
	}
	if asJSON {
		objects := make(map[string]any, len(records))
		for _, r := range records {
			if objects[r.Key], err = r.Redacted(); err != nil {
				return err
			}
		}
		return printStateJSON(s, objects)
	}
	tab := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "Key\tIndex\tBytes")
	for _, r := range records {
		fmt.Fprintf(tab, "%s\t%d\t%d\n", r.Key, r.Index, r.SizeBytes)
	}
	return tab.Flush()
}

func printRedactedRecord(s *cli.Streams, c *store.FileContents, table, keyOrPrefix string) error {
	records, err := recordsOfTable(c, table)
	if err != nil {
		return err
	}
	matches := slices.DeleteFunc(records, func(r *store.InspectedRecord) bool { return !strings.HasPrefix(r.Key, keyOrPrefix) })
	exact := slices.IndexFunc(matches, func(r *store.InspectedRecord) bool { return r.Key == keyOrPrefix })
	switch {
	case exact >= 0:
		matches = matches[exact:]
	case len(matches) == 0:
		return fmt.Errorf("table %s has no record %q; 'inspect' without it lists them", table, keyOrPrefix)
	case len(matches) > 1:
		return fmt.Errorf("table %s has %d records that begin with %q: %s, %s …", table, len(matches), keyOrPrefix, matches[0].Key, matches[1].Key)
	}
	object, err := matches[0].Redacted()
	if err != nil {
		return err
	}
	return printStateJSON(s, object)
}

func recordsOfTable(c *store.FileContents, table string) ([]*store.InspectedRecord, error) {
	var tableRecords []*store.InspectedRecord
	var tableNames []string
	for _, r := range c.Records {
		if r.Table == store.Table(table) {
			tableRecords = append(tableRecords, r)
		}
		tableNames = append(tableNames, string(r.Table))
	}
	if len(tableRecords) == 0 {
		tableNames = slices.Compact(tableNames)
		return nil, fmt.Errorf("there is nothing in a table %q; there is something in: %s", table, cmp.Or(strings.Join(tableNames, ", "), "none"))
	}
	return tableRecords, nil
}

func printStateJSON(s *cli.Streams, v any) error {
	encoder := json.NewEncoder(s.JSONOutput())
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}
