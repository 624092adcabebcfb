package httpapi

import (
	"context"
	"encoding/base64"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// emptyFrame is sent as a heartbeat. Clients ignore it.
var emptyFrame = []byte("{}")

// streamFrames replies with a sequence of JSON objects without separators, until follow returns. If the
// client disconnects, the context of follow ends at the next heartbeat at the latest.
func (r *request) streamFrames(follow func(ctx context.Context, emit func(api.StreamFrame) error) error) {
	s := r.startStream("application/json")
	ctx, cancel := context.WithCancel(r.Context())
	var heartbeatWG sync.WaitGroup
	defer heartbeatWG.Wait()
	defer cancel()

	var mu sync.Mutex // held while a frame is written
	var buf []byte
	heartbeatWG.Go(func() {
		ticker := time.NewTicker(heartbeatInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			mu.Lock()
			_, err := s.Write(emptyFrame)
			mu.Unlock()
			if err != nil {
				cancel()
				return
			}
		}
	})
	emit := func(f api.StreamFrame) error {
		mu.Lock()
		defer mu.Unlock()
		buf = appendFrame(buf[:0], f)
		_, err := s.Write(buf)
		return err
	}
	// An error cannot be reported after this point: a text in the stream would break the client's
	// decoder.
	_ = follow(ctx, emit)
	if reason := r.endOfRights(); reason != "" {
		_ = emit(api.StreamFrame{FileEvent: reason})
	}
}

// appendFrame encodes a frame as [encodeNomadJSON] does, without empty fields.
func appendFrame(b []byte, f api.StreamFrame) []byte {
	b = append(b, '{')
	field := func(name string) {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), '"', ':')
	}
	if len(f.Data) > 0 {
		field("Data")
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, f.Data)
		b = append(b, '"')
	}
	if f.File != "" {
		field("File")
		b = appendJSONString(b, f.File)
	}
	if f.FileEvent != "" {
		field("FileEvent")
		b = appendJSONString(b, f.FileEvent)
	}
	if f.Offset != 0 {
		field("Offset")
		b = strconv.AppendInt(b, f.Offset, 10)
	}
	return append(b, '}')
}
