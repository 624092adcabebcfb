package model

import (
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestCheckFailureText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		statusCode   int
		output, want string
	}{
		"no server":                 {0, "nomad: connection refused", "nomad: connection refused"},
		"empty body":                {503, "", "HTTP status 503 Service Unavailable"},
		"text":                      {500, "\nno database\nat line 7\n", "HTTP status 500 Internal Server Error: no database"},
		"JSON":                      {500, `{"error":"no database"}`, `HTTP status 500 Internal Server Error: {"error":"no database"}`},
		"unknown status":            {599, "away", "HTTP status 599: away"},
		"HTML that repeats it":      {502, "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n", "HTTP status 502 Bad Gateway"},
		"HTML with a title":         {500, "<!DOCTYPE html>\n<html><!-- a\nb --><head><style>p { color: red }\n</style><title>OperationalError at /&amp;</title><body>x", "HTTP status 500 Internal Server Error: OperationalError at /&"},
		"HTML that is cut off":      {500, "<html><script>let a = 1\nlet b", "HTTP status 500 Internal Server Error"},
		"HTML that ends with a tag": {500, "<p>no database</p\nclass", "HTTP status 500 Internal Server Error: no database"},
	} {
		if got := CheckFailureText(&api.AllocCheckStatus{StatusCode: c.statusCode, Output: c.output}); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
