package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHandlerWithAllRightsNeedsNoToken(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.OperatorToken = "secret" })
	for name, test := range map[string]struct {
		handler http.Handler
		want    int
	}{"listener": {f, 403}, "handler": {f.HandlerWithAllRights(), 200}} {
		w := httptest.NewRecorder()
		test.handler.ServeHTTP(w, httptest.NewRequest("GET", "/v1/client/metadata", nil))
		if w.Code != test.want {
			t.Errorf("%s: got %d, want %d", name, w.Code, test.want)
		}
	}
}
