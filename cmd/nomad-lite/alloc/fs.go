package alloc

import (
	"context"
	"fmt"
	"io"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
)

const fsHelp = `List a directory of an allocation, or print a file in it.

PATH is relative to the directory of the allocation: alloc/ is shared by its
tasks, and each task has a directory of its own. What tasks are given in secrets/
can be listed and not read.

Ctrl-C ends -f. Exit codes: 0, or 1 when there is no such file.`

const fsExamples = `  nomad-lite alloc fs 8ba85cef                  its directory
  nomad-lite alloc fs 8ba85cef server/local     the directory of a task
  nomad-lite alloc fs 8ba85cef server/local/app.conf
  nomad-lite alloc fs -f -n 5 8ba85cef alloc/data/events.log
  nomad-lite alloc fs -stat 8ba85cef alloc/data/events.log`

type fsOptions struct {
	clientFlags  apiclient.Flags
	allocFlags   apiclient.AllocFlags
	formatFlags  output.FormatFlags
	showStat     bool
	follow       bool
	tailFlags    tailFlags
	sizesInBytes bool
}

// NewFSCommand returns the command "alloc fs", which is also "fs".
func NewFSCommand(s *cli.Streams) *cobra.Command {
	var o fsOptions
	cmd := &cobra.Command{
		Use:     "fs [flags] ALLOC [PATH]",
		Short:   "List directories and print files of an allocation",
		Long:    fsHelp,
		Example: fsExamples,
		Args:    cli.RequireArgCount(1, 2, "an allocation, and perhaps a path in it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.tailFlags.validateAndSetDefaultLineCount(cmd, o.follow); err != nil {
				return err
			}
			ctx, stop := cli.ContextUntilInterrupted(cmd.Context())
			defer stop()
			path := "/"
			if len(args) == 2 {
				path = args[1]
			}
			return showAllocFiles(ctx, o, args[0], path, s)
		},
		ValidArgsFunction: apiclient.CompleteAllocAndPath(&o.clientFlags),
	}
	o.clientFlags.Register(cmd)
	o.allocFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.showStat, "stat", false, "show what kind of file it is instead")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written to the file from now on")
	cmd.Flags().BoolVarP(&o.sizesInBytes, "bytes", "H", false, "show sizes in bytes")
	o.tailFlags.register(cmd)
	return cmd
}

func showAllocFiles(ctx context.Context, o fsOptions, allocOrJobID, path string, s *cli.Streams) error {
	c, alloc, err := o.allocFlags.FindAlloc(ctx, &o.clientFlags, allocOrJobID)
	if err != nil {
		return err
	}
	where := fmt.Sprintf("%q of allocation %q", path, output.TruncateID(alloc.ID))
	file, _, err := c.AllocFS().Stat(alloc, path, apiclient.QueryOptions(ctx, alloc.Namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("look at "+where, err)
	}
	switch {
	case o.showStat:
		if o.formatFlags.IsSet() {
			return o.formatFlags.Print(s, file)
		}
		return output.PrintPage(s, o.newFilesPage(s, []*api.AllocFileInfo{file}, true))
	case file.IsDir && (o.follow || o.tailFlags.onlyTail):
		return fmt.Errorf("%s is a directory; leave out -f and -tail to list it", where)
	case file.IsDir:
		files, _, err := c.AllocFS().List(alloc, path, apiclient.QueryOptions(ctx, alloc.Namespace))
		if err != nil {
			return apiclient.WrapErrorWithAdvice("list "+where, err)
		}
		if o.formatFlags.IsSet() {
			return o.formatFlags.Print(s, files)
		}
		return output.PrintPage(s, o.newFilesPage(s, files, false))
	}
	if err := o.printOrFollowFile(ctx, c, alloc, path, file.Size, s.Out); err != nil {
		return apiclient.WrapErrorWithAdvice("read "+where, err)
	}
	return nil
}

// newFilesPage returns a page with a table of files.
func (o fsOptions) newFilesPage(s *cli.Streams, files []*api.AllocFileInfo, withContentType bool) *output.Page {
	head := []string{"Mode", "Size", "Modified Time"}
	if withContentType {
		head = append(head, "Content Type")
	}
	t := output.NewTable(append(head, "Name")...)
	for _, f := range files {
		size := output.FormatBytes(uint64(max(f.Size, 0)))
		if o.sizesInBytes {
			size = fmt.Sprint(f.Size)
		}
		name := f.Name
		if f.IsDir {
			name += "/"
		}
		row := []any{f.FileMode, size, output.FormatTimestamp(f.ModTime)}
		if withContentType {
			row = append(row, f.ContentType)
		}
		t.AddRow(append(row, name)...)
	}
	p := output.NewPage(s)
	p.AddTable(t)
	return p
}

// printOrFollowFile prints a file, or its end if the flags select that. With -f it also prints what is appended later.
func (o fsOptions) printOrFollowFile(ctx context.Context, c *api.Client, alloc *api.Allocation, path string, fileSizeBytes int64, out io.Writer) error {
	print := func(data []byte) error {
		_, err := out.Write(data)
		return err
	}
	from := int64(-1)
	switch {
	case o.tailFlags.byteCount >= 0:
		from = max(fileSizeBytes-o.tailFlags.byteCount, 0)
	case o.tailFlags.lineCount >= 0:
		var err error
		if from, err = o.lastLinesOffset(ctx, c, alloc, path, fileSizeBytes); err != nil {
			return err
		}
	}
	if o.follow {
		ctx, cancel := context.WithCancel(ctx) // the client's goroutine runs until ctx ends
		defer cancel()
		frames, errs := c.AllocFS().Stream(alloc, path, api.OriginStart, max(from, 0), ctx.Done(), apiclient.QueryOptions(ctx, alloc.Namespace))
		return streaming.FrameReader{OnData: print}.ReadFrames(ctx, frames, errs)
	}
	var file io.ReadCloser
	var err error
	if from >= 0 {
		file, err = c.AllocFS().ReadAt(alloc, path, from, -1, apiclient.QueryOptions(ctx, alloc.Namespace))
	} else {
		file, err = c.AllocFS().Cat(alloc, path, apiclient.QueryOptions(ctx, alloc.Namespace))
	}
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(out, file)
	return streaming.IgnoreStreamEnd(ctx, err)
}

// lastLinesOffset returns the offset at which the last tailFlags.lineCount lines of a file start.
func (o fsOptions) lastLinesOffset(ctx context.Context, c *api.Client, alloc *api.Allocation, path string, fileSizeBytes int64) (int64, error) {
	if o.tailFlags.lineCount == 0 {
		return fileSizeBytes, nil
	}
	for back := int64(o.tailFlags.lineCount) * streaming.AssumedLineLength; ; back *= 8 {
		from := max(fileSizeBytes-back, 0)
		if from == fileSizeBytes {
			return fileSizeBytes, nil
		}
		file, err := c.AllocFS().ReadAt(alloc, path, from, fileSizeBytes-from, apiclient.QueryOptions(ctx, alloc.Namespace))
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(file)
		file.Close()
		if err != nil {
			return 0, err
		}
		if end := streaming.LastLines(text, o.tailFlags.lineCount); len(end) < len(text) || from == 0 {
			return from + int64(len(text)-len(end)), nil
		}
	}
}
