package httpapi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"strconv"
)

// snapshotHandler serves snapshots of the state.
type snapshotHandler struct {
	write func(ctx context.Context, omitKeys bool) (*os.File, error) // nil if the state is not kept
}

// read writes a snapshot to the client, with its checksum in the header Digest, which Nomad's client verifies.
func (h *snapshotHandler) read(r *request) (any, error) {
	if h.write == nil {
		return nil, &statusError{http.StatusNotImplemented, "this agent does not keep its state"}
	}
	omitKeys, err := strconv.ParseBool(cmp.Or(r.query.Get("without_keys"), "false"))
	if err != nil {
		return nil, badRequestError("without_keys must be true or false")
	}
	f, err := h.write(r.Context(), omitKeys)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	header := r.w.Header()
	header.Set("Content-Type", "application/x-gzip")
	header.Set("Content-Length", strconv.FormatInt(size, 10))
	header.Set("Digest", "sha-256="+base64.StdEncoding.EncodeToString(sum.Sum(nil)))
	r.isReplyWritten = true
	r.setWriteDeadline()
	_, err = io.Copy(r.w, f)
	return nil, err
}
