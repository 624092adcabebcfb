package config

import "github.com/nomad-lite/nomad-lite/runtime/otlp"

// otlpSettings are the settings of the block otlp in telemetry, an extension of Nomad's configuration.
var otlpSettings = map[string]setting{
	"endpoint": checkedTextSetting(otlp.CheckEndpoint, func(c *Config) *string { return &c.OTLP.Endpoint }),
	"protocol": checkedTextSetting(otlp.CheckProtocol, func(c *Config) *string { return &c.OTLP.Protocol }),
	"headers": {set: func(c *Config, i configItem) error {
		headers, err := i.parseStringMap()
		if err == nil {
			err = otlp.CheckHeaders(headers)
		}
		if err == nil {
			c.OTLP.Headers = headers
		}
		return err
	}},
	"metrics":          booleanSetting(func(c *Config) *bool { return &c.OTLP.Metrics }),
	"task_traceparent": booleanSetting(func(c *Config) *bool { return &c.OTLP.TaskTraceparent }),
}

// checkedTextSetting returns a setting for a text that the function check accepts.
//
//go:noinline
func checkedTextSetting(check func(string) error, field func(*Config) *string) setting {
	return setting{set: func(c *Config, i configItem) error {
		text, err := i.parseString()
		if err == nil {
			err = check(text)
		}
		if err == nil {
			*field(c) = text
		}
		return err
	}}
}
