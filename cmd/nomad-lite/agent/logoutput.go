package agent

import (
	"io"
	"regexp"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
)

// newLogger returns the logger of the agent, which writes to standard error. A log in text has truncated ids, and
// colours on a terminal. A log in JSON has whole ids. Both have no secrets.
func newLogger(c *config.Config, secrets *redact.Values, s *cli.Streams) hclog.InterceptLogger {
	options := &hclog.LoggerOptions{
		Name: "nomad-lite", Level: hclog.LevelFromString(c.LogLevel), Output: terminal.EscapeJSONIfTerminal(s.Err), JSONFormat: c.LogJSON, IncludeLocation: c.LogSourceLocation,
	}
	if !c.LogJSON {
		options.Output = idTruncatingWriter{s.Err}
		if s.SupportsColours(s.Err) {
			options.Color, options.ColorHeaderAndFields = hclog.ForceColor, true
		}
	}
	options.Output = secrets.Writer(options.Output) // before ids are truncated, because a secret may look like one
	return hclog.NewInterceptLogger(options)
}

// idTruncatingWriter truncates the ids in log lines. It does not truncate an id that is part of a path, so that the
// path stays valid. Each call of Write must have whole lines.
type idTruncatingWriter struct{ out io.Writer }

var idPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`) })

// Write implements io.Writer.
func (s idTruncatingWriter) Write(p []byte) (int, error) {
	var short []byte
	written := 0 // number of bytes of p that are processed
	for _, at := range idPattern().FindAllIndex(p, -1) {
		begin, end := at[0], at[1]
		if begin > 0 && p[begin-1] == '/' {
			continue
		}
		short = append(short, p[written:begin]...)
		short = append(short, output.TruncateID(string(p[begin:end]))...)
		written = end
	}
	if _, err := s.out.Write(append(short, p[written:]...)); err != nil {
		return 0, err
	}
	return len(p), nil
}
