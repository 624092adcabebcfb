package config

import "github.com/nomad-lite/nomad-lite/runtime/agent/otlp"

// otlpSettings are the settings of the block otlp in telemetry, an extension of Nomad's configuration.
var otlpSettings = map[string]settingSpec{
	// URL of the collector. [default: http://localhost:4318, or port 4317 for grpc]
	"endpoint": parsedSetting(newCheckedParser(configItem.parseScalarAsString, otlp.CheckEndpoint), func(c *Config) *string { return &c.OTLP.Endpoint }),
	// http/protobuf or grpc. [default: http/protobuf]
	"protocol": parsedSetting(newCheckedParser(configItem.parseScalarAsString, otlp.CheckProtocol), func(c *Config) *string { return &c.OTLP.Protocol }),
	// Headers of each request.
	"headers": parsedSetting(newCheckedParser(configItem.parseStringMap, otlp.CheckHeaders), func(c *Config) *map[string]string { return &c.OTLP.Headers }),
	// Metrics are sent, too.
	"metrics": booleanSetting(func(c *Config) *bool { return &c.OTLP.ExportMetrics }),
	// Tasks get the variable TRACEPARENT with the trace context of their start.
	"task_traceparent": booleanSetting(func(c *Config) *bool { return &c.OTLP.TasksGetTraceparent }),
}
