package agent

import (
	"io"
	"regexp"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
)

// newLogger returns the logger of the agent, which writes to standard error. Text has short ids, and
// colours on a terminal. JSON has whole ids.
func newLogger(c *config.Config, s *cli.Streams) hclog.InterceptLogger {
	options := &hclog.LoggerOptions{
		Name: "nomad-lite", Level: hclog.LevelFromString(c.LogLevel), Output: terminal.JSONWriter(s.Err), JSONFormat: c.LogJSON, IncludeLocation: c.LogLocation,
	}
	if !c.LogJSON {
		options.Output = shortIDWriter{s.Err}
		if s.SupportsColours(s.Err) {
			options.Color, options.ColorHeaderAndFields = hclog.ForceColor, true
		}
	}
	return hclog.NewInterceptLogger(options)
}

// shortIDWriter writes lines of a log with short ids. It leaves ids whole that are parts of paths, so that
// the paths stay valid. Each call must have whole lines.
type shortIDWriter struct{ w io.Writer }

var idPattern = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// Write implements io.Writer.
func (s shortIDWriter) Write(p []byte) (int, error) {
	var short []byte
	written := 0 // bytes of p that short contains, or leaves out
	for _, at := range idPattern.FindAllIndex(p, -1) {
		begin, end := at[0], at[1]
		if begin > 0 && p[begin-1] == '/' {
			continue
		}
		short = append(short, p[written:begin]...)
		short = append(short, output.TruncateID(string(p[begin:end]))...)
		written = end
	}
	if _, err := s.w.Write(append(short, p[written:]...)); err != nil {
		return 0, err
	}
	return len(p), nil
}
