package config

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/agent/audit"
)

// Audit are the settings of the audit log.
type Audit struct {
	Enabled bool
	// Sinks are the files; without one, there is one in the data directory.
	Sinks   []audit.Sink
	Filters []audit.Filter
}

// addAuditSinks reads the sink blocks.
func addAuditSinks(c *Config, i configItem) error {
	return i.readNamedBlocks(`sink "file" { path = "/var/log/nomad-lite/audit.log" }`, func(block *configItem) error {
		s, err := parseAuditSink(block)
		c.Audit.Sinks = append(c.Audit.Sinks, s)
		return err
	})
}

// addAuditFilters reads the filter blocks.
func addAuditFilters(c *Config, i configItem) error {
	return i.readNamedBlocks(`filter "metrics" { endpoints = ["/v1/metrics"] }`, func(block *configItem) error {
		f, err := parseAuditFilter(block)
		c.Audit.Filters = append(c.Audit.Filters, f)
		return err
	})
}

func parseAuditSink(block *configItem) (s audit.Sink, err error) {
	err = block.readSettings("sink", auditSinkSettingNames, func(setting *configItem) (err error) {
		switch setting.name {
		// Path of the file. [type: string; default: audit/audit.log in the data directory]
		case "path":
			s.Path, err = setting.parseScalarAsString()
		// Mode of the file, in octal digits. [type: string; default: "0600"]
		case "mode":
			s.Mode, err = setting.parseFileMode()
		// enforced refuses a request whose record cannot be written, best-effort serves it. [type: string; default: enforced]
		case "delivery_guarantee":
			var guarantee string
			guarantee, err = setting.parseOneOf("best-effort", "enforced")
			s.BestEffort = guarantee == "best-effort"
		// Size in bytes from which the file is rotated; 0 means no limit. [type: whole number; default: 0]
		case "rotate_bytes":
			s.RotateBytes, err = setting.parseWholeNumber()
		// Age from which the file is rotated. [type: duration; default: 24h]
		case "rotate_duration":
			s.RotateDuration, err = setting.parseDuration()
		// Number of rotated files that are kept; 0 means all. [type: whole number; default: 0]
		case "rotate_max_files":
			s.RotateMaxFiles, err = setting.parseWholeNumber()
		// Kind of the sink: only file. [type: string; default: file]
		case "type":
			_, err = setting.parseOneOf("file")
		// Form of the records: only json. [type: string; default: json]
		case "format":
			_, err = setting.parseOneOf("json")
		}
		return err
	})
	return s, err
}

func parseAuditFilter(block *configItem) (f audit.Filter, err error) {
	err = block.readSettings("filter", auditFilterSettingNames, func(setting *configItem) (err error) {
		switch setting.name {
		// Paths whose requests are not recorded; * matches any text. [type: list of strings; default: all]
		case "endpoints":
			f.Endpoints, err = setting.parseStringList()
		// Stages that are not recorded: `OperationReceived`, `OperationComplete` or *. [type: list of strings; default: all]
		case "stages":
			f.Stages, err = setting.parseAuditStages()
		// HTTP methods whose requests are not recorded, or *. [type: list of strings; default: all]
		case "operations":
			f.Operations, err = setting.parseStringList()
		// Kind of the filter: only HTTPEvent. [type: string; default: HTTPEvent]
		case "type":
			_, err = setting.parseOneOf("HTTPEvent")
		}
		return err
	})
	return f, err
}

// readNamedBlocks calls read for each block with a name.
func (i configItem) readNamedBlocks(example string, read func(*configItem) error) error {
	noBlock := errors.New("must be a block with a name: " + example)
	if !i.isBlock() {
		return noBlock
	}
	for _, block := range i.children {
		if !block.isBlock() {
			return noBlock
		}
		if err := read(block); err != nil {
			return err
		}
	}
	return nil
}

// readSettings calls read for each setting of a block with a name.
func (block *configItem) readSettings(kind string, names []string, read func(*configItem) error) error {
	for _, s := range block.children {
		err := read(s)
		if !slices.Contains(names, s.name) {
			err = fmt.Errorf("is not a setting of a %s block: it has %s%s", kind, joinNames(names), didYouMean(s.name, slices.Values(names)))
		}
		if err != nil {
			return &errorWithRange{s.sourceRange, fmt.Errorf("%s %q: %s %w", kind, block.name, s.name, err)}
		}
	}
	return nil
}

// parseOneOf reads a text that must be one of the values.
func (i configItem) parseOneOf(values ...string) (string, error) {
	text, err := i.parseScalarAsString()
	if err == nil && !slices.Contains(values, text) {
		err = fmt.Errorf("must be %s", strings.Join(values, " or "))
	}
	return text, err
}

func (i configItem) parseFileMode() (fs.FileMode, error) {
	text, err := i.parseScalarAsString()
	if err != nil {
		return 0, err
	}
	mode, err := strconv.ParseUint(text, 8, 32)
	if err != nil || mode == 0 || mode > 0o777 {
		return 0, errors.New(`must be a mode in octal digits, such as "0600"`)
	}
	return fs.FileMode(mode), nil
}

func (i configItem) parseAuditStages() (stages []audit.Stage, err error) {
	names, err := i.parseStringList()
	for _, name := range names {
		stage := audit.Stage(name)
		if stage != audit.OperationReceived && stage != audit.OperationComplete && name != "*" {
			return nil, fmt.Errorf("must be a list of %s, %s or *", audit.OperationReceived, audit.OperationComplete)
		}
		stages = append(stages, stage)
	}
	return stages, err
}
