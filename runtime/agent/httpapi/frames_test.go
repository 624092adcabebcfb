package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
)

// Nomad's client can decode the frames of a stream, which are written without any bytes between them.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("text\n"), "alloc/logs/t.stdout.0", "", int64(5))
	f.Add([]byte{}, "", "", int64(0))
	f.Add([]byte{0, 255, '"'}, "a\"\\\n<&\u2028\xff", "file truncated", int64(-1))
	f.Fuzz(func(t *testing.T, data []byte, file, event string, offset int64) {
		frame := api.StreamFrame{Data: data, File: file, FileEvent: event, Offset: offset}
		text := appendFrame(appendFrame(nil, frame), api.StreamFrame{})
		if !bytes.HasSuffix(text, []byte("}{}")) {
			t.Fatalf("two frames are %s", text)
		}
		stream := json.NewDecoder(bytes.NewReader(text))
		var got, heartbeatFrame api.StreamFrame
		if err := stream.Decode(&got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if err := stream.Decode(&heartbeatFrame); err != nil || !heartbeatFrame.IsHeartbeat() {
			t.Fatalf("%s: heartbeat %+v, %v", text, heartbeatFrame, err)
		}
		if !bytes.Equal(got.Data, data) || got.Offset != offset {
			t.Errorf("%s is %+v", text, got)
		}
		if utf8.ValidString(file) && got.File != file || utf8.ValidString(event) && got.FileEvent != event {
			t.Errorf("%q %q, want %q %q", got.File, got.FileEvent, file, event)
		}
	})
}

// A stream sends a heartbeat each second, and ends with its client.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, hangUp := context.WithCancel(t.Context())
		w := httptest.NewRecorder()
		r := &request{Request: httptest.NewRequest("GET", "/", nil).WithContext(ctx), w: w, responseController: http.NewResponseController(w)}
		time.AfterFunc(3500*time.Millisecond, hangUp)
		r.streamFrames(func(ctx context.Context, emit func(api.StreamFrame) error) error {
			if err := emit(api.StreamFrame{File: "f", Data: []byte("x"), Offset: 1}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		body, _ := io.ReadAll(w.Result().Body)
		if want := `{"Data":"eA==","File":"f","Offset":1}{}{}{}`; string(body) != want {
			t.Errorf("%s, want %s", body, want)
		}
		if kind := w.Result().Header.Get("Content-Type"); kind != "application/json" {
			t.Errorf("content type %q", kind)
		}
	})
}
