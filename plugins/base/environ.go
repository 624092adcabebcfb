package base

// DefaultEnvDenylist returns the default of env.denylist: the variables of the agent that no task inherits, and
// a plugin only if its configuration names them. It is Nomad's default, and the variables with the
// introduction token of a node and with the credentials of the agent for an OpenTelemetry collector. For hosts only.
func DefaultEnvDenylist() []string {
	return []string{
		"CONSUL_TOKEN", "CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "NOMAD_TOKEN", "NOMAD_CLIENT_INTRO_TOKEN", "VAULT_TOKEN",
		"CONSUL_LICENSE", "NOMAD_LICENSE", "VAULT_LICENSE",
		"CONSUL_LICENSE_PATH", "NOMAD_LICENSE_PATH", "VAULT_LICENSE_PATH",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_METADATA_URL",
		"GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_OAUTH_ACCESS_TOKEN",
		"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
		"OTEL_EXPORTER_OTLP_METRICS_HEADERS", "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
	}
}
