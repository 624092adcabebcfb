package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// taskConfig is the config block of a task.
type taskConfig struct {
	Every    map[string]everyBlock `codec:"every"`
	At       []atBlock             `codec:"at"`
	Output   outputBlock           `codec:"output"`
	Lines    int                   `codec:"lines"`
	ExitCode int                   `codec:"exit_code"`
	Stubborn bool                  `codec:"stubborn"`
}

type everyBlock struct {
	Seconds int    `codec:"seconds"`
	Jitter  string `codec:"jitter"`
}

type atBlock struct {
	Hour   int    `codec:"hour"`
	Minute int    `codec:"minute"`
	Text   string `codec:"text"`
}

type outputBlock struct {
	Format string `codec:"format"`
	To     string `codec:"to"`
}

var taskSchema = hclspec.Object(map[string]*hclspec.Spec{
	"every": hclspec.BlockMap("every", []string{"name"}, hclspec.Object(map[string]*hclspec.Spec{
		"seconds": hclspec.Attr("seconds", "number", true),
		"jitter":  hclspec.Default(hclspec.Attr("jitter", "string", false), hclspec.Literal(`"0s"`)),
	})),
	"at": hclspec.BlockList("at", hclspec.Object(map[string]*hclspec.Spec{
		"hour":   hclspec.Attr("hour", "number", true),
		"minute": hclspec.Default(hclspec.Attr("minute", "number", false), hclspec.Literal("0")),
		"text":   hclspec.Default(hclspec.Attr("text", "string", false), hclspec.Literal(`"at"`)),
	}), 0, 0),
	"output": hclspec.Default(
		hclspec.Block("output", hclspec.Object(map[string]*hclspec.Spec{
			"format": hclspec.Default(hclspec.Attr("format", "string", false), hclspec.Literal(`"rfc3339"`)),
			"to":     hclspec.Default(hclspec.Attr("to", "string", false), hclspec.Literal(`"stdout"`)),
		}), false),
		hclspec.Literal(`{ format = "rfc3339", to = "stdout" }`),
	),
	"lines":     hclspec.Attr("lines", "number", false), // the clock ends after so many lines
	"exit_code": hclspec.Attr("exit_code", "number", false),
	"stubborn":  hclspec.Attr("stubborn", "bool", false), // ignores the signals of a stop
})

// plan returns what the process of the task does, or an error that names each wrong
// argument by its place in the config block.
func (t *taskConfig) plan() (plan, error) {
	p := plan{Format: t.Output.Format, To: t.Output.To, Lines: t.Lines, ExitCode: t.ExitCode, Stubborn: t.Stubborn}
	var errs []error
	wrong := func(place, format string, args ...any) {
		errs = append(errs, fmt.Errorf("config: "+place+format, args...))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Every)) {
		e, place := t.Every[name], fmt.Sprintf("every %q: ", name)
		if e.Seconds < 1 {
			wrong(place, "seconds is %d, and must be 1 or more", e.Seconds)
		}
		jitter, err := time.ParseDuration(e.Jitter)
		switch {
		case err != nil:
			wrong(place, `jitter is %q, and must be a duration such as "500ms"`, e.Jitter)
		case jitter < 0 || e.Seconds > 0 && jitter >= time.Duration(e.Seconds)*time.Second:
			wrong(place, "jitter is %s, and must be from 0s to less than the %d seconds", jitter, e.Seconds)
		}
		p.Every = append(p.Every, tick{Name: name, Period: time.Duration(e.Seconds) * time.Second, Jitter: jitter})
	}
	for i, a := range t.At {
		place := fmt.Sprintf("at (block %d): ", i+1)
		if a.Hour < 0 || a.Hour > 23 {
			wrong(place, "hour is %d, and must be from 0 to 23", a.Hour)
		}
		if a.Minute < 0 || a.Minute > 59 {
			wrong(place, "minute is %d, and must be from 0 to 59", a.Minute)
		}
		p.At = append(p.At, daily(a))
	}
	if !slices.Contains([]string{"rfc3339", "unix"}, p.Format) {
		wrong("output: ", `format is %q, and must be "rfc3339" or "unix"`, p.Format)
	}
	if !slices.Contains([]string{"stdout", "stderr"}, p.To) {
		wrong("output: ", `to is %q, and must be "stdout" or "stderr"`, p.To)
	}
	if t.Lines < 0 {
		wrong("lines ", "is %d, and must not be negative", t.Lines)
	}
	if t.ExitCode < 0 || t.ExitCode > 255 {
		wrong("exit_code ", "is %d, and must be from 0 to 255", t.ExitCode)
	}
	if len(t.Every) == 0 && len(t.At) == 0 {
		wrong("", `needs a block every "NAME" or at`)
	}
	return p, errors.Join(errs...)
}

// summary is the plan for users.
func (p *plan) summary() string {
	var parts []string
	for _, e := range p.Every {
		parts = append(parts, fmt.Sprintf("%s every %s", e.Name, e.Period))
	}
	for _, a := range p.At {
		parts = append(parts, fmt.Sprintf("%s at %02d:%02d", a.Text, a.Hour, a.Minute))
	}
	return strings.Join(parts, ", ")
}
