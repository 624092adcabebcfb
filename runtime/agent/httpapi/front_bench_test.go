package httpapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// BenchmarkHTTPRequests sends requests over the loopback interface and discards the replies. Its baseline is a
// plain net/http handler that returns the same bytes.
func BenchmarkHTTPRequests(b *testing.B) {
	f := newClientFixture(b, nil)
	f.registerAndWait(b, newJob("web", "batch", "app"))
	var lastEvalID string
	for range 1000 {
		lastEvalID = f.putAlloc(b, "web")
	}
	server := httptest.NewServer(f)
	defer server.Close()
	ask := func(b *testing.B, url string) []byte {
		hr, err := http.NewRequestWithContext(b.Context(), "GET", url, nil)
		if err != nil {
			b.Fatal(err)
		}
		hr.Header.Set("Accept-Encoding", "gzip")
		answer, err := http.DefaultClient.Do(hr)
		if err != nil {
			b.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != 200 {
			b.Fatal(answer.Status, err)
		}
		return body
	}
	for _, c := range []struct{ name, path string }{
		{"health", "/v1/agent/health"},
		{"info of an allocation", "/v1/allocation/" + lastEvalID},
		{"list of 1000 allocations", "/v1/allocations"},
		{"list of 1000 allocations by filter", `/v1/allocations?filter=ClientStatus+==+%22running%22`},
		{"page of 20 allocations", "/v1/allocations?per_page=20&reverse=true"},
	} {
		same := ask(b, server.URL+c.path)
		floor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(same) }))
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			reportLatency(b, func(int) error { ask(b, server.URL+c.path); return nil })
		})
		b.Run(c.name+", floor", func(b *testing.B) {
			reportLatency(b, func(int) error { ask(b, floor.URL); return nil })
		})
		floor.Close()
	}
}
