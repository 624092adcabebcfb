package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// pluginConfig is the body of the plugin block of the agent.
type pluginConfig struct {
	DefaultTimeout string `codec:"default_timeout"`
}

var configSchema = hclspec.Object(map[string]*hclspec.Spec{
	"default_timeout": hclspec.Default(hclspec.Attr("default_timeout", "string", false), hclspec.Literal(`"1m"`)),
})

// attachment is what a job says when it attaches the hook.
type attachment struct {
	HTTP      *httpConfig `codec:"http"`
	Exec      *execConfig `codec:"exec"`
	Successes int         `codec:"successes"`
	Interval  string      `codec:"interval"`
	Timeout   string      `codec:"timeout"`
}

type httpConfig struct {
	Path   string        `codec:"path"`
	Port   string        `codec:"port"`
	Header *headerConfig `codec:"header"`
}

// headerConfig is a header of the request, whose value is an item of a variable.
type headerConfig struct {
	Name     string `codec:"name"`
	Variable string `codec:"variable"`
	Item     string `codec:"item"`
}

type execConfig struct {
	Command []string `codec:"command"`
}

var attachmentSchema = hclspec.Object(map[string]*hclspec.Spec{
	"http": hclspec.Block("http", hclspec.Object(map[string]*hclspec.Spec{
		"path": hclspec.Default(hclspec.Attr("path", "string", false), hclspec.Literal(`"/"`)),
		"port": hclspec.Attr("port", "string", true),
		"header": hclspec.Block("header", hclspec.Object(map[string]*hclspec.Spec{
			"name":     hclspec.Attr("name", "string", true),
			"variable": hclspec.Attr("variable", "string", true),
			"item":     hclspec.Attr("item", "string", true),
		}), false),
	}), false),
	"exec": hclspec.Block("exec", hclspec.Object(map[string]*hclspec.Spec{
		"command": hclspec.Attr("command", "list(string)", true),
	}), false),
	"successes": hclspec.Default(hclspec.Attr("successes", "number", false), hclspec.Literal("1")),
	"interval":  hclspec.Default(hclspec.Attr("interval", "string", false), hclspec.Literal(`"1s"`)),
	"timeout":   hclspec.Attr("timeout", "string", false), // else default_timeout of the agent
})

// plan is an attachment that was checked.
type plan struct {
	http              *httpConfig
	command           []string
	successes         int
	interval, timeout time.Duration
}

func (a attachment) plan(defaultTimeout time.Duration) (*plan, error) {
	p := &plan{http: a.HTTP, successes: a.Successes, timeout: defaultTimeout}
	if (a.HTTP == nil) == (a.Exec == nil) {
		return nil, errors.New("warmup: the attachment needs either http or exec")
	}
	if a.HTTP != nil && !strings.HasPrefix(a.HTTP.Path, "/") {
		return nil, fmt.Errorf("warmup: the path %q does not begin with /", a.HTTP.Path)
	}
	if a.Exec != nil {
		if len(a.Exec.Command) == 0 {
			return nil, errors.New("warmup: the command is empty")
		}
		p.command = a.Exec.Command
	}
	if p.successes < 1 {
		return nil, fmt.Errorf("warmup: successes is %d, and must be at least 1", p.successes)
	}
	var err error
	if p.interval, err = positive("interval", a.Interval); err != nil {
		return nil, err
	}
	if a.Timeout != "" {
		if p.timeout, err = positive("timeout", a.Timeout); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// positive parses a duration that must be greater than 0.
func positive(name, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("warmup: %s: %w", name, err)
	}
	if d <= 0 {
		return 0, fmt.Errorf("warmup: %s is %s, and must be more than 0", name, text)
	}
	return d, nil
}
