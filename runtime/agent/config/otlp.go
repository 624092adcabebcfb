package config

import "github.com/nomad-lite/nomad-lite/runtime/agent/otlp"

// otlpSettings are the settings of the block otlp in telemetry, an extension of Nomad's configuration.
var otlpSettings = map[string]setting{
	"endpoint":         set(checked(configItem.parseString, otlp.CheckEndpoint), func(c *Config) *string { return &c.OTLP.Endpoint }),
	"protocol":         set(checked(configItem.parseString, otlp.CheckProtocol), func(c *Config) *string { return &c.OTLP.Protocol }),
	"headers":          set(checked(configItem.parseStringMap, otlp.CheckHeaders), func(c *Config) *map[string]string { return &c.OTLP.Headers }),
	"metrics":          booleanSetting(func(c *Config) *bool { return &c.OTLP.Metrics }),
	"task_traceparent": booleanSetting(func(c *Config) *bool { return &c.OTLP.TaskTraceparent }),
}
