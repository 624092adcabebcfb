package config

import "github.com/nomad-lite/nomad-lite/runtime/agent/otlp"

// otlpSettings are the settings of the block otlp in telemetry, an extension of Nomad's configuration.
var otlpSettings = map[string]settingSpec{
	"endpoint":         parsedSetting(newCheckedParser(configItem.parseScalarAsString, otlp.CheckEndpoint), func(c *Config) *string { return &c.OTLP.Endpoint }),
	"protocol":         parsedSetting(newCheckedParser(configItem.parseScalarAsString, otlp.CheckProtocol), func(c *Config) *string { return &c.OTLP.Protocol }),
	"headers":          parsedSetting(newCheckedParser(configItem.parseStringMap, otlp.CheckHeaders), func(c *Config) *map[string]string { return &c.OTLP.Headers }),
	"metrics":          booleanSetting(func(c *Config) *bool { return &c.OTLP.ExportMetrics }),
	"task_traceparent": booleanSetting(func(c *Config) *bool { return &c.OTLP.TasksGetTraceparent }),
}
