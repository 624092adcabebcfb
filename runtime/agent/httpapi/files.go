package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskfiles"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// fileHandler serves the files and the output of tasks.
type fileHandler struct {
	store        *store.Store
	files        AllocFiles
	logCollector *logs.CollectorClient
}

// openAllocDir opens the directory of the allocation in the path. The directory exists until it is
// removed, whether or not a task runs.
func (h *fileHandler) openAllocDir(r *request) (*taskfiles.AllocDir, error) {
	alloc, err := r.findAllocation(h.store)
	if err != nil {
		return nil, err
	}
	dir, err := h.files.OpenAllocFiles(r.pathID)
	if errors.Is(err, fs.ErrNotExist) {
		if hint := allocDirRemovalReason(alloc); hint != "" {
			return nil, notFoundError(fmt.Sprintf("allocation %q has no files: %s", r.pathID, hint))
		}
		return nil, notFoundError(fmt.Sprintf("allocation %q has no files: it has not begun, or was collected", r.pathID))
	}
	return dir, err
}

// allocDirRemovalReason returns why the directory of an allocation was removed, "" if the reason is
// unknown.
func allocDirRemovalReason(alloc *api.Allocation) string {
	for _, name := range slices.Sorted(maps.Keys(alloc.TaskStates)) {
		for _, e := range slices.Backward(alloc.TaskStates[name].Events) {
			if e.Type == model.TaskAllocDirRemoved {
				return e.Message
			}
		}
	}
	return ""
}

// fileErrorStatusCodes are the status codes for file errors.
type fileErrorStatusCodes struct{ notFound, escapesDir, protectedFile int }

// Nomad replies with 200 and the error text as content if a file cannot be read.
var (
	statErrorCodes   = fileErrorStatusCodes{http.StatusNotFound, http.StatusInternalServerError, 0} // stat and list of protected files are allowed
	readErrorCodes   = fileErrorStatusCodes{http.StatusNotFound, http.StatusBadRequest, http.StatusForbidden}
	streamErrorCodes = fileErrorStatusCodes{http.StatusBadRequest, http.StatusBadRequest, http.StatusInternalServerError}
)

func (c fileErrorStatusCodes) toStatusError(err error) error {
	var protectedErr *taskfiles.ProtectedFileError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &statusError{c.notFound, err.Error()}
	case errors.Is(err, taskfiles.ErrPathEscapes):
		return &statusError{c.escapesDir, err.Error()}
	case errors.As(err, &protectedErr):
		return &statusError{c.protectedFile, err.Error()}
	case errors.Is(err, taskfiles.ErrDirectory), errors.Is(err, taskfiles.ErrNotRegular):
		return badRequestError(err.Error())
	}
	return err
}

// newAllocFileInfo converts the metadata of a file to Nomad's format.
func newAllocFileInfo(i taskfiles.EntryInfo) api.AllocFileInfo {
	return api.AllocFileInfo{
		Name: i.Name(), IsDir: i.IsDir(), Size: i.Size(), FileMode: i.Mode().String(), ModTime: i.ModTime(), ContentType: i.ContentType,
	}
}

// replyFromAllocDir opens the directory of the allocation in the path and replies with the result of read for
// this directory.
func (h *fileHandler) replyFromAllocDir(r *request, read func(*taskfiles.AllocDir) (any, error)) (any, error) {
	dir, err := h.openAllocDir(r)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	value, err := read(dir)
	if err != nil {
		return nil, statErrorCodes.toStatusError(err)
	}
	return value, nil
}

func (h *fileHandler) list(r *request) (any, error) {
	return h.replyFromAllocDir(r, func(dir *taskfiles.AllocDir) (any, error) {
		infos, err := dir.List(cmp.Or(r.query.Get("path"), "/"))
		list := make([]api.AllocFileInfo, len(infos))
		for i, info := range infos {
			list[i] = newAllocFileInfo(info)
		}
		return list, err
	})
}

var errNoFile = badRequestError("must provide a file name")

func (h *fileHandler) stat(r *request) (any, error) {
	path := r.query.Get("path")
	if path == "" {
		return nil, errNoFile
	}
	return h.replyFromAllocDir(r, func(dir *taskfiles.AllocDir) (any, error) {
		info, err := dir.Stat(path)
		if err != nil {
			return nil, err
		}
		return newAllocFileInfo(info), nil
	})
}

// openRequestedFile opens the file of a request.
func (h *fileHandler) openRequestedFile(r *request, codes fileErrorStatusCodes) (*taskfiles.File, error) {
	path := r.query.Get("path")
	if path == "" {
		return nil, errNoFile
	}
	dir, err := h.openAllocDir(r)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := dir.OpenUnprotectedFile(path)
	if err != nil {
		return nil, codes.toStatusError(err)
	}
	return f, nil
}

// read replies with a file, or with the requested part.
func (h *fileHandler) read(r *request) (any, error) {
	offset, limit := int64(0), int64(0)
	if strings.HasPrefix(r.URL.Path, "/v1/client/fs/readat/") {
		var err error
		if offset, err = strconv.ParseInt(r.query.Get("offset"), 10, 64); err != nil {
			return nil, badRequestError("error parsing offset: " + err.Error())
		}
		if limit, err = r.parseLimitParam(); err != nil {
			return nil, err
		}
	}
	if offset < 0 {
		return nil, badRequestError("offset must not be negative")
	}
	f, err := h.openRequestedFile(r, readErrorCodes)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, badRequestError(err.Error())
	}
	content := io.Reader(f)
	if limit > 0 {
		content = io.LimitReader(f, limit)
	}
	// A browser must not run the scripts of the content: a task may have written an HTML page.
	header := r.w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	header.Set("X-Xss-Protection", "1; mode=block")
	_, _ = io.Copy(r.startStream("text/plain; charset=utf-8"), content) // the client may have disconnected
	return nil, nil
}

// parseLimitParam reads the maximum number of bytes of the reply; 0 means no limit.
func (r *request) parseLimitParam() (limit int64, err error) {
	if text := r.query.Get("limit"); text != "" {
		if limit, err = strconv.ParseInt(text, 10, 64); err != nil {
			return 0, badRequestError("error parsing limit: " + err.Error())
		}
	}
	return limit, nil
}

// errLimitReached ends a stream whose limit was reached.
var errLimitReached = errors.New("the limit of the stream was reached")

// limitChunks returns an emit function for taskfiles.File.Follow that calls emit for the first limit bytes, and then returns
// errLimitReached. It returns emit if limit is not positive.
func limitChunks(limit int64, emit func(taskfiles.FollowChunk) error) func(taskfiles.FollowChunk) error {
	if limit <= 0 {
		return emit
	}
	return func(c taskfiles.FollowChunk) error {
		if excess := int64(len(c.Data)) - limit; excess > 0 {
			c.Data, c.EndOffset = c.Data[:limit], c.EndOffset-excess
		}
		limit -= int64(len(c.Data))
		if err := emit(c); err != nil || limit > 0 {
			return err
		}
		return errLimitReached
	}
}

// stream replies with the content of a file, and with what is appended to the file later, as frames or as plain text.
func (h *fileHandler) stream(r *request) (any, error) {
	end, offset, err := r.parseStreamPositionParams()
	if err != nil {
		return nil, err
	}
	follow, err := r.readFollowParam(true)
	if err != nil {
		return nil, err
	}
	limit, err := r.parseLimitParam()
	if err != nil {
		return nil, err
	}
	plain, err := r.boolParam("plain")
	if err != nil {
		return nil, badRequestError(err.Error())
	}
	f, err := h.openRequestedFile(r, streamErrorCodes)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ask := taskfiles.FollowRequest{OffsetFromOrigin: offset, StopAtEnd: !follow}
	if end {
		ask.Origin = taskfiles.FromEnd
	}
	if plain {
		s := r.startStream("text/plain; charset=utf-8")
		_ = f.Follow(r.Context(), ask, limitChunks(limit, func(c taskfiles.FollowChunk) error { // the response has started, so the error cannot be sent
			_, err := s.Write(c.Data)
			return err
		}))
		return nil, nil
	}
	r.streamFrames(func(ctx context.Context, emit func(api.StreamFrame) error) error {
		return f.Follow(ctx, ask, limitChunks(limit, func(c taskfiles.FollowChunk) error {
			return emit(api.StreamFrame{File: f.Path(), Offset: c.EndOffset, Data: c.Data, FileEvent: c.Event})
		}))
	})
	return nil, nil
}

// rejectUnknownOperation replies with an error to a path below /v1/client/fs/ that has no other route.
func (h *fileHandler) rejectUnknownOperation(r *request) (any, error) {
	if verb, id, _ := strings.Cut(r.pathID, "/"); id == "" {
		for _, known := range []string{"ls", "stat", "readat", "cat", "stream", "logs"} {
			if verb == known {
				return nil, badRequestError("must provide a valid alloc id")
			}
		}
	}
	return nil, notFoundError("Invalid method")
}
