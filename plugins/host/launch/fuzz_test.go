package launch

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
)

func FuzzHandshake(f *testing.F) {
	for _, s := range []string{
		"1|2|unix|/tmp/plugin1|grpc|", "1|2|tcp|127.0.0.1:10000|grpc|", "1|2|unix|/x", "1|2|unix|/x|grpc||true",
		"1|2|unix|/x|grpc|" + strings.Repeat("A", 60), "||||", "1|99999999999999999999|unix|/x|grpc|", "hello", "1|2|tcp|[::1]:1|grpc|", "1|2|tcp|\x1b|grpc",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		h, err := parseHandshake(line)
		if err != nil {
			if len(err.Error()) > 2000 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
			if strings.ContainsAny(err.Error(), "\n\x1b\x07") {
				t.Errorf("error %q carries control characters", err)
			}
			return
		}
		// The line for go-plugin must be a single line, and parse to the same handshake.
		if strings.Count(h.formatLine(), "\n") != 1 {
			t.Errorf("%q has several lines", h.formatLine())
		}
		again, err := parseHandshake(h.formatLine())
		if err != nil || again != h {
			t.Errorf("%+v read again is %+v, %v", h, again, err)
		}
		if handshakeNetAddr(h) == nil {
			t.Errorf("%+v has no address", h)
		}
	})
}

func FuzzLogLine(f *testing.F) {
	for _, s := range []string{
		`{"@level":"warn","@message":"disk","@timestamp":"2026-01-02T03:04:05.000000Z","n":1}`,
		`{"@level":1,"@message":2,"@timestamp":3}`, `{"@level":"info","@message":null,"":{}}`, `{`, `{}`, `{"@level":"info"}{}`,
		"[WARN] x", "panic: x", "\x00\xff\x1b[2J", strings.Repeat("x", maxNonJSONLineSize+1), strings.Repeat(`{"a":`, 500),
	} {
		f.Add(s)
	}
	out := &logBuffer{}
	logger := hclog.New(&hclog.LoggerOptions{Output: out, Level: hclog.Trace})
	f.Fuzz(func(t *testing.T, line string) {
		out.buf.Reset()
		tail := &stderrTail{}
		logStderrLine(line, 0, false, logger, tail, &panicLogger{logger: logger})
		got := out.String()
		if len(got) > 10*len(line)+10*maxNonJSONLineSize {
			t.Errorf("%d bytes make %d in the log", len(line), len(got))
		}
		if strings.ContainsAny(got, "\x1b\x00\x07") || !utf8.ValidString(got) {
			t.Errorf("the log gets %q", got)
		}
		last, _ := tail.panicOrLastLines(time.Time{})
		for _, l := range last {
			if strings.ContainsAny(l, "\n\x1b") || len(l) > 20*maxTailLineSize {
				t.Errorf("last words %q", l)
			}
		}
	})
}
