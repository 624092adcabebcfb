package base

// EnvDenylist returns Nomad's default of env.denylist: the variables of the agent that no
// task inherits, and a plugin only if its configuration names them.
func EnvDenylist() []string {
	return []string{
		"CONSUL_TOKEN", "CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "NOMAD_TOKEN", "VAULT_TOKEN",
		"CONSUL_LICENSE", "NOMAD_LICENSE", "VAULT_LICENSE",
		"CONSUL_LICENSE_PATH", "NOMAD_LICENSE_PATH", "VAULT_LICENSE_PATH",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_METADATA_URL",
		"GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_OAUTH_ACCESS_TOKEN",
	}
}
