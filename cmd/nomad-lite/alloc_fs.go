package main

import (
	"context"
	"fmt"
	"io"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const allocFSHelp = `List a directory of an allocation, or print a file in it.

PATH is relative to the directory of the allocation: alloc/ is shared by its
tasks, and each task has a directory of its own. What tasks are given in secrets/
can be listed and not read.

Ctrl-C ends -f. Exit codes: 0, or 1 when there is no such file.`

const allocFSExamples = `  nomad-lite alloc fs 8ba85cef                  its directory
  nomad-lite alloc fs 8ba85cef server/local     the directory of a task
  nomad-lite alloc fs 8ba85cef server/local/app.conf
  nomad-lite alloc fs -f -n 5 8ba85cef alloc/data/events.log
  nomad-lite alloc fs -stat 8ba85cef alloc/data/events.log`

type allocFSOptions struct {
	client  clientFlags
	alloc   allocFlags
	format  formatFlags
	stat    bool
	follow  bool
	tail    tailFlags
	machine bool
}

func newAllocFSCommand(s *streams) *cobra.Command {
	var o allocFSOptions
	cmd := &cobra.Command{
		Use:     "fs [flags] ALLOC [PATH]",
		Short:   "List directories and print files of an allocation",
		Long:    allocFSHelp,
		Example: allocFSExamples,
		Args:    argCount(1, 2, "an allocation, and perhaps a path in it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.tail.check(cmd, o.follow); err != nil {
				return err
			}
			ctx, stop := untilInterrupted(cmd.Context())
			defer stop()
			path := "/"
			if len(args) == 2 {
				path = args[1]
			}
			return allocFS(ctx, o, args[0], path, s)
		},
		ValidArgsFunction: firstArg(allocKind.complete(&o.client)),
	}
	o.client.register(cmd)
	o.alloc.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.stat, "stat", false, "show what kind of file it is instead")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written to the file from now on")
	cmd.Flags().BoolVarP(&o.machine, "bytes", "H", false, "show sizes in bytes")
	o.tail.register(cmd)
	return cmd
}

func allocFS(ctx context.Context, o allocFSOptions, name, path string, s *streams) error {
	c, alloc, err := o.alloc.find(ctx, &o.client, name)
	if err != nil {
		return err
	}
	where := fmt.Sprintf("%q of allocation %q", path, short(alloc.ID))
	file, _, err := c.AllocFS().Stat(alloc, path, query(ctx, alloc.Namespace))
	if err != nil {
		return failed("look at "+where, err)
	}
	switch {
	case o.stat:
		if o.format.wanted() {
			return o.format.print(s, file)
		}
		return s.show(o.files(s, []*api.AllocFileInfo{file}, true))
	case file.IsDir && (o.follow || o.tail.tail):
		return fmt.Errorf("%s is a directory; leave out -f and -tail to list it", where)
	case file.IsDir:
		files, _, err := c.AllocFS().List(alloc, path, query(ctx, alloc.Namespace))
		if err != nil {
			return failed("list "+where, err)
		}
		if o.format.wanted() {
			return o.format.print(s, files)
		}
		return s.show(o.files(s, files, false))
	}
	if err := o.read(ctx, c, alloc, path, file.Size, s.out); err != nil {
		return failed("read "+where, err)
	}
	return nil
}

// files returns a table of files.
func (o allocFSOptions) files(s *streams, files []*api.AllocFileInfo, contentType bool) *page {
	head := []string{"Mode", "Size", "Modified Time"}
	if contentType {
		head = append(head, "Content Type")
	}
	t := newTable(append(head, "Name")...)
	for _, f := range files {
		size := byteSize(uint64(max(f.Size, 0)))
		if o.machine {
			size = fmt.Sprint(f.Size)
		}
		name := f.Name
		if f.IsDir {
			name += "/"
		}
		row := []any{f.FileMode, size, pointInTime(f.ModTime)}
		if contentType {
			row = append(row, f.ContentType)
		}
		t.row(append(row, name)...)
	}
	p := s.page()
	p.table(t)
	return p
}

// read prints a file or its end, and what is appended later if the user follows the file.
func (o allocFSOptions) read(ctx context.Context, c *api.Client, alloc *api.Allocation, path string, size int64, out io.Writer) error {
	print := func(data []byte) error {
		_, err := out.Write(data)
		return err
	}
	from := int64(-1)
	switch {
	case o.tail.bytes >= 0:
		from = max(size-o.tail.bytes, 0)
	case o.tail.lines >= 0:
		var err error
		if from, err = o.lastLines(ctx, c, alloc, path, size); err != nil {
			return err
		}
	}
	if o.follow {
		ctx, cancel := context.WithCancel(ctx) // the client's goroutine runs until ctx ends
		defer cancel()
		frames, errs := c.AllocFS().Stream(alloc, path, api.OriginStart, max(from, 0), ctx.Done(), query(ctx, alloc.Namespace))
		return frameReader{each: print}.read(ctx, frames, errs)
	}
	var file io.ReadCloser
	var err error
	if from >= 0 {
		file, err = c.AllocFS().ReadAt(alloc, path, from, -1, query(ctx, alloc.Namespace))
	} else {
		file, err = c.AllocFS().Cat(alloc, path, query(ctx, alloc.Namespace))
	}
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(out, file)
	return streamError(ctx, err)
}

// lastLines returns the offset of the last lines of a file of size bytes.
func (o allocFSOptions) lastLines(ctx context.Context, c *api.Client, alloc *api.Allocation, path string, size int64) (int64, error) {
	if o.tail.lines == 0 {
		return size, nil
	}
	for back := int64(o.tail.lines) * longLine; ; back *= 8 {
		from := max(size-back, 0)
		if from == size {
			return size, nil
		}
		file, err := c.AllocFS().ReadAt(alloc, path, from, size-from, query(ctx, alloc.Namespace))
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(file)
		file.Close()
		if err != nil {
			return 0, err
		}
		if end := lastLines(text, o.tail.lines); len(end) < len(text) || from == 0 {
			return from + int64(len(text)-len(end)), nil
		}
	}
}
