package httpapi

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store/accesscontrol"
)

// replyMeta has the metadata fields at the end of many replies.
type replyMeta struct {
	Index       uint64
	LastContact int64
	KnownLeader bool
	NextToken   string
}

// replyMetaOfWrite returns the metadata of the reply to a write. index is the index of the write.
func (r *request) replyMetaOfWrite(index uint64) replyMeta {
	r.replyIndex = index
	return replyMeta{Index: index}
}

// emptyIfNil returns an empty slice instead of nil.
func emptyIfNil[T any](found []T) []T {
	if found == nil {
		return []T{}
	}
	return found
}

// noContent is a reply without a body.
type noContent struct{}

// minCompressSize is the size in bytes from which a reply is compressed.
const minCompressSize = 1 << 10

// Compressors are pooled because each uses a megabyte, and buffers because the JSON of a long list has
// several megabytes.
var (
	gzipPool = sync.Pool{New: func() any {
		z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
		if err != nil {
			panic(err) // cannot happen, because gzip.BestSpeed is a valid level
		}
		return z
	}}
	bufferPool = sync.Pool{New: func() any { return new([]byte) }}
)

// maxPooledBuffer is the size of the largest buffer that is pooled.
const maxPooledBuffer = 4 << 20

// writeReply writes the reply of a successful request: the value as JSON, compressed if the client accepts that. It adds
// the reply of a list to the cache.
func (a *API) writeReply(r *request, value any) {
	if cached, ok := value.(*cachedList); ok {
		r.setReplyMetaHeaders()
		a.writeJSON(r, cached.body, cached.gzip)
		return
	}
	list, isList := value.(uncachedList)
	if isList {
		value = list.value
	}
	r.setReplyMetaHeaders()
	if _, empty := value.(noContent); empty {
		if r.statusCode != http.StatusNoContent {
			r.w.Header().Set("Content-Length", "0")
		}
		r.w.WriteHeader(cmp.Or(r.statusCode, http.StatusOK))
		return
	}
	buffer := bufferPool.Get().(*[]byte)
	text, err := appendNomadJSON((*buffer)[:0], reflect.ValueOf(value), r.rights.isReadOnly)
	defer func() {
		if *buffer = text; cap(text) <= maxPooledBuffer {
			bufferPool.Put(buffer)
		}
	}()
	if err != nil {
		a.logger.Error("answer cannot be encoded", "path", r.URL.Path, "error", err)
		a.writeError(r, err)
		return
	}
	if pretty, ok := r.query["pretty"]; ok && pretty[0] != "0" {
		var b bytes.Buffer
		if json.Indent(&b, text, "", "    ") == nil {
			text = append(append(text[:0], b.Bytes()...), '\n')
		}
	}
	body, compressed := text, false
	if len(text) >= minCompressSize && acceptsGzip(r.Request) {
		body, compressed = compress(text), true
	}
	if isList && len(text) >= minCompressSize {
		cached := &cachedList{body: bytes.Clone(body), gzip: compressed, index: r.replyIndex, nextToken: r.nextToken, inputs: list.inputs}
		r.listCache.put(list.key, cached)
	}
	a.writeJSON(r, body, compressed)
}

// compress returns the gzip form of a text.
func compress(text []byte) []byte {
	var b bytes.Buffer
	z := gzipPool.Get().(*gzip.Writer)
	defer gzipPool.Put(z)
	z.Reset(&b)
	_, _ = z.Write(text) // writes to a bytes.Buffer do not fail
	_ = z.Close()
	return b.Bytes()
}

// writeJSON writes the body of a reply.
func (a *API) writeJSON(r *request, body []byte, compressed bool) {
	h := r.w.Header()
	h.Set("Content-Type", "application/json")
	if compressed {
		h.Set("Content-Encoding", "gzip")
	} else {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	r.w.WriteHeader(cmp.Or(r.statusCode, http.StatusOK))
	if _, err := r.w.Write(body); err != nil {
		a.logger.Debug("answer not written", "path", r.URL.Path, "error", err)
	}
}

func acceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(coding), ";")
		if strings.TrimSpace(name) == "gzip" {
			return strings.ReplaceAll(quality, " ", "") != "q=0"
		}
	}
	return false
}

// writeError writes the reply of a failed request: the text of the error, with a status code that depends on the error's
// type.
func (a *API) writeError(r *request, err error) {
	r.setReplyMetaHeaders()
	var permissionErr *permissionError
	if errors.As(err, &permissionErr) {
		r.w.Header().Set(missingRightHeader, keepPrintableASCII(permissionErr.missingRight))
	}
	code := r.statusOfError(err)
	if code == http.StatusInternalServerError && len(model.LeafFaults(err)) == 0 {
		a.logger.Debug("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	r.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	r.w.WriteHeader(code)
	_, _ = io.WriteString(r.w, err.Error()) // the client may have disconnected
}

// statusOfError returns the status code of the reply to a failed request.
func (r *request) statusOfError(err error) int {
	var statusErr *statusError
	var requestErr *scheduler.RequestError
	var aclErr *accesscontrol.RequestError
	switch {
	case errors.As(err, &aclErr):
		return aclErr.Status
	case errors.As(err, &statusErr):
		return statusErr.statusCode
	case errors.As(err, &requestErr) && requestErr.Kind == scheduler.RequestInvalid:
		return http.StatusBadRequest
	case errors.As(err, &requestErr) && requestErr.Kind == scheduler.RequestNotFound && r.repliesNotFoundWith404():
		return http.StatusNotFound
	}
	return http.StatusInternalServerError
}

// repliesNotFoundWith404 returns false for paths for which Nomad reports a missing object with status 500.
func (r *request) repliesNotFoundWith404() bool {
	return strings.HasPrefix(r.URL.Path, "/v1/allocation/")
}

// setReplyMetaHeaders sets the headers of a reply that clients use for blocking queries and for the next page.
func (r *request) setReplyMetaHeaders() {
	h := r.w.Header()
	if r.replyIndex > 0 {
		h.Set("X-Nomad-Index", strconv.FormatUint(r.replyIndex, 10))
	}
	if r.isReplyReadFromState {
		h.Set("X-Nomad-Lastcontact", "0")
		h.Set("X-Nomad-Knownleader", "true")
	}
	if r.nextToken != "" {
		h.Set("X-Nomad-Nexttoken", r.nextToken)
	}
}
